"""What a call of the lab is made of: clips, what the loudspeaker played, what happened, and the recording of it all.

Time is the card's: it begins with the call and goes on in ticks of 20 ms. A place in a track is a sample; a track's
rate says when that is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TICK_S = 0.02
USER_RATE = 16_000
USER_TICK = round(TICK_S * USER_RATE)

Pcm = NDArray[np.int16]
Message = str | bytes
"""One WebSocket message: text or binary."""

Interval = tuple[int, int]
"""First sample, and the sample after the last."""

Meaning = Literal["turn", "stop", "nothing"]
"""What a step of the person is: a turn, a turn that interrupts, or a sound that must change nothing."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A sound of the person at USER_RATE. Where it is voiced is known from how it was made."""

    name: str
    pcm: Pcm
    voiced: tuple[Interval, ...]
    words: str = ""  # what is said; "": no words


@dataclass(frozen=True, slots=True)
class WordSpan:
    """Where a word is: its characters in a text, and its samples in the sound."""

    start: int
    end: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one response that the loudspeaker played one after the other."""

    at: int  # the first sample's place in the agent's track
    response: str  # the name of the response; "": the dialect does not say
    offset: int  # the first sample's place in the response, or in all sound received where `response` is ""
    samples: int

    @property
    def end(self) -> int:
        """The place behind the last sample."""
        return self.at + self.samples


@dataclass(frozen=True, slots=True)
class Pull:
    """What the loudspeaker plays in a tick."""

    pcm: Pcm  # filled up with silence
    runs: tuple[Run, ...]  # `at` counts from the beginning of the tick
    queued: int  # samples that wait afterwards
    held: bool = False  # whether the dialect has paused the loudspeaker


@dataclass(frozen=True, slots=True)
class Arrival:
    """Sound that came from the server."""

    at_s: float  # when it came
    response: str
    offset: int  # as in Run
    samples: int
    late: bool = False  # whether the dialect says that the response was over before: never queued


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened in a call, for the event log."""

    at_s: float
    side: Literal["sent", "got", "card"]
    name: str  # the message's type in the dialect's own words, or "clear", "hold", "release", "lowered", "step"
    detail: str = ""


StepResult = Literal["done", "nothing_to_interrupt", "not_in_dialect", "late", "not_reached"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the person, as it was sent."""

    number: int
    name: str
    means: Meaning
    result: StepResult
    at: int = 0  # the first sample's place in the person's track
    voiced: tuple[Interval, ...] = ()  # places in the person's track
    response: str = ""  # the response that was audible at the first voiced sample
    audible: bool = False  # whether one was
    expects_answer: bool = True
    recalls: bool = False  # whether the answer must say what was heard before (the counting canary)
    late_ms: float = 0.0  # the worst lateness of the tester's ticks during the step and its answer

    @property
    def first(self) -> int:
        """u_on: the place of the first voiced sample."""
        return self.voiced[0][0]

    @property
    def last(self) -> int:
        """u_off: the place behind the last voiced sample."""
        return self.voiced[-1][1]


@dataclass(slots=True)
class Recording:
    """All of a call. The person's track is at USER_RATE, the agent's at `agent_rate`; both begin with the call."""

    scenario: str
    dialect: str
    repeat: int
    seed: int
    agent_rate: int
    person: Pcm  # the person's voice and sounds, and nothing else
    microphone: Pcm  # what was sent: with noise, echo and loss
    agent: Pcm  # what the loudspeaker played
    runs: list[Run] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    received: dict[str, Pcm] = field(default_factory=dict)  # all sound of each response, played or not
    queued: list[int] = field(default_factory=list)  # after each tick: samples that wait
    held: list[bool] = field(default_factory=list)  # of each tick
    steps: list[StepRecord] = field(default_factory=list)
    occurrences: list[Occurrence] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # of each response, as the server wrote it; may be empty
    history: list[tuple[str, str]] = field(default_factory=list)  # (role, text) as the server says it remembers
    late_ms: list[float] = field(default_factory=list)  # of each tick of the tester
    recalled: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    """By the number of a step that recalls: the last number that was counted aloud, and the number in the answer."""
    failure: str = ""  # why the call could not be held

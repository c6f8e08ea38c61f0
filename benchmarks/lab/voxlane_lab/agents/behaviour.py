"""How a planted agent behaves: it hears the microphone in ticks of 20 ms and decides when to speak and stop. Pure.

ears.py says which sounds are turns. The agent answers one second after the end of a turn: a person may pause for that
long. The first answer is a long story; the answer to an interruption is short. A turn during an answer is an
interruption and stops it at once; a shorter sound changes nothing. Every fault is one changed trait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from voxlane_lab.agents.acts import (
    Act,
    ResponseBegins,
    ResponseCut,
    ResponsePlayed,
    ResponseSent,
    ResponseSound,
    TurnBegins,
    TurnEnds,
)
from voxlane_lab.agents.ears import Ears
from voxlane_lab.agents.mouth import Mouth
from voxlane_lab.agents.voice import AGENT_RATE, AgentClip, AgentVoice, at_rate
from voxlane_lab.values import TICK_S, USER_RATE, USER_TICK, Pcm

ANSWERS_AFTER_S = 1.0  # silence of the person before an answer
CUTS_OFF_AFTER_S = 0.25  # the same for the agent that cuts people off
DROPS_AFTER_S = 0.6  # silence of the person after which the agent that talks over them drops the rest
BREATH_S = 0.32  # the least silence at the ear between two responses: less does not tell them apart
GREETS_AFTER_S = 0.2
PAUSE_S = 0.85
SLOW_YIELD_S = 1.6
SECOND_ANSWER_S = 1.0  # silence between two answers to one turn: more than a speaker pauses between two sentences
STALE_S = 0.5  # the length of each piece of old sound
STALE_WAITS_S = 0.3  # silence of the agent before the first piece
STALE_AFTER_S = (0.07, 0.13)  # silence of the person before the second piece

SILENT_TICK: Pcm = np.zeros(USER_TICK, np.int16)

Stops = Literal["turn", "sound", "late", "after", "quiet"]
"""When it stops: for a turn; for any sound; long after a turn began; after the turn; at once, but not for good."""


@dataclass(frozen=True, slots=True)
class AgentTraits:
    """What an agent does, and a fault does otherwise."""

    stops: Stops = "turn"
    pauses: bool = False  # any sound pauses it
    remembers: Literal["heard", "all", "nothing"] = "heard"
    answers: Literal[0, 1, 2] = 1  # to an interruption
    answers_after_s: float = ANSWERS_AFTER_S


class Behaviour:
    """One agent in one call."""

    def __init__(self, traits: AgentTraits, voice: AgentVoice, *, counts: bool = False, greets: bool = False) -> None:
        self._traits = traits
        self._voice = voice
        self._counts = counts
        self._greets = greets
        self._ears = Ears()
        self._mouth: Mouth | None = None
        self._responses = 0
        self._turns = 0
        self._stories = 0
        self._shorts = 0
        self._began_turn = False  # the turn that is heard was announced
        self._noticed = 0  # the number of the last sound to which the agent has reacted
        self._interrupted: Mouth | None = None  # the response that the person has interrupted and got no answer for
        self._asides = 0  # pieces of old sound that were sent
        self._ticks = 0
        self._spoke_tick = -1_000_000  # the last tick in which the ear had sound
        self._second_in: int | None = None  # ticks until the second answer
        self._reported: dict[int, int] = {}  # what the client says was played of each response

    def played(self, response: int, samples: int) -> None:
        """Take the client's word for how many samples of a response were played."""
        self._reported[response] = max(samples, self._reported.get(response, 0))

    def tick(self, sound: Pcm) -> list[Act]:
        """Let 20 ms pass in which this was heard; return what the agent does."""
        self._ticks += 1
        before = self._mouth
        first = before.played if before is not None else 0
        over = self._follow()
        own = SILENT_TICK if before is None else _played(before.clip, first, before.played)
        self._ears.push(sound, own)
        return [*over, *self._notice(), *self._react(), *self._start(), *self._speak()]

    # ---- what was played

    def _follow(self) -> list[Act]:
        mouth = self._mouth
        if mouth is None:
            return []
        if not mouth.dry:
            self._spoke_tick = self._ticks
        mouth.listen()
        if not (mouth.all_sent and mouth.dry):
            return []
        self._mouth = None
        if self._traits.answers == 2 and self._second_in is None and mouth.turn:
            self._second_in = round(SECOND_ANSWER_S / TICK_S)
        return [ResponsePlayed(mouth.response, mouth.turn, mouth.clip)]

    # ---- what was heard

    def _notice(self) -> list[Act]:
        if self._began_turn or not self._ears.is_turn:
            return []
        assert self._ears.onset is not None
        self._began_turn = True
        self._turns += 1
        return [TurnBegins(self._turns, self._ears.onset / USER_RATE)]

    def _react(self) -> list[Act]:
        mouth = self._mouth
        if mouth is None or self._ears.onset is None:
            return []
        first = self._noticed != self._ears.sounds
        self._noticed = self._ears.sounds
        if self._traits.pauses and first and not mouth.all_sent:
            return self._sound(mouth, mouth.pause(PAUSE_S))
        if self._traits.stops == "quiet" and self._ears.is_turn:
            self._stale(mouth)
            return []
        return self._cut(mouth, flush=True) if self._stops_now() else []

    def _stops_now(self) -> bool:
        match self._traits.stops:
            case "sound":
                return True
            case "late":
                return self._ears.is_turn and self._ears.since_onset_s > SLOW_YIELD_S - 0.8 * TICK_S
            case "after":
                return self._ears.is_turn and self._ears.silence_s >= DROPS_AFTER_S
        return self._ears.is_turn

    def _stale(self, mouth: Mouth) -> None:
        """Fall silent, and say two more pieces of the old response at the wrong moments."""
        if self._interrupted is not mouth:
            self._interrupted, self._asides = mouth, 0
            mouth.be_quiet()
        elif self._asides == 0 and mouth.silent_ticks * TICK_S >= STALE_WAITS_S:
            self._asides = 1
            mouth.say_more(STALE_S)
        elif self._asides == 1 and mouth.quiet and mouth.dry:
            least_s, most_s = STALE_AFTER_S
            if least_s <= self._ears.silence_s <= most_s:
                self._asides = 2
                mouth.say_more(STALE_S)

    def _cut(self, mouth: Mouth, *, flush: bool) -> list[Act]:
        self._mouth = None
        self._interrupted = mouth
        self._second_in = None
        heard = mouth.clip.text_before(self._remembered(mouth))
        return [ResponseCut(mouth.response, mouth.turn, mouth.clip, mouth.played, heard, flush)]

    # ---- what is said

    def _start(self) -> list[Act]:
        if self._greets:
            if self._ticks * TICK_S < GREETS_AFTER_S:
                return []
            self._greets = False
            return self._begin(0, self._voice.greeting)
        if self._ears.is_turn and self._ears.silence_s >= self._traits.answers_after_s:
            return self._answer() if self._may_begin() else []
        return self._second_answer()

    def _may_begin(self) -> bool:
        busy = self._mouth is not None and not self._mouth.quiet
        return not busy and (self._ticks - self._spoke_tick) * TICK_S >= BREATH_S

    def _answer(self) -> list[Act]:
        ends = TurnEnds(self._turns, self._ears.last / USER_RATE)
        stopped = self._cut(self._mouth, flush=False) if self._mouth is not None else []
        interrupted, self._interrupted = self._interrupted, None
        self._ears.forget()
        self._began_turn, self._second_in = False, None
        if interrupted is not None and self._traits.answers == 0:
            return [*stopped, ends]
        return [*stopped, ends, *self._begin(self._turns, self._chosen(interrupted))]

    def _second_answer(self) -> list[Act]:
        if self._second_in is None or self._mouth is not None:
            return []
        if self._ears.onset is not None:
            self._second_in = None
            return []
        self._second_in -= 1
        if self._second_in >= 0:
            return []
        self._second_in = None
        return self._begin(0, self._short())

    def _chosen(self, interrupted: Mouth | None) -> AgentClip:
        """Return what the agent says to a turn that interrupted a response, or none."""
        if interrupted is None:
            return self._long()
        if interrupted.clip is self._voice.count:
            count = self._voice.count.words_before(self._remembered(interrupted))
            return self._voice.recalls[max(count, 1) - 1]
        return self._short()

    def _remembered(self, mouth: Mouth) -> int:
        """Return how much of a response the agent believes was heard, in samples."""
        match self._traits.remembers:
            case "all":
                return len(mouth.clip.pcm)
            case "nothing":
                return 0
        return self._reported.get(mouth.response, mouth.played)

    def _long(self) -> AgentClip:
        if self._counts:
            return self._voice.count
        self._stories += 1
        return self._voice.stories[(self._stories - 1) % len(self._voice.stories)]

    def _short(self) -> AgentClip:
        self._shorts += 1
        return self._voice.answers[(self._shorts - 1) % len(self._voice.answers)]

    def _begin(self, turn: int, clip: AgentClip) -> list[Act]:
        self._responses += 1
        self._mouth = Mouth(self._responses, turn, clip)
        return [ResponseBegins(self._responses, turn, clip)]

    def _speak(self) -> list[Act]:
        mouth = self._mouth
        return [] if mouth is None or mouth.all_sent else self._sound(mouth, mouth.speak())

    def _sound(self, mouth: Mouth, piece: tuple[int, int]) -> list[Act]:
        first, end = piece
        acts: list[Act] = [ResponseSound(mouth.response, mouth.clip, first, end)] if end > first else []
        return [*acts, ResponseSent(mouth.response, mouth.clip)] if acts and mouth.all_sent else acts


def _played(clip: AgentClip, first: int, end: int) -> Pcm:
    """Return what the ear played in a tick, at the microphone's rate."""
    sound = at_rate(clip, USER_RATE)[first * USER_RATE // AGENT_RATE : end * USER_RATE // AGENT_RATE]
    return np.concatenate([sound, SILENT_TICK])[:USER_TICK]

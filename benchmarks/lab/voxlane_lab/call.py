"""One call: a person, a virtual sound card, a line and a dialect, in ticks of 20 ms. Pure.

A tick has two halves. `begin_tick` returns what the client sends at that moment: the microphone's sound of the tick
before, and acknowledgements. `end_tick` delivers what has come, plays 20 ms, and lets the person speak. Between them a
planted agent on the virtual clock may answer; a real server answers when it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxlane_lab.dialects.dialect import LabDialect
from voxlane_lab.line import EchoPath, PacketLoss, Way
from voxlane_lab.person import PlannedStep, generator
from voxlane_lab.scenario import Scenario
from voxlane_lab.script import Card, Script
from voxlane_lab.values import (
    TICK_S,
    USER_TICK,
    Arrival,
    Clip,
    Message,
    Occurrence,
    Pcm,
    Pull,
    Recording,
    Run,
)

READY_S = 15.0  # a server that is not ready by then is not measured
AUDIBLE = 10 ** (-50 / 20) * 32768  # the RMS of a frame that is heard
LATE_MS = 20.0  # a tick that is later makes its step invalid
MOST_MESSAGES, MESSAGES_A_SECOND = 10_000, 1000  # a server may send so many at once, and so many more each second
MOST_BYTES, BYTES_A_SECOND = 2**26, 2**20  # the same: more than ten minutes of sound at once
VOICE_DB = -23.0  # the loudness of the corpus, and of a noise bed


class LabCall:
    """One repeat of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        repeat: int,
        dialect: LabDialect,
        planned: Sequence[PlannedStep],
        clips: Sequence[Clip],
        bed: Pcm | None = None,
    ) -> None:
        self._scenario = scenario
        self._repeat = repeat
        self._dialect = dialect
        self._up = Way(scenario.line, generator(scenario, repeat, 1), stalls=False)
        self._down = Way(scenario.line, generator(scenario, repeat, 2), stalls=True)
        self._lost_up = PacketLoss(scenario.line.loss, generator(scenario, repeat, 3))
        self._lost_down = PacketLoss(scenario.line.loss, generator(scenario, repeat, 4))
        self._echo = EchoPath(scenario.line.echo, dialect.speaker.rate, generator(scenario, repeat, 5))
        self._bed = self._noise(bed)
        self._script = Script(scenario, planned, clips)
        self._agent_tick = round(TICK_S * dialect.speaker.rate)
        self._tick = 0
        self._frame: Pcm | None = None  # the microphone's sound of the tick before
        self._closed = ""  # why the server closed the connection
        self._messages = self._bytes = 0  # what came from the server
        self._finished: list[Occurrence] = []
        self._known_finished: set[str] = set()
        self._agent: list[Pcm] = []
        self._person: list[Pcm] = []
        self._microphone: list[Pcm] = []
        self._runs: list[Run] = []
        self._queued: list[int] = []
        self._held: list[bool] = []
        self._late_ms: list[float] = []

    @property
    def now_s(self) -> float:
        """The time of the card."""
        return self._tick * TICK_S

    @property
    def failure(self) -> str:
        """Why the call cannot go on; "": it can."""
        if self._dialect.failure:
            return self._dialect.failure
        if self._closed:
            return self._closed
        if not self._dialect.ready and self.now_s > READY_S:
            return f"the server did not say within {READY_S:.0f} s that it is ready"
        return ""

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return bool(self.failure) or self._script.over

    @property
    def progress(self) -> tuple[int, int]:
        """How many steps are done, and how many there are."""
        return self._script.done, self._script.steps

    def open(self) -> list[Message]:
        """Return the first messages."""
        return self._dialect.open(0.0)

    def arrive(self, message: Message, at_s: float | None = None) -> None:
        """Take a message of the server that came at a time, or now; a server that floods ends the call."""
        self._messages += 1
        self._bytes += len(message)
        if self._messages > MOST_MESSAGES + MESSAGES_A_SECOND * self.now_s:
            self.closed(f"the server floods: {self._messages} messages within {self.now_s:.0f} s")
        if self._bytes > MOST_BYTES + BYTES_A_SECOND * self.now_s:
            self.closed(f"the server floods: {self._bytes >> 20} MiB within {self.now_s:.0f} s")
        self._down.put(message, self.now_s if at_s is None else at_s)

    def closed(self, reason: str) -> None:
        """Note that the server has closed the connection."""
        self._closed = self._closed or reason

    def begin_tick(self, late_ms: float = 0.0) -> list[Message]:
        """Begin a tick that is so late; return what is sent now."""
        self._late_ms.append(late_ms)
        if self._frame is not None and self._dialect.ready:
            for message in self._dialect.say(self._frame, self.now_s):
                self._up.put(message, self.now_s)
        for message in self._dialect.due(self.now_s):
            self._up.put(message, self.now_s)
        return [message for _, message in self._up.take(self.now_s)]

    def end_tick(self) -> None:
        """Deliver what has come, play and speak for 20 ms."""
        for at_s, message in self._down.take(self.now_s):
            for reply in self._dialect.receive(message, at_s):
                self._up.put(reply, self.now_s)
        self._note_finished()
        pulled = self._play()
        person = self._speak(pulled)
        self._person.append(person)
        heard = person + self._background() + self._echo.hear(self._agent[-1])
        frame = np.clip(np.rint(heard), -32768, 32767).astype(np.int16)
        self._frame = np.zeros_like(frame) if self._lost_up.lost() else frame
        self._microphone.append(self._frame)
        self._tick += 1

    def close(self) -> list[Message]:
        """Return the last messages."""
        return self._dialect.close(self.now_s)

    def recording(self) -> Recording:
        """Return all of the call."""
        dialect = self._dialect
        return Recording(
            scenario=self._scenario.name,
            dialect=dialect.name,
            repeat=self._repeat,
            seed=self._scenario.seed,
            agent_rate=dialect.speaker.rate,
            person=_joined(self._person),
            microphone=_joined(self._microphone),
            agent=_joined(self._agent),
            runs=self._runs,
            arrivals=list[Arrival](dialect.arrivals),
            received={name: _joined(parts) for name, parts in dialect.speaker.received.items()},
            queued=self._queued,
            held=self._held,
            steps=self._script.records(self._late_ms, LATE_MS),
            occurrences=sorted(
                [*dialect.occurrences, *self._script.occurrences, *self._finished], key=lambda one: one.at_s
            ),
            texts=dict(dialect.texts),
            history=list(dialect.history),
            late_ms=self._late_ms,
            failure=self.failure,
        )

    def _note_finished(self) -> None:
        """Note the responses of which all sound has come."""
        fresh = sorted(self._dialect.finished - self._known_finished)
        self._known_finished.update(fresh)
        self._finished += [Occurrence(self.now_s, "card", "finished", response) for response in fresh]

    def _play(self) -> Pull:
        pulled = self._dialect.speaker.pull(self._agent_tick)
        begin = self._tick * self._agent_tick
        for run in pulled.runs:
            self._note(Run(begin + run.at, run.response, run.offset, run.samples))
        self._agent.append(np.zeros_like(pulled.pcm) if self._lost_down.lost() else pulled.pcm)
        self._queued.append(pulled.queued)
        self._held.append(pulled.held)
        return pulled

    def _note(self, run: Run) -> None:
        """Add a run, or make the last one longer."""
        last = self._runs[-1] if self._runs else None
        if last and (last.end, last.response, last.offset + last.samples) == (run.at, run.response, run.offset):
            self._runs[-1] = Run(last.at, last.response, last.offset, last.samples + run.samples)
        else:
            self._runs.append(run)

    def _speak(self, pulled: Pull) -> Pcm:
        if not self._dialect.ready:
            return np.zeros(USER_TICK, np.int16)
        sound = self._agent[-1]
        playing = pulled.runs[-1].response if pulled.runs else None
        finished = playing is not None and playing in self._dialect.finished
        return self._script.speak(
            Card(
                tick=self._tick,
                audible=bool(np.sqrt(np.mean(sound.astype(np.float64) ** 2)) > AUDIBLE),
                response=playing,
                left_s=pulled.queued / self._dialect.speaker.rate if finished else None,
                calling_tool=self._dialect.calling_tool,
                names_responses=self._dialect.names_responses,
            )
        )

    def _noise(self, bed: Pcm | None) -> np.ndarray | None:
        """Return the noise bed at its loudness."""
        noise = self._scenario.user.noise
        if bed is None or noise is None:
            return None
        gain = 10 ** ((self._scenario.user.level_db - noise.snr_db - VOICE_DB) / 20)
        return bed.astype(np.float32) * np.float32(gain)

    def _background(self) -> np.ndarray | float:
        if self._bed is None:
            return 0.0
        at = self._tick * USER_TICK % max(1, len(self._bed) - USER_TICK)
        return self._bed[at : at + USER_TICK]


def _joined(parts: Sequence[Pcm]) -> Pcm:
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)

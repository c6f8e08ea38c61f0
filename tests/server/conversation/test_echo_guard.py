"""A session beside a loudspeaker: it does not hold or end its own reply, and a person still does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from session_simulation import STATS

from voxlane.engine.api import Append, Finished, Samples, Submit
from voxlane.server.conversation.client_events import Audio, Played
from voxlane.server.conversation.effects import Send, SendToEngine
from voxlane.server.conversation.hearing.ear import Ear
from voxlane.server.conversation.server_events import Duck, Hold, Interrupted, Release, Speech
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.values import SessionConfig

RATE = 16_000
STEP = 320
STORY = (
    "The train to the coast leaves from platform four, stops at every small station on the way, and arrives a quarter"
    " of an hour after the last ferry has gone. "
)


@dataclass
class Laptop:
    """A client whose microphone hears its loudspeaker, 0.1 s of buffer and air later."""

    gain: float
    queue: list[bytes] = field(default_factory=list)
    line: list[np.ndarray] = field(default_factory=lambda: [np.zeros(STEP, np.float32)] * 5)
    events: list[tuple[int, object]] = field(default_factory=list)
    held: bool = False
    volume: float = 1.0
    played: int = 0
    epoch: int = 0

    def take(self, event: object, step: int) -> None:
        self.events.append((step, event))
        match event:
            case Speech(epoch, _, pcm):
                self.epoch = epoch
                self.queue.append(pcm)
            case Duck(gain=gain):
                self.volume = gain
            case Hold():
                self.held, self.volume = True, 1.0
            case Release():
                self.held, self.volume = False, 1.0
            case Interrupted():
                self.queue.clear()

    def play(self) -> np.ndarray:
        """Play 20 ms; return what the microphone hears of the loudspeaker."""
        joined = b"" if self.held else b"".join(self.queue)
        if not self.held:
            self.queue = [joined[2 * STEP :]]
        now = np.zeros(STEP, np.float32)
        sound = np.frombuffer(joined[: 2 * STEP], "<i2").astype(np.float32) / 32768
        now[: len(sound)] = sound
        self.played += len(sound)
        self.line.append(now * np.float32(self.gain * self.volume))
        return self.line.pop(0)

    def steps(self, *kinds: type) -> list[int]:
        return [step for step, event in self.events if isinstance(event, kinds)]


def talk(reply: np.ndarray, person: np.ndarray, *, guard: bool, gain: float) -> Laptop:
    """Let a session say `reply` to a laptop beside which `person` speaks."""
    session = Session("s", SessionConfig(greeting=STORY), Ear(), speak_rate=RATE, probes=False, echo_guard=guard)
    laptop, now, chance = Laptop(gain), 100.0, np.random.default_rng(2)
    effects = session.open(now)
    pcm = np.rint(reply * 32768).astype("<i2").tobytes()
    submit = next(e.message for e in effects if isinstance(e, SendToEngine) and isinstance(e.message, Submit))
    assert any(isinstance(e, SendToEngine) and isinstance(e.message, Append) for e in effects)
    effects += session.feed(Samples(submit.request_id, submit.epoch, 0, pcm, ()), now)
    effects += session.feed(Finished(submit.request_id, submit.epoch, "eos", STATS), now)
    for step in range(len(person) // STEP):
        for effect in effects:
            if isinstance(effect, Send):
                laptop.take(effect.event, step)
        heard = laptop.play() + person[step * STEP : (step + 1) * STEP] + chance.normal(0, 1.8e-4, STEP)
        now += STEP / RATE
        effects = session.feed(Audio(np.rint(np.clip(heard, -1, 0.9999) * 32768).astype("<i2").tobytes()), now)
        if step % 10 == 0 and laptop.epoch:
            effects += session.feed(Played(laptop.epoch, laptop.played), now)
    return laptop


def test_an_assistant_beside_its_loudspeaker_speaks_to_the_end(said) -> None:
    reply = np.concatenate([said(STORY, -20)] * 2)
    silence = np.zeros(len(reply) + 2 * RATE, np.float32)
    stuttering = talk(reply, silence, guard=False, gain=0.3)
    assert len(stuttering.steps(Duck, Hold)) > 1, "without the guard it lowers its own reply again and again"
    fluent = talk(reply, silence, guard=True, gain=0.3)
    assert len(fluent.steps(Duck, Hold)) <= 2  # before the echo is known
    assert not fluent.steps(Interrupted)
    assert fluent.played == len(reply)


def test_a_person_interrupts_an_assistant_beside_its_loudspeaker(said) -> None:
    reply = np.concatenate([said(STORY, -20)] * 2)
    question = said("Wait a moment, which platform was that again?", -26)
    at = 6 * RATE
    person = np.zeros(len(reply), np.float32)
    person[at : at + len(question)] = question
    laptop = talk(reply, person, guard=True, gain=0.3)
    noticed = [step for step in laptop.steps(Duck, Hold) if step * STEP > at]
    assert noticed
    assert noticed[0] * STEP < at + RATE // 4
    assert laptop.steps(Interrupted)


def test_with_headphones_a_session_does_the_same_with_and_without_the_guard(said) -> None:
    reply = said(STORY, -20)
    question = said("Which platform was that?", -26)
    person = np.zeros(len(reply), np.float32)
    person[2 * RATE : 2 * RATE + len(question)] = question
    with_guard, without = (talk(reply, person, guard=guard, gain=0.0) for guard in (True, False))
    assert with_guard.events == without.events
    assert with_guard.steps(Duck, Hold)

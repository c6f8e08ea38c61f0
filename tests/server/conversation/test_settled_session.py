"""A session that looks only at what a sound can have changed decides like one that looks at everything each time."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import product
from math import inf

import numpy as np
import pytest
from examples import SOAK
from session_simulation import COVERED_S, SAMPLES_PER_CHAR, SPEAK_RATE, ScriptedEar, ScriptedEngine, sound
from session_table import FRAME_S, Table

from voxlane.engine.api import ConverseModel, FromEngine, Words
from voxlane.server.conversation.client_events import (
    Audio,
    CommitInput,
    ConfigureSession,
    EndTurn,
    Played,
    Respond,
    StartTurn,
    Stop,
    TextTurn,
)
from voxlane.server.conversation.effects import Effect, RequestsLost, Tick
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.turns import interruption
from voxlane.server.conversation.turns.end_of_turn import end_wait_s, worth_preparing
from voxlane.server.conversation.turns.floor import MAY_SPEAK_S, MUTE_S, ROUNDING_S, Floor
from voxlane.server.conversation.turns.policies import BargePolicy, TurnPolicy
from voxlane.server.conversation.turns.silence import LOOK_S, Meaning, meaning, turning_points
from voxlane.server.conversation.turns.user_turn import RATE
from voxlane.server.conversation.values import SessionConfig


class ThoroughFloor(Floor):
    """Asks for all evidence at every look."""

    def wake_at(self, now: float) -> float | None:
        turn, rests = self._turn, list[float]()
        if turn is not None and not turn.silent and not turn.manual:
            rests = [max(0.0, MUTE_S - self.lull.seconds)]
        if turn is not None and turn.silent and not turn.manual:
            silence, wait_s = self._silence_s(), self._end_wait_s(turn)
            waits = [*turning_points(wait_s, self.config), wait_s + MAY_SPEAK_S * self._ear.may_speak]
            rests = [wait - silence for wait in waits if silence < wait < inf]
        times = [now + min(LOOK_S, rest + ROUNDING_S) for rest in rests]
        later = (self.pending.idle_at(), self.pending.answer_at())
        times += [max(now, at) + ROUNDING_S for at in later if at is not None]
        return min(times, default=None)

    def consider(self, now: float) -> list[Effect]:
        turn, config, heard = self._turn, self.config, self._ear.heard
        if turn is None:
            return self.pending.break_silence((heard + self._gathered) / RATE, now)
        if heard - turn.onset + turn.gathered > (config.turns.max_turn_s + 2.0) * RATE:
            return self._end_turn(now)
        if turn.manual:
            return []
        if not turn.silent and self.lull.seconds >= MUTE_S:
            if not turn.confirmed:
                self._ear.rest()
                return self._drop_turn(now)
            self._muted = turn.silent = True
        if turn.held and turn.confirmed and self._answers.asked and not self._answers.busy:
            return self._commit(turn, now)
        silence = self._silence_s()
        evidence, strong_s = self._evidence(turn), self._ear.strong_for / RATE
        wait_s = end_wait_s(evidence, config.turns, self._habits.patience)
        match meaning(turn, silence, self._ear.voiced_for / RATE, wait_s, config, strong_s):
            case Meaning.MEANT if turn.asked:
                return [*self._end_turn(now), *self.pending.close_understood(now)]
            case Meaning.MEANT:
                return self._commit(turn, now)
            case Meaning.WANTS_WORDS:
                return [*self._follow(now), *interruption.ask_last_words(turn)]
            case Meaning.NOTHING:
                self._ear.rest()
                return self._drop_turn(now)
            case Meaning.END if self._ear.may_speak and silence < wait_s + MAY_SPEAK_S:
                return []
            case Meaning.END:
                turn.ended_words, turn.p_sound = turn.text, evidence.p_sound
                return self._end_turn(now)
            case Meaning.PAUSE:
                effects = self._probes.ask(turn, turn.text, self._answers.history, config) if evidence.fresh else []
                eager = config.replies and turn.text and worth_preparing(evidence, config.turns)
                return [*effects, *self._prepare(turn)] if eager else effects
        return self._follow(now)


class ThoroughSession(Session):
    """Looks at everything after every event."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._floor.__class__ = ThoroughFloor

    def _hear(self, pcm: bytes, now: float) -> list[Effect]:
        return self._conclude(self._floor.hear(pcm, now), now)

    def wake_at(self, now: float) -> float | None:
        times = (self.answers.wake_at(now), self._floor.wake_at(now))
        return min((at for at in times if at is not None), default=None)


class UncertainEar(ScriptedEar):
    """Voices that end in different ways, and pauses in which something may_speak."""

    def _chance(self, what: str) -> float:
        return hashlib.sha256(f"{what} {self._last}".encode()).digest()[0] / 255

    @property
    def p_finished(self) -> float | None:
        paused = self._state == "paused" and self.heard >= self._last + RATE // 10
        return self._chance("finished") if paused else None

    @property
    def may_speak(self) -> bool:
        return self._state == "paused" and self._chance(f"may_speak {self._frames // 3}") > 0.7

    @may_speak.setter
    def may_speak(self, _: bool) -> None:
        pass


class LateEngine(ScriptedEngine):
    """An engine whose words cover all the sound, or not yet its end."""

    def _hear(self, name: str, work) -> FromEngine:
        message = super()._hear(name, work)
        if isinstance(message, Words):
            late = hashlib.sha256(f"{name} {work.audio}".encode()).digest()[0] < 100
            return Words(name, 0, message.settled, message.tail, 0.0, covered_s=0.1 if late else COVERED_S)
        return message


class Twin(Table):
    """A table whose session is of one of the two kinds."""

    def __init__(self, kind: type[Session], config: SessionConfig, speech: ConverseModel | None = None) -> None:
        super().__init__(config)
        self.ear = UncertainEar()
        self.engine = LateEngine()
        self.engine.transcripts.clear()
        self.engine.transcripts.append("tell me a story and")
        self.session = kind("s", config, self.ear, speak_rate=SPEAK_RATE, speech=speech)


CONFIGS = (
    SessionConfig(),
    SessionConfig(turns=TurnPolicy(eagerness="high")),
    SessionConfig(turns=TurnPolicy(eagerness="low", idle_s=6.0), barge_in=BargePolicy(hold="pause")),
    SessionConfig(turns=TurnPolicy(min_wait_s=0.5, max_wait_s=0.5)),
    SessionConfig(turns=TurnPolicy(max_turn_s=5.0), interruptible=False),
    SessionConfig(turns=TurnPolicy(mode="manual")),
    SessionConfig(turns=TurnPolicy(mode="buffer"), replies=False),
    SessionConfig(greeting="Hello there, how can I help you?"),
)


def moves(chance: np.random.Generator, count: int) -> list[tuple[str, int]]:
    """Return what happens in a conversation: mostly sound, mostly heard by an engine that keeps up."""
    kinds = ("v", "s", "n", "work", "wait", "played", "type", "stop", "press", "config", "lost", "words", "respond")
    shares = np.array([22, 28, 6, 14, 12, 4, 2, 2, 2, 2, 1, 3, 2], float)
    return [(str(chance.choice(kinds, p=shares / shares.sum())), int(chance.integers(1, 60))) for _ in range(count)]


def act(table: Twin, move: tuple[str, int]) -> None:
    kind, number = move
    match kind:
        case "v" | "s" | "n":
            for _ in range(number):
                table.now += FRAME_S
                table.feed(Audio(sound(kind, 1 + number % 3)))
                if number % 4:
                    table.work(2)
        case "work":
            table.work(number)
        case "wait":
            table.wait(number / 30)
        case "played":
            reply = table.session.answers.reply
            table.feed(Played(reply.epoch if reply is not None else 1, number * 400))
        case "type":
            table.feed(TextTurn("and then?"))
        case "stop":
            table.feed(Stop())
        case "press":
            table.feed((StartTurn(), EndTurn(), CommitInput("c"))[number % 3])
        case "config":
            table.feed(ConfigureSession(CONFIGS[number % len(CONFIGS)]))
        case "lost":
            table.engine.work.clear()
            table.feed(RequestsLost())
        case "words":
            texts = ("tell me a story and", "what time is it?", "yeah", "my number is 4 5", "stop", "")
            table.engine.transcripts[0] = texts[number % len(texts)]
        case "respond":
            table.feed(Respond(table.session.config))
    table.feed(Tick())


SEEDS = 120 if SOAK else 4
SPEECH = ConverseModel("lfm2-audio", 4000, 12.5, SAMPLES_PER_CHAR)


@pytest.mark.parametrize("speech", [None, SPEECH], ids=["three-models", "speech-model"])
def test_it_decides_like_a_session_that_looks_at_everything(speech: ConverseModel | None) -> None:
    seen = [Counter[str]() for _ in CONFIGS]
    for place, seed in product(range(len(CONFIGS)), range(SEEDS if speech is None else SEEDS // 2)):
        chance = np.random.default_rng([place, seed])
        quick, thorough = (Twin(kind, CONFIGS[place], speech) for kind in (Session, ThoroughSession))
        for table in (quick, thorough):
            table.log += (opened := table.session.open(table.now))
            table.client.apply(opened, table.engine)
        for number, move in enumerate(moves(chance, 60)):
            for table in (quick, thorough):
                act(table, move)
            at = (place, seed, number, move)
            assert quick.log == thorough.log, at
            assert quick.session.wake_at(quick.now) == thorough.session.wake_at(thorough.now), at
            seen[place].update(type(getattr(effect, "event", None)).__name__ for effect in quick.log)
            quick.log.clear()
            thorough.log.clear()
    assert min(one["TurnDone"] for one in seen) > (10 if SOAK else 1), seen

"""Murmurs and interruptions over a reply: what each does to the reply that is paused for it, or ducked.

Ten voices say "mhm", "yeah" and the like while the assistant talks, and interrupt it with one word or with a sentence;
100 of each, at several speeds and levels. The real session, ear and recogniser run in simulated time: a decode is
answered when its CPU time on one thread has passed. The rest of the engine is scripted, and costs nothing.
barge_in.py measures interruptions through a real server, in real time.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from support.common import engine, table
from support.ears import corpus
from support.ears.corpus import RATE, VOICES, Sound
from support.figures import percentile

from voxlane.codecs.pcm import encode_pcm16
from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FromEngine,
    RequestStats,
    Samples,
    Submit,
    Text,
    ToEngine,
)
from voxlane.engine.loop.core import Core
from voxlane.server.conversation.client_events import Audio, TextTurn
from voxlane.server.conversation.effects import Effect, Send, SendToEngine, Tick
from voxlane.server.conversation.hearing.ear import Ear
from voxlane.server.conversation.server_events import Duck, Hold, Interrupted, Release, Speech
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.turns.policies import BargePolicy
from voxlane.server.conversation.values import SessionConfig

MURMURS = ("Mhm.", "Uh-huh.", "Yeah.", "Right.", "Okay.", "I see.", "Hmm.", "Sure.", "Oh.", "Wow.")
INTERRUPTIONS = (
    "No.", "Stop.", "Wait.", "What?", "Hold on.", "Why?", "Hey!", "Sorry?", "Not now.", "Louder, please.",
    "No, I meant something else.", "Wait a moment, please.", "What about the weather tomorrow?",
    "Sorry, can you repeat that?", "Actually, let's talk about something else.", "Can you tell me the price instead?",
    "That's not what I asked for.", "I have a question about that.", "How long does it take?",
    "Okay, but how much is it?",
)  # fmt: skip
SPEEDS = (0.9, 1.0, 1.15, 1.3)
USUAL_DB = -23.0
MURMUR_DB, INTERRUPTION_DB = (-8.0, 0.0), (-4.0, 4.0)  # against the person's usual loudness
LISTENERS = ("moonshine-tiny-en", "whisper-tiny-en")
BEFORE_S = 1.2  # of the reply, until the voice begins
AFTER_S = 2.0
FRAME_S = 0.02
SPEAK_RATE = 24_000
REPLY = "The old lighthouse had stood on the cliff for a hundred and fifty years, and its lamp was always lit. " * 4

_STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A voice that cuts into a reply."""

    text: str
    voice: str
    sound: Sound
    first_s: float  # when its first strong sound begins


@dataclass(slots=True)
class Outcome:
    """What a voice did to the reply; milliseconds from its first strong sound, -1: did not happen."""

    cut: Cut
    action_ms: float = -1.0  # the first duck or hold
    commit_ms: float = -1.0
    ducked_ms: float = 0.0
    muted_ms: float = 0.0
    stale: int = 0  # frames of a reply that was over
    heard: list[str] = field(default_factory=list)  # words of the recogniser

    @property
    def short(self) -> bool:
        """Whether one or two words were said."""
        return self.cut.text.count(" ") < 2

    @property
    def lowered_ms(self) -> float:
        """For how long the reply was not at full loudness."""
        return self.ducked_ms + self.muted_ms


def _cut(text: str, voice: str, speed: float, level: float) -> Cut:
    sound = corpus.at_level(corpus.say(text, voice, speed).sound, USUAL_DB + level)
    frames = sound[: len(sound) // 160 * 160].reshape(-1, 160).astype(np.float64)
    power = (frames**2).mean(axis=1)
    return Cut(text, voice, sound, int(np.flatnonzero(power >= power.max() / 100)[0]) / 100)


def murmurs() -> list[Cut]:
    """Return a hundred: every text in every voice."""
    chance = np.random.default_rng(1)
    pairs = itertools.product(enumerate(MURMURS), enumerate(VOICES))
    return [_cut(text, voice, SPEEDS[(n + m) % 4], chance.uniform(*MURMUR_DB)) for (n, text), (m, voice) in pairs]


def interruptions() -> list[Cut]:
    """Return a hundred: every text in five of the voices."""
    chance = np.random.default_rng(2)
    pairs = itertools.product(enumerate(INTERRUPTIONS), range(5))
    return [
        _cut(text, VOICES[2 * m + n % 2], SPEEDS[(n + m) % 4], chance.uniform(*INTERRUPTION_DB))
        for (n, text), m in pairs
    ]


class Studio:
    """An engine in simulated time: a real recogniser, and a scripted chat model and voice."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._due: list[tuple[float, int, FromEngine]] = []
        self._count = itertools.count()
        self._free_s = 0.0  # when the recogniser is done with what it has
        self._spoken: dict[str, int] = {}  # samples by request

    def tell(self, message: ToEngine, now: float) -> None:
        """Take a command; its answers fall due later."""
        match message:
            case Submit(name, "chat"):
                self._put(now, Text(name, message.epoch, REPLY), Finished(name, message.epoch, "eos", _STATS))
            case Append(name, text=text) if text:
                count = len(text) * SPEAK_RATE // 15  # about as fast as a person
                spoken = self._spoken.get(name, 0)
                self._put(now, Samples(name, 0, spoken, bytes(2 * count), ()))
                self._spoken[name] = spoken + count
            case Submit(_, "asr") | Append() | EndInput() | Cancel() if "hear" in message.request_id:
                begin = time.process_time()
                answers = self._core.handle([message])
                while self._core.busy:
                    answers += self._core.step()
                self._free_s = max(now, self._free_s) + time.process_time() - begin
                self._put(self._free_s, *answers)
            case _:
                pass  # probes, pauses and the ends of scripted requests

    def _put(self, at_s: float, *messages: FromEngine) -> None:
        for message in messages:
            heapq.heappush(self._due, (at_s, next(self._count), message))

    def due(self, now: float) -> Iterator[tuple[float, FromEngine]]:
        """Yield the messages that are due, each with its time."""
        while self._due and self._due[0][0] <= now:
            at_s, _, message = heapq.heappop(self._due)
            yield at_s, message


class Exchange:
    """One reply and one voice over it."""

    def __init__(self, core: Core, cut: Cut, policy: BargePolicy) -> None:
        ear = Ear()
        usual = corpus.at_level(corpus.say(corpus.STORIES[0], cut.voice).sound, USUAL_DB)
        ear.feed(encode_pcm16(np.concatenate([usual, corpus.silence(3.0)])))  # the person has spoken before
        ear.rest()
        config = SessionConfig(barge_in=policy, buffer_s=1.5)
        self._session = Session(f"s{time.monotonic_ns()}", config, ear, speak_rate=SPEAK_RATE, probes=False)
        self._studio = Studio(core)
        self._cut = cut
        self._result = Outcome(cut)
        self._playing, self._since_s = "full", 0.0
        self._begin_s = 0.0  # of the voice
        self._over = False

    def run(self) -> Outcome:
        """Return what happened."""
        now = 100.0
        self._apply(self._session.feed(TextTurn("Tell me a story."), now), now)
        sound = np.concatenate([corpus.silence(BEFORE_S), self._cut.sound, corpus.silence(AFTER_S)])
        self._begin_s = now + BEFORE_S + self._cut.first_s
        data, size = encode_pcm16(sound), 2 * round(FRAME_S * RATE)
        for start in range(0, len(data), size):
            now = round(now + FRAME_S, 6)
            self._wait(now)
            self._apply(self._session.feed(Audio(data[start : start + size]), now), now)
        self._change("full", now)
        return self._result

    def _wait(self, until: float) -> None:
        """Let the engine's messages and the session's own wake-ups happen until then."""
        for at_s, message in self._studio.due(until):
            words = getattr(message, "settled", "") + getattr(message, "tail", "")
            if words:
                self._result.heard.append(f"{(at_s - self._begin_s) * 1e3:.0f}: {words.strip()}")
            self._apply(self._session.feed(message, at_s), at_s)
        self._apply(self._session.feed(Tick(), until), until)

    def _apply(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case SendToEngine(message):
                    self._studio.tell(message, now)
                case Send(Duck()):
                    self._change("ducked", now)
                case Send(Hold()):
                    self._change("muted", now)
                case Send(Release()):
                    self._change("full", now)
                case Send(Interrupted(1)):
                    self._change("full", now)
                    self._result.commit_ms, self._over = self._after_ms(now), True
                case Send(Speech(1)) if self._over:
                    self._result.stale += 1

    def _after_ms(self, now: float) -> float:
        return (now - self._begin_s) * 1e3

    def _change(self, playing: str, now: float) -> None:
        if self._playing == "ducked":
            self._result.ducked_ms += (now - self._since_s) * 1e3
        elif self._playing == "muted":
            self._result.muted_ms += (now - self._since_s) * 1e3
        if playing != "full" and self._result.action_ms < 0:
            self._result.action_ms = self._after_ms(now)
        self._playing, self._since_s = playing, now


def measure(core: Core, cuts: list[Cut], policy: BargePolicy) -> list[Outcome]:
    """Return what each voice did."""
    return [Exchange(core, cut, policy).run() for cut in cuts]


def _spread(values: list[float]) -> list[str]:
    values = values or [float("nan")]
    return [f"{percentile(values, share):.0f}" for share in (0.5, 0.95)]


def _soft_row(name: str, found: list[Outcome]) -> list[str]:
    lost = sum(one.commit_ms >= 0 for one in found)
    lowered, muted = [one.lowered_ms for one in found], [one.muted_ms for one in found]
    return [name, f"{lost} of {len(found)}", *_spread(lowered), *_spread(muted)]


def _meant_rows(name: str, found: list[Outcome]) -> Iterator[list[str]]:
    for kind, some in (("word", [one for one in found if one.short]), ("sentence", [o for o in found if not o.short])):
        missed = sum(one.commit_ms < 0 for one in some)
        acted = _spread([one.action_ms for one in some if one.action_ms >= 0])
        committed = _spread([one.commit_ms for one in some if one.commit_ms >= 0])
        stale = str(sum(one.stale for one in some))
        yield [name, kind, f"{missed} of {len(some)}", *acted, *committed, stale]


def _print(where: str, soft: list[list[str]], meant: list[list[str]]) -> None:
    header = ["hold", "reply lost", "muted or ducked p50", "p95", "muted p50", "p95"]
    table(f"backchannels, {where}: milliseconds for which the reply was not at full loudness", header, soft)
    header = ["hold", "", "missed", "first action p50", "p95", "commit p50", "p95", "stale frames"]
    table(f"interruptions, {where}: milliseconds from the first sound", header, meant)


def report(share: int = 1, listeners: tuple[str, ...] = LISTENERS) -> None:
    """Print both tables for each model that listens, in simulated time; with every `share`-th voice only."""
    for listener in listeners:
        _report(listener, share)


def _report(listener: str, share: int) -> None:
    core = engine(model="", asr_model=listener, threads=1).core
    rows: list[list[str]] = []
    words: list[list[str]] = []
    for name, policy in (("pause", BargePolicy(hold="pause")), ("duck", BargePolicy())):
        soft = measure(core, murmurs()[::share], policy)
        meant = measure(core, interruptions()[::share], policy)
        rows.append(_soft_row(name, soft))
        words += _meant_rows(name, meant)
        wrong = [one for one in soft if one.commit_ms >= 0] + [one for one in meant if one.commit_ms < 0]
        for one in wrong:
            print(f"  {name}: {one.cut.text} {one.cut.voice}: {'; '.join(one.heard)}")
    _print(f"{listener}, simulated time", rows, words)

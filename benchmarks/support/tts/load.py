"""People who listen to voices: each plays from the first packet on and notes arrivals and underruns.

An utterance ends when its listener has enough of it: a voice with random weights never ends. Listeners hear
one utterance after the other, and a Prober asks again and again for a moment of speech.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from support.figures import percentile, quantiles_ms
from support.people import Listener
from support.sessions.engine import Engine, Told
from support.sessions.load import NEWS

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    Priority,
    Refused,
    Samples,
    SpeakParams,
    Submit,
)

FRAME_S = 0.08
UTTERANCE_S = (4.0, 8.0)
PROBE_S = 5 * FRAME_S
PROBE_GAP_S = (0.0, 0.06)
"""How long a prober waits before asking again: random, so that it meets no fixed point of a step."""

EARLY_FRAMES = 12
"""Frames after the first packet that count for the pace: a second of speech. The engine lets a listener who is further
ahead wait, so later times between packets would not show the engine's speed."""


@dataclass(slots=True)
class Utterance(Listener):
    """One utterance as its listener got it. Times are seconds on the listener's clock."""

    name: str
    session: str
    asked_s: float
    wanted_s: float
    arrivals: list[tuple[float, float]] = field(default_factory=list)  # when, and seconds of speech
    margins_s: list[float] = field(default_factory=list)  # sound left before each later packet; below 0: silence
    done: bool = False
    gone_s: float | None = None  # when the engine reported its end

    def take(self, now: float, speech_s: float) -> None:
        """Play a packet after the earlier ones."""
        left_s = self.play(now, speech_s)
        if self.arrivals:
            self.margins_s.append(left_s)
        self.arrivals.append((now, speech_s))

    @property
    def first_s(self) -> float | None:
        """Seconds until the first packet."""
        return self.arrivals[0][0] - self.asked_s if self.arrivals else None

    def frame_times(self) -> list[float]:
        """Return, for every early frame after the first packet, its share of the time since the last packet."""
        times: list[float] = []
        for (before, _), (at, speech_s) in itertools.pairwise(self.arrivals):
            frames = max(1, round(speech_s / FRAME_S))
            times += [(at - before) / frames] * frames
            if len(times) >= EARLY_FRAMES:
                break
        return times

    def pace(self) -> float | None:
        """Return seconds of speech a second after the first packet, over a second of speech; None if there is less."""
        made = 0.0
        for at, speech_s in self.arrivals[1:]:
            made += speech_s
            if made >= EARLY_FRAMES * FRAME_S - FRAME_S / 2:
                return made / max(1e-9, at - self.arrivals[0][0])
        return None


class Voices:
    """All utterances of one engine."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        assert engine.ready is not None
        self.utterances: list[Utterance] = []
        self.failures: list[str] = []
        self.random = random.Random(seed)
        self._engine = engine
        self._rate = engine.ready.speak_rate
        self._open: dict[str, Utterance] = {}

    def say(self, now: float, wanted_s: float, session: str = "") -> Utterance:
        """Submit an utterance."""
        number = len(self.utterances)
        name = f"voice{number}/say"
        utterance = Utterance(name, session, now, wanted_s)
        self.utterances.append(utterance)
        self._open[name] = utterance
        self._engine.receivers[f"voice{number}"] = self._take
        text = " ".join(self.random.sample(NEWS, 2))
        speak = SpeakParams(seed=number)
        submit = Submit(name, "tts", speak=speak, priority=Priority.HIGH, session=session)
        self._engine.send(submit, Append(name, text=text), EndInput(name))
        return utterance

    def end(self) -> None:
        """Cancel all open utterances."""
        for name in self._open:
            self._engine.send(Cancel(name))
        for utterance in self._open.values():
            utterance.done = True

    @property
    def open(self) -> int:
        """The number of utterances that the engine has not ended."""
        return len(self._open)

    def _take(self, message: Told, now: float) -> None:
        utterance = self._open.get(message.request_id)
        if utterance is None:
            return
        match message:
            case Samples(pcm=pcm):
                if not utterance.done:
                    utterance.take(now, len(pcm) / 2 / self._rate)
                    if utterance.speech_s >= utterance.wanted_s - FRAME_S / 2:
                        utterance.done = True
                        self._engine.send(Cancel(utterance.name))
            case Finished(reason=reason):
                self._close(utterance, now, reason)
            case Refused(detail=detail):
                self._close(utterance, now, detail)
            case _:
                pass

    def _close(self, utterance: Utterance, now: float, reason: str) -> None:
        utterance.gone_s = now
        if not utterance.done and reason != "eos":  # a real voice ends by itself
            self.failures.append(f"{utterance.name}: {reason} after {utterance.speech_s:.2f} s of speech")
        utterance.done = True
        self._open.pop(utterance.name)
        self._engine.receivers.pop(utterance.name.partition("/")[0])


@dataclass(slots=True)
class Listeners:
    """People who listen to one utterance after the other: the next is submitted when the last has been heard."""

    voices: Voices
    sessions: Sequence[str]
    begins_s: list[float]  # of each listener: not all at once
    _hearing: dict[str, Utterance] = field(default_factory=dict)

    @classmethod
    def join(cls, voices: Voices, count: int, now: float, within_s: float) -> Listeners:
        """Return this many listeners, who begin one after the other."""
        begins = [now + within_s * voices.random.random() for _ in range(count)]
        return cls(voices, [f"listener{number}" for number in range(count)], begins)

    def tick(self, now: float) -> None:
        """Submit due utterances. The first of each listener is cut short, so that they do not end together."""
        for number, session in enumerate(self.sessions):
            hearing = self._hearing.get(session)
            if hearing is None:
                if now >= self.begins_s[number]:
                    wanted_s = self.voices.random.uniform(1.0, UTTERANCE_S[1])
                    self._hearing[session] = self.voices.say(now, wanted_s, session)
            elif hearing.done and now >= hearing.heard_until_s:
                self._hearing[session] = self.voices.say(now, self.voices.random.uniform(*UTTERANCE_S), session)


@dataclass(slots=True)
class Prober:
    """A person who asks for a moment of speech again and again."""

    voices: Voices
    wanted_s: float = PROBE_S
    _asked: Utterance | None = None
    _next_s: float = 0.0

    def tick(self, now: float) -> None:
        """Ask again, a while after the last utterance ended."""
        if self._asked is not None and self._asked.gone_s is not None:
            self._next_s = self._asked.gone_s + self.voices.random.uniform(*PROBE_GAP_S)
            self._asked = None
        if self._asked is None and now >= self._next_s:
            self._asked = self.voices.say(now, self.wanted_s, "prober")


# ---- figures


@dataclass(frozen=True, slots=True)
class Heard:
    """The figures of the utterances of some time."""

    asked: int
    unserved: int  # no packet ever came
    first_ms: dict[str, float]
    frame_ms: dict[str, float]  # of early frames
    paces: int  # streams asked for in that time with a second of speech after the first packet
    pace_p50: float  # their seconds of speech a second
    pace_min: float  # of the slowest
    listeners: int  # with more audio than a prober
    dry: int  # of these, with an underrun
    underruns: int
    silence_ms: float
    left_ms: dict[str, float]  # sound left when a packet came: half, 95 and 99 in a hundred had as much or more


def heard(utterances: Sequence[Utterance], begin: float, end: float) -> Heard:
    """Return the figures from `begin` to `end`: of packets that came then, and of first packets asked for then."""
    asked = [one for one in utterances if begin <= one.asked_s < end]
    firsts = [one.first_s for one in asked if one.first_s is not None]
    paces = [pace for one in asked if (pace := one.pace()) is not None]
    long = [one for one in utterances if one.wanted_s > PROBE_S and any(begin <= at < end for at, _ in one.arrivals)]
    margins: list[float] = []
    dry = 0
    for one in long:
        own = [margin for (at, _), margin in zip(one.arrivals[1:], one.margins_s, strict=True) if begin <= at < end]
        if not one.done and one.heard_until_s < end:
            own.append(one.heard_until_s - end)  # nothing has come since
        margins += own
        dry += any(margin < 0 for margin in own)
    less = [-margin for margin in margins]
    return Heard(
        asked=len(asked),
        unserved=len(asked) - len(firsts),
        first_ms=quantiles_ms(firsts),
        frame_ms=quantiles_ms([time for one in asked for time in one.frame_times()]),
        paces=len(paces),
        pace_p50=round(percentile(paces, 0.5), 2) if paces else 0.0,
        pace_min=round(min(paces), 2) if paces else 0.0,
        listeners=len(long),
        dry=dry,
        underruns=sum(margin < 0 for margin in margins),
        silence_ms=round(1e3 * sum(max(0.0, -margin) for margin in margins), 1),
        left_ms={f"p{share:g}": round(-1e3 * percentile(less, share / 100), 1) for share in (50, 95, 99) if less},
    )

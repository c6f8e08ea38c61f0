"""Voices among other work: listeners who also interrupt, beside answers being written and speech being transcribed.

Answers and microphones are those of support/sessions/load.py. A person who interrupts says a second of critical speech
and is spoken to again after it. This module takes the times of the interruptions; support/tts/load.py takes those of
the voices.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from support.figures import quantiles_ms
from support.sessions.engine import Engine, Sound, Told
from support.sessions.load import FULL, SMALL, Load
from support.tts.load import Listeners, Utterance, Voices

from voxlane.codecs.pcm import quantise
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane.engine.api import LISTEN_RATE, Append, EndInput, Priority, Refused, Submit, Words

CALL_S = 1.0
"""How long a person who interrupts speaks."""


@dataclass(frozen=True, slots=True)
class Barged:
    """The figures of the interruptions and of the other work."""

    cuts: int
    silence_ms: dict[str, float]  # until the last packet came
    gone_ms: dict[str, float]  # until the engine reported the end
    late: int  # interruptions after which a packet came
    words_ms: dict[str, float]  # until the first words of the critical second
    heard_share: float  # share of interruptions with any words
    tokens_per_s: float  # of the answers


@dataclass(slots=True)
class Mixture:
    """All people and work of the mixed load."""

    engine: Engine
    voices: Voices
    listeners: Listeners
    load: Load
    sound: Sound
    random: random.Random
    failures: list[str] = field(default_factory=list)
    _gap_s: float = 0.0
    _next_s: float = float("inf")  # infinity: no interruptions
    _since_s: float = 0.0
    _written: int = 0  # tokens up to the last begin()
    _calls: int = 0
    _cuts: dict[str, Utterance] = field(default_factory=dict)  # since begin(), by the name of the call
    _words_s: dict[str, float] = field(default_factory=dict)

    def tick(self, now: float) -> None:
        """Send what is due."""
        self.load.tick(now)
        self.listeners.tick(now)
        speaking = self.listeners.speaking(now) if now >= self._next_s else []
        if speaking:
            self._cut_in(self.random.choice(speaking), now)
            self._next_s = max(now, self._next_s + self._gap_s)

    def begin(self, gap_s: float) -> None:
        """Reset the figures, and interrupt once every `gap_s`."""
        self._gap_s, self._since_s = gap_s, time.monotonic()
        self._next_s = self._since_s + gap_s
        self._written = self._tokens()
        self._cuts, self._words_s = {}, {}

    def end(self) -> None:
        """Cancel the other work."""
        self.load.end()
        self.failures += self.load.failures

    def barged(self) -> Barged:
        """Return the figures."""
        cuts = [(one, one.cut_s) for one in self._cuts.values() if one.cut_s is not None]
        return Barged(
            cuts=len(cuts),
            silence_ms=quantiles_ms([max(0.0, one.late_s - cut_s) for one, cut_s in cuts]),
            gone_ms=quantiles_ms([one.gone_s - cut_s for one, cut_s in cuts if one.gone_s is not None]),
            late=sum(one.late_s > 0 for one, _ in cuts),
            words_ms=quantiles_ms(list(self._words_s.values())),
            heard_share=len(self._words_s) / max(1, len(cuts)),
            tokens_per_s=(self._tokens() - self._written) / (time.monotonic() - self._since_s),
        )

    def _tokens(self) -> int:
        return sum(answer.text.count(" ") for answer in self.load.answers.values())  # a word is a token

    def _cut_in(self, utterance: Utterance, now: float) -> None:
        call = f"call{self._calls}"
        self._calls += 1
        self._cuts[call] = utterance
        self.engine.receivers[call] = self._take
        self.voices.cut(utterance, now)
        utterance.heard_until_s = now + CALL_S  # the next utterance begins after the call
        if self.engine.config.asr_model:
            name = f"{call}/hear"
            listen = Submit(name, "asr", priority=Priority.CRITICAL, session=utterance.session)
            self.engine.send(listen, Append(name, audio=self.sound.piece(0, CALL_S)), EndInput(name))

    def _take(self, message: Told, now: float) -> None:
        call = message.request_id.partition("/")[0]
        match message:
            case Words(settled=settled, tail=tail) if (settled or tail) and call in self._cuts:
                cut_s = self._cuts[call].cut_s
                assert cut_s is not None
                self._words_s.setdefault(call, now - cut_s)
            case Refused(detail=detail):
                self.failures.append(detail)
            case _:
                pass


def talk_over(engine: Engine, voices: Voices, sound: Sound, sessions: int, join_s: float, *, small: bool) -> Mixture:
    """Return a mixture of so many listeners, answers and microphones, which begin now."""
    sizes = replace(SMALL if small else FULL, answers=sessions, streams=sessions)
    heard = sound if engine.config.asr_model else None
    load = Load(engine, sizes, heard, talks=False, random=random.Random(7))
    now = time.monotonic()
    load.begin(now)
    return Mixture(engine, voices, Listeners.join(voices, sessions, now, join_s), load, sound, random.Random(13))


def recording(path: Path | None) -> Sound:
    """Return speech from a WAV file, without leading silence; without a file, six seconds of noise in syllables."""
    if path is not None:
        samples, rate = decode_wav(path.read_bytes())
        speech = np.asarray(resample(samples, rate, LISTEN_RATE))
        speech = speech[int(np.argmax(np.abs(speech) > 0.25 * np.abs(speech).max())) :]  # begins with a voice
    else:
        time_s = np.arange(6 * LISTEN_RATE) / LISTEN_RATE
        noise = np.random.default_rng(3).standard_normal(len(time_s))
        speech = 0.1 * noise * np.clip(np.sin(2 * np.pi * 4 * time_s), 0, 1)
    return Sound("", quantise(speech))

"""Recorded calls whose timelines are known, for `voxlane lab score`: synthetic speech, user left, agent right.

A call says who speaks when. `wav_of` turns it into a file: at any rate, in 8, 16 or 24 bits, with noise, an offset,
cross-talk or clipping. Everything is deterministic.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.values import Meaning

Signal = NDArray[np.float64]

MAKING_RATE = 48_000  # voices are made at this rate; a call at another rate takes the values between their samples
VOICE_S = 10.0
HIGHEST_HZ = 3_600.0


@dataclass(frozen=True, slots=True)
class Utterance:
    """Somebody speaks from `at_s` until `until_s`: the sound of a text from `offset_s` on."""

    at_s: float
    until_s: float
    text: int = 1  # which sound: the same number is the same sound
    offset_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be found for a step. Milliseconds are met within 20."""

    means: Meaning
    at_s: float
    until_s: float
    figures: dict[str, float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call, and how it must be judged."""

    name: str
    seconds: float
    person: tuple[Utterance, ...]
    agent: tuple[Utterance, ...]
    steps: tuple[Expected, ...]

    def labels(self) -> str:
        """Return the labels file of the call, as a person would write it: to a twentieth of a second."""
        lines = []
        for step in self.steps:
            at, until = round(step.at_s * 20) / 20, round(step.until_s * 20) / 20
            lines.append(f'[[step]]\nat_s = {at}\nuntil_s = {until}\nmeans = "{step.means}"\n')
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class LineQuality:
    """How a call was recorded."""

    rate: int = 16_000
    bits: int = 16
    person_db: float = -23.0  # RMS of the voice in dB of full scale
    agent_db: float = -23.0
    noise_db: float | None = None  # white noise in both channels
    offset: float = 0.0  # a constant, as a part of full scale
    crosstalk_db: float | None = None  # each channel in the other
    crosstalk_delay_ms: float = 0.0
    clip: float = 1.0  # the loudest value the recorder keeps


GOOD_LINE = LineQuality()
LINES = {
    "16 kHz": GOOD_LINE,
    "8 kHz in 8 bits": LineQuality(rate=8_000, bits=8, person_db=-17, agent_db=-17),
    "44.1 kHz in 24 bits with an offset": LineQuality(rate=44_100, bits=24, offset=0.05),
    "48 kHz with cross-talk": LineQuality(rate=48_000, crosstalk_db=-30),
    "16 kHz with a late echo": LineQuality(crosstalk_db=-24, crosstalk_delay_ms=90),
    "8 kHz and noise": LineQuality(rate=8_000, noise_db=-45),
    "24 kHz and clipped": LineQuality(rate=24_000, person_db=-10, agent_db=-10, clip=0.5),
    "a quiet person": LineQuality(person_db=-42, agent_db=-20),
    "a quiet agent and noise": LineQuality(rate=22_050, agent_db=-45, noise_db=-68),
}

STORY, ANSWER, SECOND_ANSWER = 1, 2, 3
ASKS = Utterance(0.5, 1.7, text=11)
ASKED = Expected("turn", 0.5, 1.7, {"response_ms": 600, "unanswered": False, "answered_twice": False})


def _told(until_s: float) -> Utterance:
    """The agent tells its story from 2.3 s on: 600 ms after the question."""
    return Utterance(2.3, until_s, STORY)


STOPS = Utterance(5.0, 6.2, text=12)
MHM = Utterance(5.0, 5.35, text=13)


def _stop(**figures: float | bool | None) -> Expected:
    return Expected("stop", 5.0, 6.2, dict(figures))


def _mhm(**figures: float | bool | None) -> Expected:
    return Expected("nothing", 5.0, 5.35, dict(figures))


def _answer(at_s: float, seconds: float = 2.0) -> Utterance:
    return Utterance(at_s, at_s + seconds, ANSWER)


CALLS = (
    RecordedCall(
        "a good stop", 11.0, (ASKS, STOPS), (_told(5.3), _answer(6.9)),
        (ASKED, _stop(yield_ms=300, talk_over_ms=300, response_ms=700, stale_ms=0, missed=False, unanswered=False,
                      answered_twice=False)),
    ),
    RecordedCall(
        "a slow yield", 12.0, (ASKS, Utterance(5.0, 7.0, 12)), (_told(6.6), _answer(7.8)),
        (ASKED, Expected("stop", 5.0, 7.0, {"yield_ms": 1600, "talk_over_ms": 1600, "response_ms": 800, "stale_ms": 0,
                                           "missed": False})),
    ),
    RecordedCall(
        "talks over", 14.0, (ASKS, STOPS), (_told(10.5),),
        (ASKED, _stop(yield_ms=None, talk_over_ms=1200, missed=True, stale_ms=0)),
    ),
    RecordedCall(
        "mhm is ignored", 12.0, (ASKS, MHM), (_told(10.0),),
        (ASKED, _mhm(false_stop=False, pause_ms=0)),
    ),
    RecordedCall(
        "mhm stops the agent", 14.0, (ASKS, MHM), (_told(5.5),),
        (ASKED, _mhm(false_stop=True)),
    ),
    RecordedCall(
        "a pause for mhm", 12.0, (ASKS, MHM), (_told(5.2), Utterance(6.05, 10.0, STORY, 2.9)),
        (ASKED, _mhm(false_stop=False, pause_ms=850)),
    ),
    RecordedCall(
        "a burst of stale sound", 13.0, (ASKS, Utterance(5.0, 7.0, 12)),
        (_told(5.3), Utterance(5.8, 6.3, STORY, 3.0), _answer(7.8)),
        (ASKED, Expected("stop", 5.0, 7.0, {"yield_ms": 300, "stale_ms": 500, "response_ms": 800, "missed": False})),
    ),
    RecordedCall(
        "stale sound after the turn", 13.0, (ASKS, STOPS),
        (_told(5.3), Utterance(6.26, 6.76, STORY, 3.0), _answer(7.2)),
        (ASKED, _stop(yield_ms=300, stale_ms=500, response_ms=1000, answered_twice=False, unanswered=False)),
    ),
    RecordedCall(
        "an answer of two sentences", 13.0, (ASKS, STOPS),
        (_told(5.3), _answer(6.7, 0.8), Utterance(7.95, 10.0, ANSWER, 0.8)),
        (ASKED, _stop(yield_ms=300, response_ms=500, answered_twice=False, unanswered=False, stale_ms=0)),
    ),
    RecordedCall(
        "a pause between two sentences", 14.0, (ASKS, MHM), (_told(8.0), Utterance(8.45, 11.0, STORY, 5.7)),
        (ASKED, _mhm(false_stop=False, pause_ms=0)),
    ),
    RecordedCall(
        "answers twice", 14.0, (ASKS, STOPS), (_told(5.3), _answer(6.9, 1.5), Utterance(9.2, 10.7, SECOND_ANSWER)),
        (ASKED, _stop(yield_ms=300, response_ms=700, answered_twice=True, unanswered=False)),
    ),
    RecordedCall(
        "never answers", 18.0, (ASKS, STOPS), (_told(5.3),),
        (ASKED, _stop(yield_ms=300, response_ms=None, unanswered=True, answered_twice=False)),
    ),
    RecordedCall(
        "cuts the person off", 10.0, (Utterance(0.5, 1.7, 11), Utterance(2.7, 3.7, 14)),
        (Utterance(2.2, 2.9, 4), _answer(4.4)),
        (Expected("turn", 0.5, 3.7, {"cut_off": True, "split_turns": 2, "response_ms": 700}),),
    ),
    RecordedCall(
        "waits in a pause", 10.0, (Utterance(0.5, 1.7, 11), Utterance(2.7, 3.7, 14)), (_answer(4.4),),
        (Expected("turn", 0.5, 3.7, {"cut_off": False, "split_turns": 1, "response_ms": 700}),),
    ),
    RecordedCall(
        "two interruptions", 16.0, (ASKS, STOPS, Utterance(8.0, 9.0, 15)),
        (_told(5.3), Utterance(6.9, 8.4, ANSWER), Utterance(9.8, 11.8, SECOND_ANSWER)),
        (ASKED, _stop(yield_ms=300, response_ms=700, stale_ms=0),
         Expected("stop", 8.0, 9.0, {"yield_ms": 400, "talk_over_ms": 400, "response_ms": 800, "stale_ms": 0})),
    ),
    RecordedCall(
        "mhm, then stop", 15.0, (ASKS, MHM, Utterance(7.5, 8.5, 12)), (_told(7.9), _answer(9.2)),
        (ASKED, _mhm(false_stop=False, pause_ms=0),
         Expected("stop", 7.5, 8.5, {"yield_ms": 400, "talk_over_ms": 400, "response_ms": 700})),
    ),
    RecordedCall("the agent alone", 8.0, (), (Utterance(1.0, 6.0, STORY),), ()),
    RecordedCall(
        "the person alone", 15.0, (ASKS,), (),
        (Expected("turn", 0.5, 1.7, {"unanswered": True, "response_ms": None, "yield_ms": None}),),
    ),
    RecordedCall(
        "a fast answer", 8.0, (ASKS,), (Utterance(1.95, 5.0, ANSWER),),
        (Expected("turn", 0.5, 1.7, {"unanswered": False, "response_ms": 250, "answered_twice": False}),),
    ),
)  # fmt: skip


@cache
def voice(text: int, pitch: float) -> Signal:
    """Return VOICE_S of connected syllables at MAKING_RATE with an RMS of 1: harmonics under formants that move."""
    generator = np.random.default_rng(text)
    at = np.arange(round(VOICE_S * MAKING_RATE)) / MAKING_RATE
    lengths = generator.uniform(0.12, 0.26, round(VOICE_S / 0.12) + 2)
    ends = np.cumsum(lengths)
    syllable = np.searchsorted(ends, at)
    within = np.clip(1 - (ends[syllable] - at) / lengths[syllable], 0.0, 1.0)
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * 0.9 * at + text))) / MAKING_RATE
    formants = generator.uniform((300, 900, 2200), (800, 1900, 2900), (len(lengths), 3))
    sound = np.zeros(len(at))
    wave, before, twice = np.sin(phase), np.zeros(len(at)), 2 * np.cos(phase)
    for harmonic in range(1, int(HIGHEST_HZ / pitch)):
        distance = (harmonic * pitch - formants) / (120, 160, 220)
        gains = 0.05 + (1 / (1 + distance**2)) @ np.array((1.0, 0.6, 0.3))
        sound += wave * gains[syllable]
        wave, before = twice * wave - before, wave  # the next harmonic's sine
    sound *= 0.12 + 0.88 * np.sin(np.pi * within) ** 0.7
    return np.asarray(sound / np.sqrt(np.mean(sound**2)))


def wav_of(call: RecordedCall, line: LineQuality = GOOD_LINE) -> bytes:
    """Return the recording of a call: a WAV file, user left, agent right."""
    person = _track(call.person, call.seconds, pitch=190.0, level_db=line.person_db)
    agent = _track(call.agent, call.seconds, pitch=115.0, level_db=line.agent_db)
    if line.crosstalk_db is not None:
        shift = round(line.crosstalk_delay_ms / 1000 * MAKING_RATE)
        gain = 10 ** (line.crosstalk_db / 20)
        person, agent = person + gain * _later(agent, shift), agent + gain * _later(person, shift)
    both = np.stack([_at_rate(track, line.rate) for track in (person, agent)], axis=1)
    if line.noise_db is not None:
        both = both + np.random.default_rng(99).normal(0, 10 ** (line.noise_db / 20), both.shape)
    both = np.clip(both, -line.clip, line.clip) + line.offset
    return wav(both, line.rate, line.bits)


def wav(samples: Signal, rate: int, bits: int = 16) -> bytes:
    """Return a PCM WAV file of (frames, channels)."""
    width, channels = bits // 8, samples.shape[1]
    body = _encoded(np.clip(samples, -1.0, 1.0), bits)
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * width, channels * width, bits)
    chunks = struct.pack("<4sI", b"fmt ", 16) + form + struct.pack("<4sI", b"data", len(body)) + body
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks


def _encoded(samples: Signal, bits: int) -> bytes:
    if bits == 8:
        return bytes(np.clip(np.rint(samples * 128) + 128, 0, 255).astype(np.uint8).tobytes())
    whole = np.clip(np.rint(samples * 2.0 ** (bits - 1)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype("<i4")
    return whole.view(np.uint8).reshape(*whole.shape, 4)[..., : bits // 8].tobytes()


def _track(utterances: tuple[Utterance, ...], seconds: float, *, pitch: float, level_db: float) -> Signal:
    track = np.zeros(round(seconds * MAKING_RATE))
    for one in utterances:
        length = one.until_s - one.at_s
        sound = voice(one.text, pitch)[round(one.offset_s * MAKING_RATE) :][: round(length * MAKING_RATE)]
        at = round(one.at_s * MAKING_RATE)
        track[at : at + len(sound)] = sound
    return track * 10 ** (level_db / 20)


def _later(track: Signal, shift: int) -> Signal:
    return np.concatenate((np.zeros(shift), track))[: len(track)]


def _at_rate(track: Signal, rate: int) -> Signal:
    """Return the track at another rate. The voices hold nothing above 4 kHz, so linear steps are good enough."""
    at = np.arange(round(len(track) / MAKING_RATE * rate)) * (MAKING_RATE / rate)
    return np.asarray(np.interp(at, np.arange(len(track)), track))

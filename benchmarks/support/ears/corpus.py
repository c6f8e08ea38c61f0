"""Speech, noise and rooms for ears.py: everything is made here, offline, from fixed seeds.

Sound is float32 in [-1, 1] at 16 kHz. Clips that take long to make are kept in `build/ears`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.weights import store

Sound = NDArray[np.float32]

RATE = 16_000
KEPT = Path(__file__).parents[3] / "build" / "ears"

VOICES = (
    "af_heart", "am_michael", "bf_emma", "bm_george", "af_bella", "am_fenrir",
    "bf_isabella", "bm_fable", "af_nicole", "am_puck",
)  # fmt: skip
"""Ten of Kokoro's voices: women and men, American and British."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text as a voice says it, and where each of its words lies in the sound."""

    text: str
    sound: Sound
    words: tuple[tuple[str, float, float], ...]  # word, start and end in seconds


@cache
def _kokoro() -> Kokoro:
    return Kokoro(Path(store.resolve("kokoro-82m")), threads=1)


def say(text: str, voice: str = VOICES[0], speed: float = 1.0) -> Spoken:
    """Return a text in one of Kokoro's voices, at about -23 dBFS."""
    key = hashlib.sha256(json.dumps([text, voice, speed]).encode()).hexdigest()[:24]
    path = KEPT / f"{key}.npz"
    if path.is_file():
        with np.load(path) as kept:
            words = json.loads(str(kept["words"]))
            return Spoken(
                text, kept["sound"].astype(np.float32) / np.float32(32768), tuple((w, a, b) for w, a, b in words)
            )
    model = _kokoro()
    clause = model.synthesise(model.prepare(text, voice=voice), voice=voice, speed=speed)
    sound = resample(clause.samples, model.sample_rate, RATE)
    sound = at_level(sound, -23.0)
    rate = model.sample_rate
    words = [(text[w.source_start : w.source_end], w.start_sample / rate, w.end_sample / rate) for w in clause.words]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{id(sound)}.tmp.npz")
    np.savez(part, sound=np.round(sound * 32767).astype(np.int16), words=json.dumps(words))
    part.rename(path)
    return Spoken(text, np.round(sound * 32767).astype(np.int16).astype(np.float32) / np.float32(32768), tuple(words))


def resample(sound: Sound, rate: int, to: int) -> Sound:
    """Return a whole clip at another sample rate."""
    result: Sound = functional.resample(torch.from_numpy(np.ascontiguousarray(sound)), rate, to).numpy()
    return result


def silence(seconds: float) -> Sound:
    """Return silence with the faint noise that every microphone has, at -75 dBFS."""
    chance = np.random.default_rng(round(seconds * 1000))
    return chance.normal(0, 10 ** (-75 / 20), round(seconds * RATE)).astype(np.float32)


def loudness(sound: Sound) -> float:
    """Return the level of a clip's loud parts in dB of full scale: of the 20 ms frames within 25 dB of the loudest."""
    frames = sound[: len(sound) // 320 * 320].reshape(-1, 320).astype(np.float64)
    power = (frames**2).mean(axis=1)
    loud = power[power > power.max() * 10**-2.5]
    return float(10 * np.log10(loud.mean() + 1e-12))


def at_level(sound: Sound, db: float) -> Sound:
    """Return a clip whose loudness is `db`, clipped at full scale."""
    result: Sound = np.clip(sound * 10 ** ((db - loudness(sound)) / 20), -1, 1).astype(np.float32)
    return result


def white(seconds: float, seed: int = 1) -> Sound:
    """Return white noise."""
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * RATE)).astype(np.float32)


def room(sound: Sound, seed: int = 1, decay_s: float = 0.5, direct: float = 1.0) -> Sound:
    """Return a clip in a room: direct sound, then a diffuse tail that falls by 60 dB in `decay_s`."""
    chance = np.random.default_rng(seed)
    time = np.arange(round(decay_s * RATE)) / RATE
    response = chance.normal(0, 1, len(time)) * np.exp(-6.9 * time / decay_s)
    response[: round(0.004 * RATE)] = 0
    response /= np.sqrt((response**2).sum())
    response[0] = direct
    wet = functional.fftconvolve(torch.from_numpy(sound), torch.from_numpy(response.astype(np.float32))).numpy()
    return at_level(wet[: len(sound)], loudness(sound))


def telephone(sound: Sound) -> Sound:
    """Return a clip through a telephone: 300 to 3,400 Hz, 8 kHz, mu-law."""
    line = functional.highpass_biquad(torch.from_numpy(resample(sound, RATE, 8000)), 8000, 300.0)
    coded = functional.mu_law_encoding(line.clamp(-1, 1), 256)
    return resample(functional.mu_law_decoding(coded, 256).numpy(), 8000, RATE)[: len(sound)]


STORIES = (
    "The old lighthouse had stood on the cliff for a hundred and fifty years, and nobody in the village could remember"
    " a night when its lamp had not been lit.",
    "Earlier today the city council voted to close the central bridge for repairs, which means that buses will take the"
    " northern route until the end of next month.",
    "If you plant the bulbs in October, water them once, and cover them with leaves, they will flower in the second"
    " week of March, long before anything else in the garden.",
    "The second half began with a long pass down the left side, and before the keeper could turn around the ball was"
    " already lying in the net behind him.",
    "She opened the letter slowly, read the first line twice, and then put it back on the table without saying a word"
    " to anybody in the room.",
    "Prices rose again last week, mostly for bread and milk, while fuel became a little cheaper for the third month in"
    " a row, the statistics office said.",
    "In the mountains the weather changes within minutes, so take a warm jacket, a map on paper, and enough water for"
    " the way back, even on a sunny morning.",
    "The train to the coast leaves from platform four, stops at every small station on the way, and arrives a quarter"
    " of an hour after the last ferry has gone.",
)
"""What televisions and assistants talk about here."""


@cache
def talk(seconds: float, voice: str, first: int = 0) -> Sound:
    """Return continuous speech of one voice."""
    parts: list[Sound] = []
    place = first
    while sum(map(len, parts)) < seconds * RATE:
        parts += [say(STORIES[place % len(STORIES)], voice).sound, silence(0.35)]
        place += 1
    return np.concatenate(parts)[: round(seconds * RATE)]


@cache
def babble(seconds: float, voices: int = 8) -> Sound:
    """Return a crowd: so many voices at once."""
    crowd = [np.roll(talk(seconds, VOICES[n % len(VOICES)], n), n * RATE) for n in range(voices)]
    result: Sound = (np.sum(crowd, axis=0) / voices).astype(np.float32)
    return result

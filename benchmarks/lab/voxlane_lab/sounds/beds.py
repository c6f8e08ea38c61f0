"""Noise beds: sound behind the person for a whole call. Every one is made from a seed. Pure.

`cafe` and `television` are made of speech; `bed_wanted` says which clips have to be prepared for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from voxlane_lab.errors import LabError, quote
from voxlane_lab.sounds.intervals import CLIP_DB, as_sound, levelled
from voxlane_lab.sounds.shaping import (
    Sound,
    added,
    at_rms,
    band,
    drift,
    in_room,
    resonant,
    samples_of,
    swell,
    tilted,
    times,
    white,
)
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.sounds.tunes import tune
from voxlane_lab.values import USER_RATE, Clip, Pcm

BEDS: dict[str, str] = {
    "white": "white noise",
    "pink": "pink noise: each octave as strong as the next",
    "hum": "mains hum and a fan",
    "cafe": "a crowd of twelve, and cups",
    "street": "traffic that passes, and now and then a horn",
    "television": "a newsreader with music below",
    "music": "hold music",
}
"""Name and what it is."""

_TABLES = (
    (
        "af_sarah",
        "So we went back to the hotel, and there was nobody at the desk, can you believe that, at ten o'clock.",
    ),
    ("am_puck", "No, the other one, the red one near the station, they closed it last year and nobody knows why."),
    ("bf_isabella", "My sister bought the same coat in the spring, only cheaper, and she has never worn it since."),
    ("bm_fable", "If the meeting is on Thursday I cannot come, but ask him anyway, he likes to be asked about it."),
    (
        "af_aoede",
        "And then the dog ran straight into the kitchen and ate the whole cake, with the candles still burning.",
    ),
    ("am_adam", "It takes about two hours by train, or three if you have to change, and the view is wonderful."),
)
"""Who talks in the café, and what is said."""

_READERS = ("bm_george", "af_bella")
_NEWS: tuple[str | float, ...] = (
    "Earlier today the city council voted to close the central bridge for repairs until the end of next month.",
    0.4,
    "Prices rose again last week, mostly for bread and milk, while fuel became a little cheaper.",
    0.35,
    "And now to the weather: after a cold night the fog will lift by noon, with sunshine in the south.",
    0.5,
)


def bed_wanted(name: str) -> list[Wanted]:
    """Return the clips of speech that a bed is made of; raise LabError if there is no such bed."""
    if name not in BEDS:
        raise LabError(f"there is no bed {quote(name)}: use one of {', '.join(BEDS)}")
    if name == "cafe":
        return [Wanted((text,), voice) for voice, text in _TABLES]
    if name == "television":
        return [news(0)]
    return []


def news(seed: int) -> Wanted:
    """Return what is said on television, in one of two voices."""
    return Wanted(_NEWS, _READERS[seed % len(_READERS)])


def make_bed(name: str, count: int, chance: Generator, speech: Sequence[Clip]) -> Pcm:
    """Return so many samples of a bed of BEDS at an RMS of CLIP_DB."""
    match name:
        case "white":
            sound = white(chance, count)
        case "pink":
            sound = tilted(chance, count, -3.0103)
        case "hum":
            sound = _hum(chance, count)
        case "street":
            sound = _street(chance, count)
        case "music":
            sound = tune(chance, count)
        case "cafe":
            sound = _cafe(chance, count, speech)
        case _:
            sound = television(chance, count, speech[0])
    return levelled(sound, ((0, count),), CLIP_DB)


def _hum(chance: Generator, count: int) -> Sound:
    """Return the mains' harmonics over the noise of a fan."""
    mains = 50.0 if chance.random() < 0.5 else 60.0
    time = times(count)
    sound = np.zeros(count)
    for harmonic in range(1, 13):
        strength = chance.uniform(0.4, 1.0) / harmonic * (1.0 if harmonic % 2 == 0 else 0.7)
        sound += strength * np.sin(2 * np.pi * mains * harmonic * time + chance.uniform(0, 2 * np.pi))
    fan = band(tilted(chance, count, -4.0), 60, 4000) * (1 + 0.1 * drift(chance, count, 0.5))
    return at_rms(sound, 1.0) + at_rms(fan, 0.7)


def _street(chance: Generator, count: int) -> Sound:
    """Return the rumble of a town, cars that come and go, and a horn about every forty seconds."""
    seconds = count / USER_RATE
    rumble = band(tilted(chance, count, -6.0, 60.0), 40, 900)
    sound = at_rms(rumble, 1.0) * (1 + 0.2 * drift(chance, count, 0.3))
    passing: list[tuple[float, Sound]] = []
    for _ in range(int(chance.poisson(seconds / 4)) + 1):
        long_s = chance.uniform(3.0, 7.0)
        car = _car(chance, samples_of(long_s)) * 10 ** (chance.uniform(-4, 6) / 20)
        passing.append((chance.uniform(0, max(0.1, seconds - long_s / 2)), car))
    passing += [(chance.uniform(0, seconds), _horn(chance)) for _ in range(int(chance.poisson(seconds / 40)))]
    return in_room(sound + added(count, passing), chance, 0.6, 0.1)[:count]


def _car(chance: Generator, count: int) -> Sound:
    """Return a car that passes: tyres hiss, the engine drones, both loudest in the middle."""
    middle = count * chance.uniform(0.4, 0.6) / USER_RATE
    width = count / USER_RATE / 6
    shape = 1 / (1 + ((times(count) - middle) / width) ** 2) * swell(count, 0.8, 0.8)
    tyres = at_rms(band(tilted(chance, count, -3.0, 400.0), 300, 4500), 1.0)
    # The pitch falls as it passes, by a tenth.
    pitch = chance.uniform(55, 110) * (1 - 0.05 * np.tanh((times(count) - middle) / width))
    turn = 2 * np.pi * np.cumsum(pitch) / USER_RATE
    drone = sum((np.sin(turn * harmonic) / harmonic for harmonic in range(1, 7)), np.zeros(count))
    return shape * (tyres + at_rms(drone, 0.8))


def _horn(chance: Generator) -> Sound:
    """Return a horn of two tones, some way off."""
    count = samples_of(chance.uniform(0.2, 0.7))
    low = chance.uniform(370, 440)
    tones = np.zeros(count)
    for pitch in (low, low * 1.25):
        for harmonic in range(1, 10):
            tones += np.sin(2 * np.pi * pitch * harmonic * times(count)) / harmonic
    return 1.5 * at_rms(band(tones, 300, 4000), 1.0) * swell(count, 0.02, 0.06)


def _cafe(chance: Generator, count: int, speech: Sequence[Clip]) -> Sound:
    """Return a crowd: every talker twice, at another place of a loop, some near and some far; and cups."""
    crowd = np.zeros(count)
    for clip in [*speech, *speech]:
        talk = as_sound(clip.pcm)
        # Loops of different lengths never meet in the same way again.
        loop = np.concatenate([talk, np.zeros(samples_of(chance.uniform(0.3, 2.5)))])
        shifted = np.roll(loop, int(chance.integers(len(loop))))
        crowd += np.resize(shifted, count) * 10 ** (chance.uniform(-9, 0) / 20)
    crowd = at_rms(crowd, 1.0)
    seconds = count / USER_RATE
    cups = [(chance.uniform(0, seconds), _cup(chance)) for _ in range(int(chance.poisson(seconds / 2.5)))]
    room = at_rms(band(tilted(chance, count, -4.0), 60, 3000), 0.12)
    return band(in_room(crowd + added(count, cups), chance, 0.7, 0.6)[:count], 120, 6500) + room


def _cup(chance: Generator) -> Sound:
    """Return china that touches china."""
    size = chance.uniform(0.8, 1.3)
    modes = [(2150 * size, 25, 1.0), (3480 * size, 30, 0.8), (5120 * size, 45, 0.5), (6300 * size, 60, 0.3)]
    hit = white(chance, samples_of(0.001))
    sound = resonant(hit, [(f, width, gain / width) for f, width, gain in modes if f < 7500])
    result: Sound = sound / np.abs(sound).max() * 10 ** (chance.uniform(-12, 0) / 20)
    return result


def television(chance: Generator, count: int, reader: Clip) -> Sound:
    """Return a newsreader again and again, with quiet music below, out of a small loudspeaker in a living room."""
    talk = np.resize(np.roll(as_sound(reader.pcm), -int(chance.integers(len(reader.pcm)))), count)
    voice = talk / 10 ** (CLIP_DB / 20)
    mixed = voice + 0.2 * tune(chance, count)
    return in_room(band(mixed, 180, 6500), chance, 0.35, 0.25)[:count]

"""Music for people on hold: chords, a bass and a melody, composed from a seed. Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Generator

from voxlane_lab.sounds.shaping import Sound, added, at_rms, band, in_room, samples_of, times

_PROGRESSIONS = ((0, 5, 3, 4), (0, 3, 1, 4), (5, 3, 0, 4), (0, 4, 5, 3))  # steps of the scale
_MAJOR = (0, 2, 4, 5, 7, 9, 11)
_BEATS = 4  # of a bar; a chord lasts a bar


def tune(chance: Generator, count: int) -> Sound:
    """Return so many samples of music without a break, RMS 1."""
    beat_s = 60 / chance.uniform(84, 112)
    key = 48 + int(chance.integers(0, 12))  # a MIDI note between C3 and B3
    chords = _PROGRESSIONS[int(chance.integers(len(_PROGRESSIONS)))]
    # The music is made longer and then cut: it has no end of its own.
    bars = int(count / samples_of(beat_s * _BEATS)) + 2
    length = count + samples_of(4 * beat_s * _BEATS)
    notes: list[tuple[float, Sound]] = []
    step = 4
    for bar in range(bars):
        root, at_s = chords[bar % len(chords)], bar * _BEATS * beat_s
        notes += _chord(key, root, at_s, beat_s)
        for beat in range(_BEATS * 2):  # the melody moves in quavers
            if chance.random() < 0.35:
                continue
            near = root + (0, 2, 4)[int(chance.integers(3))] if beat % 4 == 0 else step + int(chance.integers(-2, 3))
            step = int(np.clip(near, -1, 9))
            pitch = _hertz(key + 12, step)
            notes.append((at_s + beat * beat_s / 2, 0.5 * _pluck(pitch, beat_s * 1.2, brightness=0.6)))
    wet = in_room(added(length, notes), chance, 0.9, 0.15)
    return at_rms(band(wet, 60, 7000)[:count], 1.0)


def _chord(key: int, root: int, at_s: float, beat_s: float) -> list[tuple[float, Sound]]:
    """Return a bar: a held chord, broken on every beat, above its bass."""
    held = [(at_s, 0.16 * _pad(_hertz(key, root + third), beat_s * _BEATS)) for third in (0, 2, 4)]
    bass = [(at_s + beat * beat_s, 0.5 * _pluck(_hertz(key - 12, root), beat_s * 1.8, 0.3)) for beat in (0, 2)]
    order = (0, 2, 4, 2)
    broken = [
        (at_s + beat * beat_s, 0.3 * _pluck(_hertz(key, root + order[beat]), beat_s * 1.5, 0.45))
        for beat in range(_BEATS)
    ]
    return held + bass + broken


def _hertz(key: int, step: int) -> float:
    """Return the frequency of a step of the major scale on a key."""
    octave, place = divmod(step, len(_MAJOR))
    return float(440.0 * 2 ** ((key + 12 * octave + _MAJOR[place] - 69) / 12))


@lru_cache(maxsize=128)
def _pluck(pitch: float, seconds: float, brightness: float) -> Sound:
    """Return a plucked string: its higher partials are weaker and fade sooner."""
    time = times(samples_of(seconds))
    sound = np.zeros(len(time))
    for partial in range(1, 9):
        if partial * pitch > 7000:
            break
        fade = np.exp(-time * (2.0 + 1.6 * partial))
        sound += brightness ** (partial - 1) * fade * np.sin(2 * np.pi * partial * pitch * time)
    return sound * np.minimum(1, time / 0.004) * np.minimum(1, (seconds - time) / 0.03)


@lru_cache(maxsize=64)
def _pad(pitch: float, seconds: float) -> Sound:
    """Return a held note of two voices that are slightly out of tune."""
    time = times(samples_of(seconds * 1.1))
    sound = np.zeros(len(time))
    for detuned, start in ((pitch * 0.9985, 0.4), (pitch * 1.0015, 2.9)):
        for partial in range(1, 6):
            sound += np.sin(2 * np.pi * partial * detuned * time + partial * start) / partial**2
    return sound * np.clip(time / 0.08, 0, 1) * np.clip((seconds * 1.1 - time) / 0.15, 0, 1)

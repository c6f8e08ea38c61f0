"""Signal processing for sounds that are made: noise, resonances, bands, envelopes. Float samples at USER_RATE. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from voxlane_lab.values import USER_RATE

Sound = NDArray[np.float64]
"""Samples at USER_RATE; full scale is 1."""

RING_S = 0.25
"""How long a resonance may ring behind the end of its input; what rings longer is cut."""


def samples_of(seconds: float) -> int:
    """Return how many samples a time is."""
    return round(seconds * USER_RATE)


def times(count: int) -> Sound:
    """Return the time of each sample in seconds."""
    return np.arange(count) / USER_RATE


def white(chance: Generator, count: int) -> Sound:
    """Return white noise of RMS 1."""
    return chance.standard_normal(count)


def tilted(chance: Generator, count: int, db_per_octave: float, knee_hz: float = 20.0) -> Sound:
    """Return noise of RMS 1 whose spectrum falls by so much an octave above the knee; -3 dB is pink."""
    padded = _fast_size(count)
    frequency = np.maximum(np.fft.rfftfreq(padded, 1 / USER_RATE), knee_hz)
    shape = (frequency / knee_hz) ** (db_per_octave / 6.0206)
    shape[0] = 0.0
    sound: Sound = np.fft.irfft(np.fft.rfft(white(chance, padded)) * shape, padded)[:count]
    return at_rms(sound, 1.0)


def band(sound: Sound, low_hz: float, high_hz: float, octaves: float = 0.5) -> Sound:
    """Return what lies between two frequencies; the edges are soft: they fall to nothing within so many octaves."""
    padded = _fast_size(len(sound) + samples_of(0.05))
    frequency = np.maximum(np.fft.rfftfreq(padded, 1 / USER_RATE), 1e-3)
    above = np.clip(np.log2(frequency / low_hz) / octaves + 1, 0, 1)
    below = np.clip(np.log2(high_hz / frequency) / octaves + 1, 0, 1)
    gain = np.sin(above * np.pi / 2) ** 2 * np.sin(below * np.pi / 2) ** 2
    return np.fft.irfft(np.fft.rfft(sound, padded) * gain, padded)[: len(sound)]


def resonant(sound: Sound, modes: Sequence[tuple[float, float, float]], ring_s: float = RING_S) -> Sound:
    """Return a sound through resonances side by side: frequency, bandwidth and gain at the peak of each.

    The result is longer by `ring_s`: a resonance rings on when its input has ended.
    """
    count = len(sound) + samples_of(ring_s)
    padded = _fast_size(count + samples_of(ring_s))
    delay = np.exp(-2j * np.pi * np.fft.rfftfreq(padded))
    response = np.zeros(len(delay), np.complex128)
    for frequency, bandwidth, gain in modes:
        radius = np.exp(-np.pi * bandwidth / USER_RATE)
        turn = 2 * np.pi * frequency / USER_RATE
        # A zero at 0 Hz and one at the Nyquist frequency keep each resonance to its own band.
        zeros, poles = 1 - delay**2, 1 - 2 * radius * np.cos(turn) * delay + (radius * delay) ** 2
        response += gain * (1 - radius) * zeros / poles
    return np.fft.irfft(np.fft.rfft(sound, padded) * response, padded)[:count]


def envelope(count: int, *points: tuple[float, float]) -> Sound:
    """Return a gain for each sample: straight lines in dB between (seconds, dB), as ears hear it; silent below -80."""
    gain_db = np.interp(times(count), [at for at, _ in points], [level for _, level in points])
    return np.where(gain_db <= -80, 0.0, 10 ** (gain_db / 20))


def swell(count: int, rise_s: float, fall_s: float) -> Sound:
    """Return a gain that rises from nothing, stays at one and falls to nothing, along halves of a cosine."""
    time = times(count)
    rise = np.clip(time / max(rise_s, 1e-6), 0, 1)
    fall = np.clip(((count - 1) / USER_RATE - time) / max(fall_s, 1e-6), 0, 1)
    result: Sound = np.sin(rise * np.pi / 2) ** 2 * np.sin(fall * np.pi / 2) ** 2
    return result


def drift(chance: Generator, count: int, per_s: float) -> Sound:
    """Return a smooth random curve of RMS 1 that changes about so often a second."""
    knots = max(4, int(count / USER_RATE * per_s) + 4)
    place = np.linspace(0, knots - 1, count)
    left, share = place.astype(int).clip(0, knots - 2), place - place.astype(int).clip(0, knots - 2)
    values = chance.standard_normal(knots)
    soft = (1 - np.cos(np.pi * share)) / 2
    result: Sound = values[left] * (1 - soft) + values[left + 1] * soft
    return result


def added(length: int, pieces: Sequence[tuple[float, Sound]]) -> Sound:
    """Return pieces laid over each other, each at its second; what lies outside is cut."""
    result = np.zeros(length)
    for at_s, piece in pieces:
        start = samples_of(at_s)
        end = min(length, start + len(piece))
        if 0 <= start < end:
            result[start:end] += piece[: end - start]
    return result


def in_room(sound: Sound, chance: Generator, decay_s: float, wet: float) -> Sound:
    """Return a sound with a diffuse tail that falls by 60 dB in `decay_s`; `wet` is the tail's energy."""
    count = samples_of(decay_s)
    tail = white(chance, count) * np.exp(-6.9 * times(count) / decay_s)
    tail[: samples_of(0.003)] = 0.0
    tail *= np.sqrt(wet / float((tail**2).sum()))
    tail[0] = 1.0
    padded = _fast_size(len(sound) + count)
    return np.fft.irfft(np.fft.rfft(sound, padded) * np.fft.rfft(tail, padded), padded)[: len(sound) + count]


def at_rms(sound: Sound, rms: float) -> Sound:
    """Return a sound of this RMS; silence stays silence."""
    found = float(np.sqrt(np.mean(sound**2))) if len(sound) else 0.0
    return sound * (rms / found) if found > 0 else sound


def _fast_size(count: int) -> int:
    """Return a size from `count` on whose FFT is quick: a small multiple of a power of two."""
    count = max(count, 16)
    power = 1 << (count - 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= count)

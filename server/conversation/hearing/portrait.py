"""A portrait of a voice: the mean spectrum of its loud frames, in 18 bands, whatever its loudness. Pure.

It is cheap and coarse: enough to tell that a soft voice is probably not the person's, not to recognise a person.
Measured with six synthetic voices and three recordings in a room, portraits of two sentences: 1 s of the same voice is
at most 3.3 dB away (24 pieces), 1 s of another less than 3.3 dB in 5 of 100 and less than 4 dB in 16 of 100 (252
pieces). With 0.5 s, another voice comes nearer than 3.3 dB in 2 of 100, but the same one often does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Spectrum = NDArray[np.float64]

_FRAME = 512
_WINDOW = np.hanning(_FRAME)
_EDGES_HZ = (
    100, 200, 300, 400, 510, 630, 770, 920, 1080, 1270, 1480, 1720, 2000, 2320, 2700, 3150, 3700, 4400, 5300,
)  # fmt: skip
_EDGES = np.round(np.array(_EDGES_HZ) / 16_000 * _FRAME).astype(np.int64)
_LOUD_DB = 12.0  # a frame is loud if it is at most this far below the level that a fifth of the frames exceed


def spectrum(sound: bytes) -> Spectrum:
    """Return the mean spectrum of a voice in dB, its mean taken off; `sound` is PCM16, at least 32 ms."""
    samples = np.frombuffer(sound, "<i2").astype(np.float64)
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME) * _WINDOW
    power = np.square(np.abs(np.fft.rfft(frames)))
    levels = power.sum(axis=1)
    place = int(0.8 * len(levels))
    loud = power[levels >= np.partition(levels, place)[place] * 10 ** (-_LOUD_DB / 10)]
    bands = 10 * np.log10(np.add.reduceat(loud, _EDGES, axis=1)[:, :-1] + 1.0)
    mean: Spectrum = (bands - bands.mean(axis=1, keepdims=True)).mean(axis=0)
    return mean


class Portrait:
    """The mean spectrum of what one voice has said."""

    LEAST = 2  # spectra of 1 s before it is compared with
    MEMORY = 20  # it is the mean of about this many

    def __init__(self) -> None:
        self._mean: Spectrum | None = None
        self._count = 0

    @property
    def ready(self) -> bool:
        """Whether there is enough speech in it."""
        return self._count >= self.LEAST

    def learn(self, sound: bytes) -> None:
        """Add a second of the voice."""
        seen = spectrum(sound)
        self._count = min(self._count + 1, self.MEMORY)
        self._mean = seen if self._mean is None else self._mean + (seen - self._mean) / self._count

    def distance(self, sound: bytes) -> float:
        """Return how far the spectrum of a sound is from the portrait's, in dB; 0 without a portrait."""
        if self._mean is None:
            return 0.0
        return float(np.sqrt(np.mean(np.square(spectrum(sound) - self._mean))))

"""Subtract a loudspeaker's sound from a microphone's: an adaptive filter in the frequency domain.

The filter is a state that a Kalman filter estimates, each frequency of each partition by itself. Its gain follows from
what it is unsure of and from how much of the microphone it cannot explain, so it learns within half a second and hardly
forgets while a person talks as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.pcm import Floats

BLOCK = 320
"""Samples that are processed at once: 20 ms."""

_SIZE = 2 * BLOCK
_BINS = BLOCK + 1
_PARTS = 8  # partitions of BLOCK samples: the filter spans 0.16 s
_KEPT = 0.999**2  # of a partition's uncertainty from one block to the next: the room changes slowly
_UNSURE = 0.05  # the uncertainty at first: the power of an echo 13 dB below what is played
_FADES = 0.3  # an echo's later partitions are fainter by this exponent each
_SMOOTHING = 0.3  # of the power of what the filter does not explain
_LOUDER, _FAINTER = 1.6, 0.6  # an echo whose gain has changed by more is followed at once,
_MEMORY = 0.6  # of one block in the next, for that
_ALIKE = 0.6  # if it is so similar to the one expected

Spectrum = NDArray[np.complex64]


class EchoFilter:
    """One path from a loudspeaker to a microphone."""

    def __init__(self) -> None:
        self._weights: Spectrum = np.zeros((_PARTS, _BINS), np.complex64)
        fades = np.exp(-_FADES * np.arange(_PARTS, dtype=np.float32))[:, None]
        self._unsure: Floats = np.repeat(_UNSURE * fades, _BINS, axis=1).astype(np.float32)
        self._rest: Floats = np.full(_BINS, 1e-3, np.float32)  # the smoothed power of what is not explained
        self._part = 0
        self._alike = (0.0, 0.0, 0.0)  # products of what is heard and expected, what is expected, and what is heard
        self.clear()

    def clear(self) -> None:
        """Forget what was played, and keep what was learnt."""
        self._played: Floats = np.zeros(_SIZE, np.float32)
        self._spectra: Spectrum = np.zeros((_PARTS, _BINS), np.complex64)
        self._products: Spectrum = np.zeros((_PARTS, _BINS), np.complex64)
        self._powers: Floats = np.zeros((_PARTS, _BINS), np.float32)

    @property
    def gain(self) -> Floats:
        """The power of the whole echo of a sound, per frequency, of one part in power that is played."""
        gain: Floats = (self._weights.real**2 + self._weights.imag**2).sum(axis=0)
        return gain

    def step(self, played: Floats, heard: Floats, *, learns: bool = True) -> tuple[Floats, Floats, Floats]:
        """Return what is left of a heard block, and the power spectra of that and of the echo in it."""
        self._played[:BLOCK] = self._played[BLOCK:]
        self._played[BLOCK:] = played
        self._spectra[1:] = self._spectra[:-1]
        self._powers[1:] = self._powers[:-1]
        newest = np.fft.rfft(self._played).astype(np.complex64)
        self._spectra[0] = newest
        self._powers[0] = newest.real**2 + newest.imag**2
        echo = np.multiply(self._spectra, self._weights, out=self._products).sum(axis=0)
        expected = np.fft.irfft(echo, _SIZE)[BLOCK:].astype(np.float32)
        left = heard - expected
        padded = np.zeros(_SIZE, np.float32)
        padded[BLOCK:] = left
        error = np.fft.rfft(padded).astype(np.complex64)
        power = error.real**2 + error.imag**2
        self._rest += np.float32(_SMOOTHING) * (power - self._rest)
        if learns:
            self._learn(error)
            self._follow(heard, expected)
        return left, power, echo.real**2 + echo.imag**2

    def _learn(self, error: Spectrum) -> None:
        likely = self._powers * self._unsure
        gains = self._unsure / (0.5 * likely.sum(axis=0) + self._rest + 1e-6)
        change = np.conjugate(self._spectra, out=self._products)
        change *= error
        change *= gains
        self._weights += change
        # Each partition's response lies in the first half of its block; one of them is cut to that in each step.
        response = np.fft.irfft(self._weights[self._part], _SIZE)
        response[BLOCK:] = 0
        self._weights[self._part] = np.fft.rfft(response)
        self._part = (self._part + 1) % _PARTS
        likely *= gains
        likely *= 0.5
        self._unsure -= likely
        self._unsure *= _KEPT
        self._unsure += (1 - _KEPT) * (self._weights.real**2 + self._weights.imag**2)

    def _follow(self, heard: Floats, expected: Floats) -> None:
        """Follow a sudden change of loudness: the volume was turned, or the reply is played more quietly."""
        both, its, all_ = (float(a @ b) for a, b in ((heard, expected), (expected, expected), (heard, heard)))
        before = self._alike
        both, its, all_ = (_MEMORY * before[0] + both, _MEMORY * before[1] + its, _MEMORY * before[2] + all_)
        self._alike = (both, its, all_)
        if its <= 1e-9 or both <= 0 or both * both < _ALIKE * its * all_:
            return
        if not _FAINTER < (gain := both / its) < _LOUDER:
            self._weights *= np.float32(gain)
            self._alike = (0.0, 0.0, 0.0)


def spectrum(blocks: Floats) -> Floats:
    """Return the power spectra of blocks, as `step` has them."""
    found = np.fft.rfft(blocks, _SIZE)
    return (found.real**2 + found.imag**2).astype(np.float32)

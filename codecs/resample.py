"""Streaming sample-rate conversion with a windowed-sinc polyphase filter.

The output is aligned with the input: sample n lies at n / target_rate. Its bits do not depend on how the input was cut
into pieces. Nothing is delayed; the newest `hold_back_ms` of input wait for the samples after them.

    slower of the two rates   hold-back   flat to 0.01 dB   images and aliases
    8 kHz                     2.0 ms      3.5 kHz           ≥ 63 dB down
    16 kHz                    1.5 ms      7 kHz             ≥ 90 dB down
    22.05 kHz and above       ≤ 1.1 ms    7/16 of it        ≥ 90 dB down

The transition is centred on the Nyquist frequency (6 dB down there), so aliases stay above the flat band.

Why our own code: soxr holds back 21 to 115 ms. libsamplerate's fastest sinc holds back 2.4 ms at 8 kHz and is 3 dB down
at 3.2 kHz there, while telephone speech goes up to 3.4 kHz. torchaudio resamples whole clips only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, pi

import numpy as np
from numpy.typing import ArrayLike

from voxlane.codecs.errors import UnsupportedAudio
from voxlane.codecs.limits import HIGHEST_RATE, LOWEST_RATE
from voxlane.codecs.pcm import Floats

HOLD_BACK_GOAL_MS = 2.0
"""The filter may delay a listener by this much. Speech at 8 kHz needs all of it, higher rates need less."""

MIN_CROSSINGS, MAX_CROSSINGS = 16, 24
"""Zero crossings of the sinc on each side: 16 give 65 dB, enough for a telephone line; 24 give 94 dB, for 16 bits."""

TRANSITION = 0.25
"""Width of the transition band as a part of the slower rate's Nyquist frequency."""

MAX_TAPS = 2**18
"""Largest filter bank: 1 MiB. Pairs of standard rates need less than half; odd rates like 44,101 Hz are refused."""

_SLICE = 1_024
"""Outputs computed at once. This bounds the scratch memory of long inputs and keeps it in a core's cache."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """Output n is a weighted sum of the 2 * half inputs around n * down / up; its weights are row n * down % up."""

    up: int
    down: int
    half: int  # input samples on each side
    bank: Floats  # (up, 2 * half)


@lru_cache(maxsize=32)
def _design(source_rate: int, target_rate: int) -> _Filter:
    for rate in (source_rate, target_rate):
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UnsupportedAudio(f"the sample rate must lie between {LOWEST_RATE} and {HIGHEST_RATE} Hz")
    common = gcd(source_rate, target_rate)
    up, down, slower = target_rate // common, source_rate // common, min(source_rate, target_rate)
    crossings = min(MAX_CROSSINGS, max(MIN_CROSSINGS, int(slower * HOLD_BACK_GOAL_MS / 1000)))
    half = ceil(crossings * source_rate / slower)
    if up * 2 * half > MAX_TAPS:
        raise UnsupportedAudio("the sample rates have no simple ratio")
    # Kaiser's rules give the attenuation for this length and transition, and the window's shape for it.
    attenuation = 8 + 2.285 * 2 * crossings * TRANSITION * pi
    beta = 0.1102 * (attenuation - 8.7)
    distance = np.arange(1 - half, half + 1) - np.arange(up)[:, None] / up  # (up, 2 * half), in input samples
    window = np.i0(beta * np.sqrt(1 - (distance / half) ** 2))
    bank = np.sinc(distance * slower / source_rate) * window
    bank /= bank.sum(axis=1, keepdims=True)  # every phase has the same gain at 0 Hz
    return _Filter(up, down, half, bank.astype(np.float32))


class Resampler:
    """Convert a stream of mono samples from one rate to another, piece by piece."""

    __slots__ = ("_filter", "_origin", "_pending", "_produced", "hold_back_ms", "source_rate", "target_rate")

    def __init__(self, source_rate: int, target_rate: int) -> None:
        self._filter = _design(source_rate, target_rate)
        self.source_rate = source_rate
        self.target_rate = target_rate
        self.hold_back_ms = 0.0 if source_rate == target_rate else self._filter.half / source_rate * 1000
        self.reset()

    def reset(self) -> None:
        """Forget the stream and begin another."""
        silence = self._filter.half - 1  # what lies before the first sample
        self._pending: Floats = np.zeros(silence, dtype=np.float32)  # inputs that outputs to come still need
        self._origin = -silence  # the stream's index of _pending[0]
        self._produced = 0  # outputs so far

    def push(self, samples: ArrayLike) -> Floats:
        """Take the next samples and return all outputs that can be computed now."""
        fresh = np.array(samples, dtype=np.float32, ndmin=1)
        if self.source_rate == self.target_rate:
            return fresh
        self._pending = np.concatenate((self._pending, fresh))
        whole = self._origin + len(self._pending) - self._filter.half
        return self._emit(max(self._produced, _ceil_ratio(whole * self._filter.up, self._filter.down)))

    def flush(self) -> Floats:
        """Return the held-back outputs as if silence followed, and begin another stream."""
        received = self._origin + len(self._pending)
        end = 0 if self.source_rate == self.target_rate else _ceil_ratio(received * self._filter.up, self._filter.down)
        self._pending = np.concatenate((self._pending, np.zeros(self._filter.half, dtype=np.float32)))
        rest = self._emit(max(self._produced, end))
        self.reset()
        return rest

    def _emit(self, end: int) -> Floats:
        """Return the outputs up to `end` that were not returned yet, and drop inputs that are no longer needed."""
        up, down, half = self._filter.up, self._filter.down, self._filter.half
        result = np.empty(end - self._produced, dtype=np.float32)
        # Row i is the window that begins at input i; numpy checks that all rows lie inside the buffer. A push takes a
        # fifth less time than with sliding_window_view.
        count = max(0, len(self._pending) - 2 * half + 1)
        rows = np.ndarray((count, 2 * half), np.float32, self._pending, strides=(4, 4))
        for begin in range(self._produced, end, _SLICE):
            stop = min(begin + _SLICE, end)
            start, phase = np.divmod(np.arange(begin, stop) * down, up)
            windows = rows[start + (1 - half - self._origin)]
            # einsum sums each row in one order, however many rows there are. A BLAS product does not: its last bit
            # would depend on how the input was cut.
            out = result[begin - self._produced : stop - self._produced]
            np.einsum("nk,nk->n", windows, self._filter.bank.take(phase, axis=0), out=out)
        self._produced = end
        used = end * down // up + 1 - half - self._origin
        self._pending = self._pending[used:].copy()
        self._origin += used
        return result


def resample(samples: ArrayLike, source_rate: int, target_rate: int) -> Floats:
    """Return a whole signal at another rate, ceil(length * target / source) long, with the same bits as a stream."""
    resampler = Resampler(source_rate, target_rate)
    return np.concatenate((resampler.push(samples), resampler.flush()))


def _ceil_ratio(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)

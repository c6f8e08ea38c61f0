"""Find how late a loudspeaker's sound comes back in a microphone, by the cross-correlation of the two."""

from __future__ import annotations

import numpy as np

from voxlane.codecs.pcm import Floats

RATE = 16_000
LONGEST = RATE
"""The longest delay that is looked for, in samples."""

WINDOW = 6_400
"""Microphone samples that one look compares: 0.4 s."""

_HALF = 2  # at half the rate a look costs less than half
_SIZE = (WINDOW + LONGEST) // _HALF
_LOWEST, _HIGHEST = (hertz * _SIZE * _HALF // RATE for hertz in (200, 3_600))  # what every line and loudspeaker carries
_MEMORY = 0.75  # of one look in the next
_CLEAR = 12.0  # a delay stands out if its correlation is so many times the usual one
_NEAR = 24  # samples at half the rate: two looks agree if their delays differ by at most 3 ms


class DelayFinder:
    """Follows the delay of one microphone. One look costs three transforms of 11,200 samples."""

    def __init__(self) -> None:
        self._sum: Floats = np.zeros(LONGEST // _HALF, np.float32)
        self._last = -1
        self.clearness = 0.0  # how far the best delay of the last look stands out

    def forget(self) -> None:
        """Begin again: the delay may have changed."""
        self._sum[:] = 0
        self._last = -1

    def find(self, heard: Floats, played: Floats) -> int | None:
        """Return the delay in samples once two looks agree on it, else None.

        `heard` is WINDOW samples of the microphone; `played` ends with the same moment and is LONGEST samples longer.
        """
        padded = np.zeros(_SIZE, np.float32)
        padded[LONGEST // _HALF :] = heard[::2] + heard[1::2]
        cross = np.fft.rfft(padded) * np.fft.rfft(played[::2] + played[1::2]).conj()
        band = cross[_LOWEST:_HIGHEST]
        band /= np.abs(band) + 1e-9  # every frequency counts the same: speech is coloured, and so are its correlations
        cross[:_LOWEST] = 0
        cross[_HIGHEST:] = 0
        loudness = np.float32(np.sqrt(heard @ heard))  # silence says nothing of a delay
        self._sum = _MEMORY * self._sum + loudness * np.fft.irfft(cross, _SIZE)[: LONGEST // _HALF].astype(np.float32)
        best = int(np.argmax(np.abs(self._sum)))
        usual = float(np.sqrt(np.mean(self._sum**2))) + 1e-12
        self.clearness = abs(float(self._sum[best])) / usual
        if self.clearness < _CLEAR:
            self._last = -1
            return None
        agreed, self._last = self._last >= 0 and abs(best - self._last) <= _NEAR, best
        return _HALF * best if agreed else None

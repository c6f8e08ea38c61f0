"""Whether a planted agent hears itself: what the microphone has is compared with what the ear played. Pure.

An echo is the agent's own sound, later and quieter. How much later is learnt where the two are alike with the same
delay six times in a row; two voices are alike by chance, but not with the same delay. A person who speaks over the
echo makes the sounds unlike each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.values import USER_RATE, Pcm

WINDOW = USER_RATE // 5  # the sound that is compared
LATEST = USER_RATE * 7 // 10  # an echo that comes later is not looked for
SAME = 0.6  # correlation from which on the sound is an echo, with the delay that was learnt
LEARNS = 0.7  # the same, for a delay to be learnt
NEAR = USER_RATE // 1000  # delays that differ by less are the same
TIMES = 6  # so often in a row a delay must be found
FULL = 0.01  # each quarter of the sound that is compared has this share of the power at least


class OwnEcho:
    """Remembers the last second of both sounds, at USER_RATE."""

    def __init__(self) -> None:
        self._own: NDArray[np.float64] = np.zeros(WINDOW + LATEST)
        self._heard: NDArray[np.float64] = np.zeros(WINDOW)
        self._delay: int | None = None  # the delay that was learnt, as a place in _own
        self._found = 0  # the delay that was found last
        self._times = 0  # how often in a row

    def push(self, heard: Pcm, own: Pcm) -> None:
        """Take what the microphone heard and what the ear played."""
        self._own = np.concatenate([self._own, own])[-(WINDOW + LATEST) :]
        self._heard = np.concatenate([self._heard, heard])[-WINDOW:]

    def is_echo(self) -> bool:
        """Return whether the newest sound of the microphone is the agent's own."""
        power = float(self._heard @ self._heard)
        if not power or not self._own.any():
            return False
        likeness = self._likeness(power)
        self._learn(likeness, power)
        if self._delay is None:
            return False
        return bool(likeness[max(0, self._delay - NEAR) : self._delay + NEAR + 1].max() > SAME)

    def _likeness(self, power: float) -> NDArray[np.float64]:
        """Return the correlation of the newest sound with the agent's own at each place of it."""
        size = len(self._own) + WINDOW
        spectrum = np.fft.rfft(self._own, size) * np.conj(np.fft.rfft(self._heard, size))
        products = np.fft.irfft(spectrum, size)[: LATEST + 1]
        sums = np.concatenate([[0.0], np.cumsum(self._own**2)])
        powers = sums[WINDOW:] - sums[:-WINDOW]
        likeness: NDArray[np.float64] = np.abs(products) / np.sqrt(power * np.maximum(powers, 1.0))
        return likeness

    def _learn(self, likeness: NDArray[np.float64], power: float) -> None:
        place = int(likeness.argmax())
        quarters = (self._heard.reshape(4, -1) ** 2).sum(axis=1)
        if likeness[place] <= LEARNS or quarters.min() < FULL * power:
            self._times = 0
            return
        self._times = self._times + 1 if self._times and abs(place - self._found) < NEAR else 1
        self._found = place
        if self._times >= TIMES:
            self._delay = place

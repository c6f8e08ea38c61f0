"""Which sound may be an echo while the echo's delay is not known: what some delay explains so far.

An echo follows what is played, by a delay and with a loudness that are not known at first. A delay by which a loud
moment should have come back, and silence came instead, has no echo of that loudness. So each delay has a bound of its
gain: the least that was heard where it would have been loud. Sound that is no louder than such an echo may be one; a
voice that goes on where every possible echo would pause is a person's. With headphones the first silent second under
the assistant's voice excludes every delay.

Pure: it depends on the two sounds alone.
"""

from __future__ import annotations

import numpy as np

from voxlane.codecs.echo_filter import BLOCK
from voxlane.codecs.pcm import Floats

_DELAYS = 38  # blocks of 20 ms: 0.6 s of a telephone's surroundings, and the ways there and back
_EDGES = np.array([2, 10, 24, 44, 76])  # bands in bins of 50 Hz, from 100 to 3,800 Hz: what a telephone carries
_LOUDEST = 0.16  # the power of the loudest echo that is expected, of one part that is played
_MARGIN = 6.0  # the power of an echo varies by so much, by where its blocks begin and by its way
_COLOUR = 8.0  # an echo is louder in a band than in all by at most so much, in power
_RISE = 1.01  # of a bound per block: a path may change
_FADES = np.float32(0.3)  # what is left after a block of an echo that fades, in power
_AUDIBLE = 1e-5  # the mean square of a block, in a band, that shows something: -50 dB
_LITTLE = np.float32(1e-12)
_LASTS = _DELAYS + 6  # blocks after the last audible one in which an echo may be heard
_CERTAIN, _REST = 25, 150  # after so many blocks without a possible echo, so many are left out: they cost time
_SCALE = np.float32(2 / BLOCK)  # both halves of a spectrum
_NEAR = 2  # blocks by which a delay that was found may be wrong
_SHARE = 0.35  # the part of a block's power that no echo explains, if a person is in it


class EchoSuspicion:
    """The possible echoes of one loudspeaker in one microphone."""

    def __init__(self) -> None:
        bands = len(_EDGES) - 1
        self._played: Floats = np.zeros((_DELAYS + 2, bands), np.float32)  # powers of the last blocks, newest first
        self._fading: Floats = np.zeros((_DELAYS + 2, bands), np.float32)  # the same with what fades
        self._bounds: Floats = np.full((_DELAYS, bands), _LOUDEST, np.float32)
        self.expects = True  # whether an echo may come in the next block that is no silence
        self._unlikely = 0  # audible blocks in a row after which no echo is expected
        self._rests = 0  # blocks to leave out
        self._lasts = 0  # blocks in which an echo of what was played may still come

    def forget_delay(self) -> None:
        """Note that any delay is possible again, with an echo as loud as was possible before."""
        self._bounds[:] = self._bounds.max(axis=0)

    def settle(self, delay: int) -> None:
        """Note that the echo comes after about so many samples, and after no others."""
        near = delay // BLOCK
        self._bounds[: max(0, near - _NEAR)] = 0
        self._bounds[near + _NEAR + 1 :] = 0

    def explains(self, heard: Floats, played: Floats) -> bool:
        """Take the next block of both sounds; return whether what is heard may be an echo."""
        audible = float(played @ played) > _AUDIBLE * BLOCK
        self._lasts = _LASTS if audible else max(0, self._lasts - 1)
        if self._rests or not self._lasts:
            self._rest()
            return False
        fresh, bands = _bands(played, heard)
        for powers, newest in ((self._played, fresh), (self._fading, np.maximum(fresh, self._fading[0] * _FADES))):
            powers[1:] = powers[:-1]
            powers[0] = newest
        # A delay lies between two blocks, so an echo block is a part of two or three played blocks.
        most = np.maximum(self._fading[:_DELAYS], self._fading[1 : _DELAYS + 1])
        likely = (self._bounds * most).max(axis=0)
        self.expects = float(likely.max()) > _AUDIBLE * BLOCK
        louder = float(np.maximum(0, bands - likely).sum())
        self._exclude(bands)
        self._unlikely = self._unlikely + 1 if audible and not self.expects else 0
        if self._unlikely > _CERTAIN:
            self._rests = _REST
        return louder <= _SHARE * float(bands.sum())

    def forget_played(self) -> None:
        """Note that blocks were left out: what was played before says nothing."""
        self._played[:] = self._fading[:] = 0

    def _rest(self) -> None:
        """Leave a block out: nothing that was played can still come back, or there is no echo."""
        self.expects, self._unlikely, self._rests = False, 0, max(0, self._rests - 1)
        self.forget_played()
        self._bounds = np.minimum(self._bounds * np.float32(_RISE), np.float32(_LOUDEST))

    def _exclude(self, bands: Floats) -> None:
        """Lower the bounds of the delays by which more should have come."""
        least = np.minimum(np.minimum(self._played[:_DELAYS], self._played[1 : _DELAYS + 1]), self._played[2:])
        whole = least.sum(axis=1, keepdims=True)
        shown = np.where(least > _AUDIBLE * BLOCK, (_MARGIN * bands) / (least + _LITTLE), _LOUDEST)
        in_all = np.where(
            whole > 4 * _AUDIBLE * BLOCK, _COLOUR * _MARGIN * float(bands.sum()) / (whole + _LITTLE), _LOUDEST
        )
        raised = self._bounds * np.float32(_RISE)
        self._bounds = np.minimum(np.minimum(raised, _LOUDEST), np.minimum(shown, in_all)).astype(np.float32)


def _bands(*sounds: Floats) -> Floats:
    """Return the powers of blocks per band; the sum of all is BLOCK times the mean square, if it lies in the bands."""
    found = np.fft.rfft(np.stack(sounds))
    power = found.real**2 + found.imag**2
    return (np.add.reduceat(power, _EDGES, axis=1)[:, :-1] * _SCALE).astype(np.float32)

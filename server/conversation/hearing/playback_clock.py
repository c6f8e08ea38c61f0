"""What the client's loudspeaker plays, on the clock of its microphone.

A client plays a reply without gaps from its first frame on, so the sound that comes from the microphone is the clock:
for every sample heard one is played. The delay between the two, of the line, of the client's buffer and of the air, is
left to echo.py. It stays the same while the reply runs, which the client's reports of its playback do not: they only
correct what has gone wrong. Pure.
"""

from __future__ import annotations

import numpy as np

from voxlane.codecs.pcm import Floats
from voxlane.codecs.resample import Resampler

RATE = 16_000

_AHEAD = round(0.35 * RATE)  # the clock may be this far ahead of the client's reports: they come late
_BEHIND = round(0.04 * RATE)  # and this far behind them, if that lasts:
_LASTING = round(0.5 * RATE)
_GOES_ON = round(0.25 * RATE)  # for so long the client plays on when it is told to stop: the message takes its time
_KEPT = 2 * RATE  # samples already played that are kept
_MOST = (
    12 * RATE
)  # samples that are kept at all: no client is sent more ahead, and without a microphone nothing is played


class PlaybackClock:
    """The sound of the current reply, and the sample that is played now."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self.jumped = False  # the last sound played does not continue the one before it
        self._begin(-1)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._resampler = Resampler(self._rate, RATE)
        self._sound: Floats = np.zeros(0, np.float32)
        self._from = 0  # the reply's sample at which _sound begins
        self._next: int | None = None  # the sample to be played next; None: it has not begun
        self._stopped = 0  # samples heard since the client was told to stop
        self._behind = 0  # samples heard since the clock is behind the client's reports

    def send(self, epoch: int, pcm: bytes) -> None:
        """Add the next frame that the client is sent."""
        if epoch != self._epoch:
            self._begin(epoch)
        fresh = self._resampler.push(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768)
        drop = max(0, (self._next or 0) - self._from - _KEPT, len(self._sound) - _MOST)
        self._sound = np.concatenate([self._sound[drop:], fresh])
        self._from += drop

    def play(self, count: int, position: int | None) -> Floats | None:
        """Return what is played while `count` samples are heard; None if that is nothing.

        `position` is the reply's sample that the client plays by its reports, None if it was told to stop.
        """
        self.jumped = False
        if position is None:
            return self._run_out(count)
        wanted = position * RATE // self._rate
        if self._next is None and wanted <= 0:
            return None  # it has not begun
        lag = 0 if self._next is None else wanted - count - self._next
        self._behind = self._behind + count if lag > _BEHIND else 0
        if self._next is None or self._stopped or self._behind > _LASTING or lag < -_AHEAD:
            self._next, self._behind, self.jumped = wanted - count, 0, True
        self._stopped = 0
        return self._take(count)

    def _run_out(self, count: int) -> Floats | None:
        if self._next is None or self._stopped >= _GOES_ON:
            return None
        self._stopped += count
        return self._take(count)

    def _take(self, count: int) -> Floats | None:
        assert self._next is not None
        first, end = self._next - self._from, self._next - self._from + count
        found = self._sound[max(0, first) : max(0, end)]
        if not len(found):
            return None  # the client has nothing to play: it waits
        taken = np.zeros(count, np.float32)
        at = max(0, -first)
        taken[at : at + len(found)] = found
        self._next += at + len(found)
        return taken

"""A loudspeaker's queue: what the dialects fill, clear, hold and lower, and what the card pulls every 20 ms. Pure.

A naive loudspeaker plays whatever it is sent to the end: it is not cleared, held or lowered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from voxlane_lab.values import Pcm, Pull, Run

RAMP_S = 0.015  # how long a change of loudness takes


@dataclass(slots=True)
class _Chunk:
    response: str
    offset: int
    pcm: Pcm


class VirtualLoudspeaker:
    """The queue of one loudspeaker."""

    def __init__(self, rate: int, *, naive: bool = False) -> None:
        self.rate = rate
        self.held = False
        self.received: dict[str, list[Pcm]] = {}
        self.played: dict[str, int] = {}  # the place behind the last sample of each response that was played
        self._naive = naive
        self._queue: deque[_Chunk] = deque()
        self._queued = 0
        self._lengths: dict[str, int] = {}
        self._goal = 1.0
        self._gain = 1.0

    @property
    def queued(self) -> int:
        """Samples that wait."""
        return self._queued

    @property
    def playing(self) -> str | None:
        """The response whose sample comes next; None: there is none."""
        return self._queue[0].response if self._queue else None

    def length(self, response: str) -> int:
        """Return how many samples of a response came."""
        return self._lengths.get(response, 0)

    def add(self, response: str, pcm: Pcm, *, queue: bool = True) -> int:
        """Take the next sound of a response; return its offset. Without `queue` it is noted and not played."""
        offset = self.length(response)
        self.received.setdefault(response, []).append(pcm)
        self._lengths[response] = offset + len(pcm)
        if len(pcm) and (queue or self._naive):
            self._queue.append(_Chunk(response, offset, pcm))
            self._queued += len(pcm)
        return offset

    def clear(self, response: str | None = None) -> int:
        """Drop all that waits, or all of a response; return how many samples."""
        if self._naive:
            return 0
        kept = deque(chunk for chunk in self._queue if response is not None and chunk.response != response)
        before, self._queued = self._queued, sum(len(chunk.pcm) for chunk in kept)
        self._queue = kept
        return before - self._queued

    def hold(self) -> None:
        """Stop, and keep what waits."""
        self.held = not self._naive

    def release(self) -> None:
        """Go on with the next sample, at full loudness."""
        self.held, self._goal = False, 1.0

    def lower(self, gain: float) -> None:
        """Play what follows with this gain."""
        self._goal = 1.0 if self._naive else gain

    def pull(self, samples: int) -> Pull:
        """Return the next samples, filled up with silence."""
        out = np.zeros(samples, np.int16)
        runs: list[Run] = []
        at = 0
        while at < samples and self._queue and not self.held:
            chunk = self._queue[0]
            part = chunk.pcm[: samples - at]
            out[at : at + len(part)] = self._scaled(part)
            runs.append(Run(at, chunk.response, chunk.offset, len(part)))
            chunk.pcm = chunk.pcm[len(part) :]
            chunk.offset += len(part)
            self.played[chunk.response] = chunk.offset
            at += len(part)
            self._queued -= len(part)
            if not len(chunk.pcm):
                self._queue.popleft()
        return Pull(out, tuple(runs), self.queued, self.held)

    def _scaled(self, pcm: Pcm) -> Pcm:
        if self._gain == self._goal == 1.0:
            return pcm
        steps = np.arange(1, len(pcm) + 1) / (RAMP_S * self.rate)
        down = self._goal < self._gain
        gains = np.maximum(self._goal, self._gain - steps) if down else np.minimum(self._goal, self._gain + steps)
        self._gain = float(gains[-1])
        return np.rint(pcm * gains).astype(np.int16)

"""The playback queue of a client of the native dialect: what to play next, and which acks to send.

The owner of the sound card pulls PCM16 samples as it needs them, or as virtual time says; acks fall due meanwhile.
There is no clock, card or socket here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

ACK_S = 0.1
"""Time between acks; an ack is also due at once on hold, on interruption and when the queue runs empty."""

RAMP_S = 0.015
"""How long the gain takes from 0 to 1 or back: too short to be heard as a fade, slow enough not to click."""


@dataclass(frozen=True, slots=True)
class Ack:
    """`samples` of a reply were played, and `queued` wait."""

    epoch: int
    samples: int
    queued: int


@dataclass(slots=True)
class _Chunk:
    epoch: int
    offset: int  # of its first sample in the reply
    pcm: bytes


class Player:
    """Plays replies in order, sample by sample."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.epoch = 0  # of the reply being played, or of the last one
        self.position = 0  # samples of it that were played
        self.held = False
        self._lowered = (0, 1.0)  # epoch of the reply that the server has lowered, and its gain
        self._gain = 1.0  # of the last sample played
        self._queue: deque[_Chunk] = deque()
        self._queued = 0
        self._end = (0, 0)  # epoch and offset after the last received sample
        self._acked = (0, 0)
        self._acks: list[Ack] = []

    @property
    def queued(self) -> int:
        """Number of samples that wait."""
        return self._queued

    def handle(self, name: str, fields: dict[str, Any]) -> None:
        """Process a message of the server; ignore those that are not about playback."""
        match name:
            case "audio":
                self._add(fields["epoch"], fields["offset"], fields["data"])
            case "hold" if fields["epoch"] >= self.epoch:
                self.held = True
                self._ack()
            case "duck" if fields["epoch"] >= self.epoch:
                self._lowered = (fields["epoch"], fields["gain"])
            case "release":
                self.held, self._lowered = False, (0, 1.0)
            case "interrupted":
                self._drop(fields["epoch"])
            case "ready" if fields["resumed"]:
                # The server sends everything again that was not played.
                self._queue.clear()
                self._queued = 0
                self._end = (self.epoch, self.position)
                self.held, self._lowered = fields["state"] == "held", (0, 1.0)

    def pull(self, samples: int) -> bytes:
        """Return the next samples to play, filled up with silence."""
        parts: list[bytes] = []
        wanted = samples
        while wanted and self._queue and not self.held:
            chunk = self._queue[0]
            if chunk.epoch != self.epoch:
                self._ack()
                self.epoch, self.position = self._acked = chunk.epoch, chunk.offset
            part = chunk.pcm[: 2 * wanted]
            chunk.pcm, count = chunk.pcm[2 * wanted :], len(part) // 2
            chunk.offset += count
            if not chunk.pcm:
                self._queue.popleft()
            parts.append(self._scaled(part))
            wanted -= count
            self._queued -= count
            self.position += count
        if parts and (not self._queue or self.position - self._acked[1] >= ACK_S * self.rate):
            self._ack()
        return b"".join(parts) + bytes(2 * wanted)

    def acks(self) -> list[Ack]:
        """Return the acks that are due."""
        due, self._acks = self._acks, []
        return due

    def _scaled(self, pcm: bytes) -> bytes:
        """Return samples of the reply being played with its gain; a change of the gain takes RAMP_S."""
        lowered, gain = self._lowered
        goal = gain if lowered == self.epoch else 1.0
        if self._gain == goal == 1.0:
            return pcm
        samples = np.frombuffer(pcm, "<i2")
        steps = np.arange(1, len(samples) + 1) / (RAMP_S * self.rate)
        gains = np.maximum(goal, self._gain - steps) if goal < self._gain else np.minimum(goal, self._gain + steps)
        self._gain = float(gains[-1])
        return bytes(np.rint(samples * gains).astype("<i2"))

    def _add(self, epoch: int, offset: int, pcm: bytes) -> None:
        if epoch < self._end[0]:
            return
        have = self._end[1] if epoch == self._end[0] else 0
        if epoch == self._end[0] and offset < have:  # repeated after a resume
            pcm = pcm[2 * (have - offset) :]
            offset = have
        if pcm:
            self._queue.append(_Chunk(epoch, offset, pcm))
            self._queued += len(pcm) // 2
            self._end = (epoch, offset + len(pcm) // 2)

    def _drop(self, epoch: int) -> None:
        self._queue = deque(chunk for chunk in self._queue if chunk.epoch > epoch)
        self._queued = sum(len(chunk.pcm) // 2 for chunk in self._queue)
        self.held = False
        if epoch >= self.epoch:
            self._ack()
        self._end = max(self._end, (epoch + 1, 0)) if epoch >= self._end[0] else self._end

    def _ack(self) -> None:
        if self.epoch and self._acked != (self.epoch, self.position):
            self._acked = (self.epoch, self.position)
            self._acks.append(Ack(self.epoch, self.position, self._queued))

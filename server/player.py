"""A loudspeaker's bookkeeping for a client of the native dialect: what to play next, and what to tell the server of it.

Whoever owns the sound card pulls samples as it needs them, or as virtual time says; acks fall due meanwhile. It knows
PCM16 and the messages about sound. It has no clock, no card and no socket.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

ACK_S = 0.1
"""How often the server is told what was played; it is also told at once on hold, flush and when all is played."""


@dataclass(frozen=True, slots=True)
class Ack:
    """So many samples of a reply were played, and so many wait."""

    epoch: int
    samples: int
    queued: int


@dataclass(slots=True)
class _Chunk:
    epoch: int
    offset: int  # of its first sample in the reply
    pcm: bytes


class Player:
    """Plays replies in their order, sample by sample."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.epoch = 0  # of the reply that is played, or was last
        self.position = 0  # its samples that were played
        self.held = False
        self._queue: deque[_Chunk] = deque()
        self._queued = 0
        self._end = (0, 0)  # epoch and offset after the last sample that came
        self._acked = (0, 0)
        self._acks: list[Ack] = []

    @property
    def queued(self) -> int:
        """Samples that wait."""
        return self._queued

    def take(self, name: str, fields: dict[str, Any]) -> None:
        """Take one of the server's messages; those that do not concern it are ignored."""
        match name:
            case "audio":
                self._add(fields["epoch"], fields["offset"], fields["data"])
            case "hold" if fields["epoch"] >= self.epoch:
                self.held = True
                self._ack()
            case "release":
                self.held = False
            case "interrupted":
                self._drop(fields["epoch"])
            case "ready" if fields["resumed"]:
                # All that was not played will be sent again.
                self._queue.clear()
                self._queued = 0
                self._end = (self.epoch, self.position)
                self.held = fields["state"] == "held"

    def pull(self, samples: int) -> bytes:
        """Return the next samples to play, silence where there are none."""
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
            parts.append(part)
            wanted -= count
            self._queued -= count
            self.position += count
        if parts and (not self._queue or self.position - self._acked[1] >= ACK_S * self.rate):
            self._ack()
        return b"".join(parts) + bytes(2 * wanted)

    def acks(self) -> list[Ack]:
        """Return what the server should be told now."""
        due, self._acks = self._acks, []
        return due

    def _add(self, epoch: int, offset: int, pcm: bytes) -> None:
        if epoch < self._end[0]:
            return
        have = self._end[1] if epoch == self._end[0] else 0
        if epoch == self._end[0] and offset < have:  # told again after a break
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

"""Which samples of a reply were heard, and when: follows the playback position of the session. Pure.

A conversation's clock gives both channels their times. Sound that continues the sound before it, but for jitter, joins
it: a recording has no cracks. Sound behind a pause begins where it was heard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import Interrupted, ItemCut, ReplyDone, ReplyStarted, ServerEvent, Speech

SAMPLE_BYTES = 2

JITTER_S = 0.3
"""A shorter gap is jitter of the line or of a report, not a pause."""

KEPT_REPLIES = 64
"""Replies that may still be cut: as many as the session remembers."""


@dataclass(frozen=True, slots=True)
class HeardPiece:
    """Sound of one channel."""

    at_s: float  # when it begins, by the conversation's clock
    pcm: bytes  # 16-bit little-endian samples
    joins: bool  # it continues the piece before it in its channel
    epoch: int = 0  # the reply; 0: the caller
    gain: float = 1.0


@dataclass(frozen=True, slots=True)
class HeardCut:
    """Only the first `samples` of a reply were heard, whatever was placed before."""

    epoch: int
    samples: int


class Timeline:
    """Places the pieces of one channel, one behind the other."""

    def __init__(self) -> None:
        self._end_s = 0.0

    def place(self, seconds: float, now: float) -> tuple[float, bool]:
        """Return where a piece that ends now begins, and whether it joins the one before it."""
        begins_s = now - seconds
        joins = begins_s - self._end_s < JITTER_S
        begins_s = self._end_s if joins else begins_s
        self._end_s = begins_s + seconds
        return begins_s, joins


class HeardReplies:
    """The sound of replies that was sent and not yet heard."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._timeline = Timeline()
        self._unheard: dict[int, bytearray] = {}  # by epoch
        self._heard: dict[int, int] = {}  # samples placed, by epoch, oldest first
        self._items: dict[str, int] = {}  # epochs by item

    def observe(self, reply: Reply | None, now: float, gain: float) -> Iterator[HeardPiece]:
        """Yield what was heard of the current reply since the last look; `gain` is how loud it was until now."""
        if reply is not None and not reply.silent and reply.stage in ("live", "held"):
            yield from self._place(reply.epoch, reply.position(now), now, gain)

    def follow(self, event: ServerEvent, now: float) -> Iterator[HeardPiece | HeardCut]:
        """Take an event that the client is sent; yield what it tells about the sound that was heard."""
        match event:
            case ReplyStarted(epoch, _, item) if item:  # an aside is no part of the conversation
                self._unheard[epoch], self._heard[epoch], self._items[item] = bytearray(), 0, epoch
                self._forget()
            case Speech(epoch, _, pcm) if epoch in self._unheard:
                self._unheard[epoch] += pcm
            case Interrupted(epoch, _, samples) if epoch in self._unheard:
                yield from self._place(epoch, samples, now)
                del self._unheard[epoch]
                if self._heard[epoch] > samples:
                    self._heard[epoch] = samples
                    yield HeardCut(epoch, samples)
            case ReplyDone(epoch) if epoch in self._unheard:
                rest = len(self._unheard[epoch]) // SAMPLE_BYTES
                yield from self._place(epoch, self._heard[epoch] + rest, now)
                del self._unheard[epoch]
            case ItemCut(item, seconds) if item in self._items:
                epoch, samples = self._items[item], round(seconds * self._rate)
                if self._heard[epoch] > samples:
                    self._heard[epoch] = samples
                    yield HeardCut(epoch, samples)
            case _:
                pass

    def _place(self, epoch: int, position: int, now: float, gain: float = 1.0) -> Iterator[HeardPiece]:
        sound = self._unheard.get(epoch)
        if sound is None:
            return
        pcm = bytes(sound[: max(0, position - self._heard[epoch]) * SAMPLE_BYTES])
        if not pcm:
            return
        del sound[: len(pcm)]
        samples = len(pcm) // SAMPLE_BYTES
        self._heard[epoch] += samples
        at_s, joins = self._timeline.place(samples / self._rate, now)
        yield HeardPiece(at_s, pcm, joins, epoch, gain)

    def _forget(self) -> None:
        while len(self._heard) > KEPT_REPLIES:
            oldest = next(iter(self._heard))
            del self._heard[oldest]
            self._unheard.pop(oldest, None)
            self._items = {item: epoch for item, epoch in self._items.items() if epoch != oldest}

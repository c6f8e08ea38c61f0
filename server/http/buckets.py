"""Token buckets that limit how much a client may send: a rate and a burst. Pure: the clock is an argument."""

from __future__ import annotations


class Bucket:
    """Fills at `rate` per second up to `size`."""

    __slots__ = ("_content", "_filled_s", "_rate", "_size")

    def __init__(self, rate: float, size: float, now: float) -> None:
        self._rate = rate
        self._size = size
        self._content = size
        self._filled_s = now

    def spend(self, count: float, now: float) -> bool:
        """Take `count` out; return False, and take nothing, if there is less."""
        if count > self.left(now):
            return False
        self._content -= count
        return True

    def owe(self, count: float, now: float) -> None:
        """Take `count` out even if there is less."""
        self._content = self.left(now) - count

    def left(self, now: float) -> float:
        """Return what is in it; below zero is what is owed."""
        self._content = min(self._size, self._content + (now - self._filled_s) * self._rate)
        self._filled_s = now
        return self._content

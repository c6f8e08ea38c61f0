"""How much a client may send: so many a second, and so many at once. Pure: the clock is an argument."""

from __future__ import annotations


class Bucket:
    """Fills at a rate up to a size; what is taken must be in it."""

    __slots__ = ("_content", "_filled_s", "_rate", "_size")

    def __init__(self, rate: float, size: float, now: float) -> None:
        self._rate = rate
        self._size = size
        self._content = size
        self._filled_s = now

    def take(self, count: float, now: float) -> bool:
        """Take `count` out, or return False if that much is not in it."""
        self._content = min(self._size, self._content + (now - self._filled_s) * self._rate)
        self._filled_s = now
        if count > self._content:
            return False
        self._content -= count
        return True

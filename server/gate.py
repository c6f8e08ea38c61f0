"""Who is inside: counts requests in progress, turns new ones away when full or when the server goes down.

It knows numbers. It does not know HTTP, and it cancels nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from voxlane.server.errors import Draining, Overloaded


class Gate:
    """Admits up to `most` requests at a time until it is closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._empty = asyncio.Event()
        self._empty.set()
        self.inside = 0
        self.closed = False

    def check(self) -> None:
        """Raise Draining or Overloaded if nobody would be admitted now."""
        if self.closed:
            raise Draining
        if self.inside >= self._most:
            raise Overloaded(detail="open_requests")

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count the caller as inside, or raise as `check` does."""
        self.check()
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._empty.set()

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until nobody is inside; return False when that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

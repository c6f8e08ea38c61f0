"""Counts open requests and the bytes they hold; refuses new requests when the server is full or shuts down.

It cancels no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voxlane.server.cell.counts import CellCounts
from voxlane.server.errors import Draining, Overloaded


class RequestLimit:
    """Admits up to `most` requests at a time until it is closed."""

    def __init__(
        self, most: int, check_room: Callable[[], None] = lambda: None, counts: CellCounts | None = None
    ) -> None:
        """Admit `most` at a time, as long as `check_room` raises no error."""
        self._most = most
        self._check_room = check_room
        self._counts = counts or CellCounts()  # of all server processes
        self._empty = asyncio.Event()
        self._empty.set()
        self.inside = 0
        self.closed = False

    def check(self) -> None:
        """Raise Draining, Overloaded or NoRoom if no request would be admitted now."""
        if self.closed:
            raise Draining
        if self.inside + self._counts.elsewhere("open_requests") >= self._most:
            raise Overloaded(detail="open_requests")
        self._check_room()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count the request as open while it runs, or raise as `check` does."""
        self.check()
        self.inside += 1
        self._counts.put("open_requests", self.inside)
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            self._counts.put("open_requests", self.inside)
            if not self.inside:
                self._empty.set()

    async def wait_empty(self, seconds: float) -> bool:
        """Wait until no request is open; return False when that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


class Allowance:
    """Bytes that all requests together may hold."""

    def __init__(self, most: int, counts: CellCounts | None = None) -> None:
        self._most = most
        self._counts = counts or CellCounts()  # of all server processes
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Give one request its share; all of it is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.give_back(share.held)

    def take(self, count: int) -> None:
        """Count bytes as held, or raise Overloaded."""
        if self.held + self._counts.elsewhere("held_bytes") + count > self._most:
            raise Overloaded(detail="audio_held_bytes")
        self.held += count
        self._counts.put("held_bytes", self.held)

    def give_back(self, count: int) -> None:
        """Count bytes as held no more."""
        self.held -= count
        self._counts.put("held_bytes", self.held)


class Share:
    """The bytes that one request holds of an Allowance."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self.held = 0

    def hold(self, count: int) -> None:
        """Hold more, or raise Overloaded."""
        self._allowance.take(count)
        self.held += count

    def give_back(self, count: int) -> None:
        """Hold less."""
        count = min(count, self.held)
        self._allowance.give_back(count)
        self.held -= count

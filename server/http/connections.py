"""The HTTP connections of a server: how many each address has, and those that are ending."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from voxlane.server.cell.counts import CellCounts


class Ending(Protocol):
    """A connection that was answered and waits for its peer to go."""

    def abort(self) -> None:
        """End it at once."""


class OpenConnections:
    """The HTTP connections of one server; a WebSocket is none any more."""

    def __init__(self, counts: CellCounts | None = None) -> None:
        self._counts = counts or CellCounts()  # of all server processes
        self._by_address: Counter[str] = Counter()
        self.ending: set[Ending] = set()

    def of(self, address: str) -> int:
        """Return how many connections an address has, at all server processes."""
        return self._by_address[address] + int(self._counts.keyed_elsewhere("connections of address", address))

    def all(self, here: int) -> int:
        """Return how many connections of all kinds there are, of which `here` are this process's."""
        self._counts.put("connections", here)
        return here + int(self._counts.elsewhere("connections"))

    def opened(self, address: str) -> None:
        """Count a connection."""
        self._by_address[address] += 1
        self._counts.add_keyed("connections of address", address, 1)

    def closed(self, address: str) -> None:
        """Count it no more."""
        self._by_address[address] -= 1
        self._counts.add_keyed("connections of address", address, -1)
        if self._by_address[address] <= 0:
            del self._by_address[address]

    def end(self) -> None:
        """End those that wait for their peers."""
        for connection in list(self.ending):
            connection.abort()

"""Close a connection whose request head does not arrive within a few seconds.

uvicorn waits for a head for ever, and the number of connections is limited: a client that opens them all and sends
nothing would keep every other client out.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxlane.server import limits


class HeadInTime(H11Protocol):
    """uvicorn's HTTP/1.1, with a time limit for heads; bodies and answers have limits of their own."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Keep the time limit while a head is incomplete; a WebSocket has none after its head."""
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded or self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._due is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._due = self.loop.call_later(limits.HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

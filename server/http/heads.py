"""Connections that say nothing: a request's head must have come within a few seconds, or the connection is closed.

uvicorn waits for a head as long as it takes, and connections are counted: who opens as many as there may be would shut
out everybody else for ever. It knows uvicorn's HTTP protocol, not requests.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxlane.server import limits


class HeadInTime(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on how long a head takes; bodies and answers have limits of their own."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Go on waiting while a head is incomplete; what a WebSocket does after its own is not ours to time."""
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded or self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._due is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._due = self.loop.call_later(limits.HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

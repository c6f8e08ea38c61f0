"""Limit the time of an HTTP connection outside of its requests: before a head is complete, and after an answer.

Requests that cannot be read are answered with 400 and end their connection (framing.py).

uvicorn waits for ever, for a head and for the rest of a body that was answered unread, and the number of connections is
limited: a client that opens them all and sends nothing more would keep every other client out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxlane.server import limits
from voxlane.server.http.connections import OpenConnections
from voxlane.server.http.framing import StrictConnection, is_ascii
from voxlane.server.http.transports import HttpTransport

_EXTENSION = "voxlane.body_pending"


def body_pending(scope: Scope) -> bool:
    """Return whether a part of the request's body has not arrived yet."""
    pending: Callable[[], bool] | None = scope.get("extensions", {}).get(_EXTENSION)
    return pending is not None and pending()


class HeadInTime(H11Protocol):
    """uvicorn's HTTP/1.1, with time limits for heads and after answers; bodies and answers have limits of their own."""

    _due: asyncio.TimerHandle | None = None

    def __init__(self, opened: OpenConnections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictConnection(limits.HEAD_BYTES)
        self._opened = opened
        self._address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first head."""
        self._transport = _EndingTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, self._transport))
        self._address = self.client[0] if self.client else "-"
        self._opened.opened(self._address)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Keep the time limit while a head is incomplete; a WebSocket has none after its head."""
        if self._transport.lingering:
            self._transport.rest(limits.LINGER_REST_SECONDS)
            return
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded:
            self._opened.closed(self._address)
        if upgraded or self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._due is None:
            self._wait()

    def handle_events(self) -> None:
        """Give each request a way to see whether its body is complete."""
        super().handle_events()
        if self.scope is not None:  # its task has not run yet
            self.scope["extensions"] = {_EXTENSION: cast(dict[object, object], self.body_pending)}

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Refuse a handshake that the WebSocket library cannot read."""
        if is_ascii(event):
            super().handle_websocket_upgrade(event)
        else:
            self.logger.warning("A WebSocket handshake with headers that are not ASCII.")
            self.send_400_response("The headers of a WebSocket handshake must be ASCII.")

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, unless its answer has begun; end the connection and its request."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def body_pending(self) -> bool:
        """Return whether a part of a body is still to come."""
        return self.conn.their_state is h11.SEND_BODY

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limits."""
        self._stop_waiting()
        self._transport.lost()
        self._opened.closed(self._address)
        self._opened.ending.discard(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.inner.abort()

    def linger(self) -> bool:
        """Let the rest of an answered request's body pass, for a short time; return False if there is none."""
        if not self.body_pending() or len(self._opened.ending) >= limits.ENDING_CONNECTIONS:
            return False
        self.flow.resume_reading()
        self._opened.ending.add(self)
        self.connections.discard(self)  # it takes the place of no other
        self._transport.linger(limits.LINGER_SECONDS)
        return True

    def _wait(self) -> None:
        self._due = self.loop.call_later(limits.HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class _EndingTransport(HttpTransport):
    """Does not close under a body that is still coming: the reset would take the answer from the client."""

    def __init__(self, inner: asyncio.Transport, owner: HeadInTime) -> None:
        super().__init__(inner, limits.WRITE_SECONDS)
        self._owner = owner

    def close(self) -> None:
        """Close the transport, after the rest of a body if there is one."""
        if not self.is_closing() and not self._owner.linger():
            super().close()

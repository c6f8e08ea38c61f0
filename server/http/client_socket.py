"""What a connection needs of a client's socket: a WebSocket has it, and a call over WebRTC."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from starlette.websockets import WebSocketState

MADE_UP = "voxlane.made_up"
"""Key of a received message: true if the server has made it in the place of what the client did not send."""


class ClientSocket(Protocol):
    """A socket that was accepted."""

    application_state: WebSocketState

    @property
    def query_params(self) -> Mapping[str, str]:
        """The query of its address."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of its handshake."""

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """Its ASGI scope; `subprotocols` is always in it."""

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next message as ASGI has it."""

    async def send_text(self, data: str) -> None:
        """Send a text."""

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes."""

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        """Close it."""

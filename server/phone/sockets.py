"""The connections of calls: a WebSocket, or a TCP stream in Asterisk's AudioSocket framing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from voxlane.server.errors import VoxlaneError
from voxlane.server.http.frames import REFUSAL
from voxlane.server.protocols.phone.line_events import Message

READ_BYTES = 4096
"""Bytes that are read from a TCP stream at once."""


class WebSocketLine:
    """A call over a WebSocket that was accepted."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> Message | None:
        """Return the next message, None if the far end is gone; raise the error of one that breaks the limits."""
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return None
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        data: bytes | None = message.get("bytes")
        if data is not None:
            return data
        if REFUSAL in message:
            raise cast(VoxlaneError, message[REFUSAL])
        text: str = message.get("text") or ""
        return text

    async def send(self, message: Message) -> None:
        """Send a message; raise ConnectionError if the far end is gone."""
        try:
            if isinstance(message, str):
                await self._websocket.send_text(message)
            else:
                await self._websocket.send_bytes(message)
        except (WebSocketDisconnect, RuntimeError) as error:  # RuntimeError: the socket is closed
            raise ConnectionError from error

    async def close(self, code: int) -> None:
        """Close the connection."""
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(code)


class StreamLine:
    """A call over a TCP stream. Each message is the bytes of one read: the codec finds the frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # Sound that waits in this process would count as played: `send` waits until all of it has left.
        writer.transport.set_write_buffer_limits(high=0)

    async def receive(self) -> Message | None:
        """Return the next bytes, None if the far end is gone."""
        try:
            return await self._reader.read(READ_BYTES) or None
        except OSError:  # the far end is gone, or cannot be reached any more
            return None

    async def send(self, message: Message) -> None:
        """Send bytes."""
        assert isinstance(message, bytes)
        try:
            self._writer.write(message)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionError from error

    async def close(self, code: int) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

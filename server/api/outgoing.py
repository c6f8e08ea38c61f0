"""An answer that is sent in pieces, as a body or as server-sent events; slow readers have a time limit."""

from __future__ import annotations

from starlette.types import Message, Send

from voxlane.server.api.disconnect import send_within

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Outgoing:
    """An answer that starts with its first piece: until then an error can still be an HTTP status."""

    def __init__(self, send: Send, write_s: float, content_type: str) -> None:
        self._send = send
        self._write_s = write_s
        self._content_type = content_type
        self.started = False

    async def body(self, data: bytes) -> None:
        """Send bytes."""
        if not self.started:
            self.started = True
            headers = [
                (b"content-type", self._content_type.encode()),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),  # nginx would otherwise hold the pieces back
            ]
            await self.write({"type": "http.response.start", "status": 200, "headers": headers})
        if data:
            await self.write({"type": "http.response.body", "body": data, "more_body": True})

    async def event(self, data: bytes, name: str = "") -> None:
        """Send one event, with its name where the protocol has one."""
        head = f"event: {name}\n".encode() if name else b""
        await self.body(head + b"data: " + data + b"\n\n")

    async def end(self) -> None:
        """End the answer."""
        await self.body(b"")
        await self.write({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, message: Message) -> None:
        """Send any message within the time a client has to read it."""
        await send_within(self._send, message, self._write_s)

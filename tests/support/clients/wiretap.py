"""A relay in front of a server that keeps every WebSocket message in both directions.

Bytes pass unchanged, the handshake included, so a client talks to the real server. Frames and JSON are parsed; the
meaning of messages is not.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from relay import Relay, pump
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol, Side

Sender = Literal["client", "server"]
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One JSON message, and when it passed."""

    at_s: float
    sender: Sender
    event: dict[str, Any]

    @property
    def type(self) -> str:
        """Return the type of the event."""
        return str(self.event.get("type"))


@dataclass(slots=True)
class Wire:
    """One WebSocket connection, from its handshake to its close."""

    answer: str = ""  # the head of the server's answer
    messages: list[Message] = field(default_factory=list)
    close_codes: dict[Sender, int] = field(default_factory=dict)

    def events(self, sender: Sender, *types: str) -> list[dict[str, Any]]:
        """Return the events of one side, of these types or all."""
        return [line.event for line in self.messages if line.sender == sender and (not types or line.type in types)]


class _Ear:
    """Reads the frames of one direction as they pass."""

    def __init__(self, wire: Wire, sender: Sender) -> None:
        side: Side = SERVER if sender == "client" else CLIENT  # the side that receives them
        self._wire = wire
        self._sender = sender
        self._protocol = Protocol(side, max_size=None)
        self._head: bytes | None = b""
        self._text = b""

    def hear(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, found, data = self._head.partition(HEAD_END)
            if not found:
                return
            self._head = None
            if self._sender == "server":
                self._wire.answer = head.decode("latin-1")
        self._protocol.receive_data(data)
        self._protocol.data_to_send()  # discard answers to pings: the client sends its own
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame)
            self._keep(frame)

    def _keep(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE and frame.data:
            self._wire.close_codes[self._sender] = int.from_bytes(frame.data[:2])
        if frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._text += frame.data
            if frame.fin:
                self._wire.messages.append(Message(time.monotonic(), self._sender, json.loads(self._text)))
                self._text = b""


class Wiretap(Relay):
    """Keeps all messages in `wires`."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(url, "wiretap", tls)
        self.wires: list[Wire] = []

    @property
    def wire(self) -> Wire:
        """Return the only connection that became a WebSocket."""
        (found,) = [wire for wire in self.wires if wire.messages]
        return found

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire()
        self.wires.append(wire)
        up_reader, up_writer = await self._open_upstream()
        try:
            await asyncio.gather(
                pump(reader, up_writer, _Ear(wire, "client").hear),
                pump(up_reader, writer, _Ear(wire, "server").hear),
            )
        finally:
            for each in (writer, up_writer):
                each.close()

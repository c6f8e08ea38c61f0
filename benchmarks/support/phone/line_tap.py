"""A relay between Asterisk and the server that keeps what the server sends: sound, and when it discards sound.

Only so can the moment be found at which a lowered reply is heard: Asterisk hands mu-law on byte by byte, so the first
sound behind a `FLUSH_MEDIA` is found again in the packets of the phone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

from support.command_line import REPOSITORY
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, Protocol

sys.path.append(str(REPOSITORY / "tests" / "support"))

from relay import Relay, pump

HEAD_END = b"\r\n\r\n"


@dataclass(slots=True)
class SentToLine:
    """What the server sent over one connection: the moments of its flushes, and the sound after each."""

    flushes: list[float] = field(default_factory=list)
    sounds: list[bytearray] = field(default_factory=lambda: [bytearray()])  # before the first flush, and after each


class _Reader:
    """Reads the server's frames as they pass."""

    def __init__(self, sent: SentToLine) -> None:
        self._sent = sent
        self._protocol = Protocol(CLIENT, max_size=None)
        self._head: bytes | None = b""

    def hear(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            _, found, data = self._head.partition(HEAD_END)
            if not found:
                return
            self._head = None
        self._protocol.receive_data(data)
        self._protocol.data_to_send()  # discard answers to pings: Asterisk sends its own
        for frame in self._protocol.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode is Opcode.BINARY:
                self._sent.sounds[-1] += frame.data
            elif frame.opcode is Opcode.TEXT and json.loads(bytes(frame.data)).get("command") == "FLUSH_MEDIA":
                self._sent.flushes.append(time.monotonic())
                self._sent.sounds.append(bytearray())


class LineTap(Relay):
    """Listens at `url`; `sent` is the account of the last call."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "line tap")
        self.sent = SentToLine()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readuntil(HEAD_END)
        sent = SentToLine()
        if b"upgrade: websocket" in first.lower():  # Asterisk also asks what follows after a call
            self.sent = sent
        up_reader, up_writer = await self._open_upstream()
        up_writer.write(first)
        try:
            await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer, _Reader(sent).hear))
        finally:
            for each in (writer, up_writer):
                each.close()

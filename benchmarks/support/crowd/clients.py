"""Many clients of the native dialect in one thread, cheap enough not to disturb the measured server.

A microphone's frames are masked and packed before the first is sent, so that 20 ms of sound cost one system call. Of
the server's messages only the names are read. The WebSocket code trusts the server.
"""

from __future__ import annotations

import asyncio
import os
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence

import msgpack
from support.people import in_turns

BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
READ_BYTES = 1 << 18


def framed(data: bytes, opcode: int = BINARY) -> bytes:
    """Return a client's WebSocket frame; its mask is zero, which costs the server as much as any other."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0xFE]) + len(data).to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + data


def microphone(speech: bytes, frame_bytes: int) -> list[bytes]:
    """Return speech as WebSocket frames."""
    starts = range(0, len(speech) - frame_bytes + 1, frame_bytes)
    return [framed(msgpack.packb(("audio", speech[start : start + frame_bytes]))) for start in starts]


class Caller:
    """One client."""

    path = "/v1/voice"
    subprotocol = "voxlane.v1"

    def __init__(self, address: tuple[str, int], heard: Counter[str]) -> None:
        self.close_code: int | None = None  # of the server's close frame
        self._address = address
        self._heard = heard  # count of each message, over all callers
        self._socket = socket.socket()
        self._data = bytearray()

    async def connect(self, **hello: object) -> None:
        """Do the handshake and send hello."""
        loop, host = asyncio.get_running_loop(), "{}:{}".format(*self._address)
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n" if self.subprotocol else ""
        request = (
            f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n"
            f"{protocol}\r\n"
        )
        await loop.sock_sendall(self._socket, request.encode())
        while b"\r\n\r\n" not in self._data:
            if not (more := await loop.sock_recv(self._socket, READ_BYTES)):
                raise ConnectionError("the server hung up in the handshake")
            self._data += more
        status, _, rest = bytes(self._data).partition(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(status.partition(b"\r\n")[0].decode())
        self._data[:] = rest
        self._begin(hello)
        loop.add_reader(self._socket.fileno(), self._on_readable)

    def _begin(self, hello: dict[str, object]) -> None:
        self._socket.send(framed(msgpack.packb(("hello", hello))))

    def send(self, frame: bytes) -> None:
        """Send a frame; raise ConnectionError if the buffer is full because the server does not read."""
        if self.close_code is None and self._socket.send(frame) != len(frame):
            raise ConnectionError("the server does not read")

    def hang_up(self) -> None:
        """Close the connection."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_readable(self) -> None:
        try:
            more = self._socket.recv(READ_BYTES)
        except ConnectionError:
            more = b""
        if not more:
            self.close_code = self.close_code or 1006
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            return
        data = self._data
        data += more
        at = 0
        while at + 2 <= len(data):
            head, length = (
                (2, data[at + 1]) if data[at + 1] < 126 else (4, int.from_bytes(data[at + 2 : at + 4], "big"))
            )
            if data[at + 1] == 127:
                head, length = 10, int.from_bytes(data[at + 2 : at + 10], "big")
            if len(data) < at + head + length:
                break
            self._take(data[at] & 15, at + head, length)
            at += head + length
        del data[:at]

    def _take(self, opcode: int, start: int, length: int) -> None:
        data = self._data
        if opcode == BINARY:  # an array of up to 15 values that begins with a name of up to 31 bytes
            self._heard[data[start + 2 : start + 2 + (data[start + 1] & 31)].decode()] += 1
        elif opcode == PING:
            self.send(framed(bytes(data[start : start + length]), PONG))
        elif opcode == CLOSE:
            self.close_code = int.from_bytes(data[start : start + 2], "big") if length else 1005


async def speak(callers: Sequence[Caller], frames: Sequence[bytes], spread: int, stop: asyncio.Event) -> float:
    """Let every caller send a recording's frames, each `spread` frames on; return how late one was at most."""
    return await in_turns(callers, lambda caller, at: caller.send(frames[at % len(frames)]), spread, stop)

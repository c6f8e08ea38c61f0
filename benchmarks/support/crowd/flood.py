"""Hostile clients in a process of their own: each kind of flood, as fast as the server takes it.

A flood has a few connections. One that the server closes is opened again at once, as an attacker would.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable

import msgpack
import uvloop
from support.command_line import command_line
from support.crowd.clients import BINARY, PONG, framed

CONTINUATION, TEXT, PING = 0, 1, 9
FROM = "127.0.0.2"
"""The attackers' address: limits per address are theirs, not those of the people who talk."""
AT_ONCE = 4
TRICKLES = 60
BLOCK = 1 << 18
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

Address = tuple[str, int]
Flood = Callable[["Attacker"], Awaitable[None]]


class Attacker:
    """One connection after the other."""

    def __init__(self, address: Address, sent: Counter[str]) -> None:
        self._address = address
        self._sent = sent  # connections and bytes, over all attackers
        self._socket = socket.socket()

    async def run(self, flood: Flood) -> None:
        """Repeat a flood for ever."""
        while True:
            with socket.socket() as self._socket:
                self._socket.setblocking(False)
                self._socket.bind((FROM, 0))
                try:
                    await asyncio.get_running_loop().sock_connect(self._socket, self._address)
                    self._sent["connections"] += 1
                    await flood(self)
                except OSError:  # closed by the server
                    await asyncio.sleep(0)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)
        self._sent["bytes"] += len(data)

    async def read(self) -> bytes:
        """Return what the server sent."""
        return await asyncio.get_running_loop().sock_recv(self._socket, BLOCK)

    async def upgrade(self, hello: dict[str, object] | None = None) -> None:
        """Open a WebSocket, with a hello if one is given."""
        key = b64encode(os.urandom(16))
        await self.send(
            b"GET /v1/voice HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: "
            + key
            + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: voxlane.v1\r\n\r\n"
        )
        await self.read()
        if hello is not None:
            await self.send(framed(msgpack.packb(("hello", hello))))
            await self.read()

    async def pour(self, block: bytes) -> None:
        """Send a block again and again."""
        while True:
            await self.send(block)


def repeated(frame: bytes) -> bytes:
    """Return a block of equal frames."""
    return frame * (BLOCK // len(frame))


async def continuations(attacker: Attacker) -> None:
    """Send the beginning of a message and then its empty pieces."""
    await attacker.upgrade()
    await attacker.send(bytes([TEXT, 0x80]) + bytes(4))
    await attacker.pour(repeated(bytes([CONTINUATION, 0x80]) + bytes(4)))


async def pongs(attacker: Attacker) -> None:
    """Send pongs that answer nothing, in a conversation."""
    await attacker.upgrade({})
    await attacker.pour(repeated(framed(b"", PONG)))


async def unread_pings(attacker: Attacker) -> None:
    """Send pings, in a conversation, and never read the pongs."""
    await attacker.upgrade({})
    await attacker.pour(repeated(framed(bytes(125), PING)))


async def messages(attacker: Attacker) -> None:
    """Send small messages, in a conversation."""
    await attacker.upgrade({})
    await attacker.pour(repeated(framed(msgpack.packb(("ping", 1)), BINARY)))


async def chunks(attacker: Attacker) -> None:
    """Send a body in chunks of one byte."""
    await attacker.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    await attacker.pour(repeated(b"1\r\n \r\n"))


async def trickles(attacker: Attacker) -> None:
    """Declare a body and send it byte by byte."""
    await attacker.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        await attacker.send(b"x")
        await asyncio.sleep(0.001)


async def opens(attacker: Attacker) -> None:
    """Begin a conversation and vanish."""
    await attacker.upgrade({})


FLOODS: dict[str, tuple[Flood, int]] = {
    "continuation frames": (continuations, AT_ONCE),
    "pongs": (pongs, AT_ONCE),
    "unread pings": (unread_pings, AT_ONCE),
    "small messages": (messages, AT_ONCE),
    "1-byte chunks": (chunks, AT_ONCE),
    "trickled bodies": (trickles, TRICKLES),
    "opens": (opens, AT_ONCE),
}
"""Each flood and how many connections it has at one time."""


async def attack(name: str, address: Address, seconds: float) -> Counter[str]:
    """Run a flood for a time; return how many connections and bytes there were."""
    flood, count = FLOODS[name]
    sent = Counter[str]()
    tasks = [asyncio.create_task(Attacker(address, sent).run(flood)) for _ in range(count)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sent


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("name", choices=FLOODS)
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    result = uvloop.run(attack(options.name, ("127.0.0.1", options.port), options.seconds))
    sys.stdout.write(f"{result['connections']} {result['bytes']}\n")

"""A bare client of the native dialect for tests: it can also send invalid messages."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

SUBPROTOCOL = "voxlane.v1"
MANUAL: dict[str, Any] = {"config": {"turns": {"mode": "manual"}}}


def speech(text: str, seconds: float = 0.1) -> bytes:
    """Return sound at 16 kHz in which the scripted engine hears a text."""
    return array("h", [*map(ord, text), *[0] * int(16_000 * seconds)]).tobytes()


LOOK_S = 0.002
"""Time between two looks: not zero, since the work that is waited for may need this core."""


async def eventually(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition holds; the test's own deadline ends it."""
    while True:
        if condition():
            return
        await asyncio.sleep(LOOK_S)


class Peer:
    """One socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[list[Any]] = []

    @classmethod
    async def open(cls, url: str, hello: dict[str, Any] | None = None, at: str | None = None, **options: Any) -> Peer:
        """Connect, to resume `at` a server if that is given; with a hello also wait for `ready`."""
        address = url.replace("http", "ws", 1).rstrip("/") + "/v1/voice" + (f"?at={at}" if at is not None else "")
        options = {"subprotocols": [SUBPROTOCOL], "compression": None, **options}
        peer = cls(await connect(address, **options))
        if hello is not None:
            await peer.send("hello", hello)
            await peer.until("ready")
        return peer

    @property
    def ready(self) -> dict[str, Any]:
        """Return the fields of `ready`."""
        return next(message[2] for message in reversed(self.seen) if message[0] == "ready")

    async def send(self, *message: Any) -> None:
        """Send a message."""
        await self.socket.send(msgpack.packb(message))

    async def next(self) -> list[Any]:
        """Return the next message."""
        data = await self.socket.recv()
        assert isinstance(data, bytes)
        self.seen.append(msgpack.unpackb(data))
        return self.seen[-1]

    async def until(self, name: str, condition: Callable[[list[Any]], bool] = lambda _: True) -> list[Any]:
        """Return the next message of a name for which a condition holds."""
        while True:
            message = await self.next()
            if message[0] == name and condition(message):
                return message

    async def closed(self) -> int:
        """Read to the end and return the close code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else 1006

    async def say(self, text: str) -> list[list[Any]]:
        """Type a turn and return all messages up to its end."""
        start = len(self.seen)
        await self.send("text", text)
        await self.until("turn_done")
        return self.seen[start:]

    async def bye(self) -> None:
        """Send bye and wait for the close."""
        await self.send("bye")
        assert await self.closed() == 1000

    def drop(self) -> None:
        """Break the connection without a close."""
        self.socket.transport.abort()

    def of(self, name: str) -> list[list[Any]]:
        """Return all messages of a name."""
        return [message for message in self.seen if message[0] == name]


@asynccontextmanager
async def bystander(running: Any) -> AsyncIterator[Peer]:
    """Hold a conversation during a test, and check that it was not disturbed."""
    peer = await Peer.open(running.url, MANUAL)
    yield peer
    assert (await peer.say("still here"))[-1][3] == "done"
    await peer.bye()

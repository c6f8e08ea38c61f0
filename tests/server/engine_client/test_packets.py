"""The server's end of the engine's socket against one played by the test: it notices whether the other end is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from voxlane.engine.api import FRAGMENT_BYTES, Assembler, FromEngine, Loading, Message, Ping, Pong, encode, fragments
from voxlane.server import limits
from voxlane.server.engine_client.packets import PacketPipe

ENOUGH = 20
"""Words from the other side that are waited for: far more than may be missing."""


class Other:
    """The other side: it reads what comes, and answers if it is one that does."""

    def __init__(self, sock: socket.socket, answer: Message | None) -> None:
        self.heard: list[Message | None] = []
        self.enough = asyncio.Event()
        self._answer = answer
        self._sock = sock
        self._assembler = Assembler()
        sock.setblocking(False)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    def leave(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def _read(self) -> None:
        packet = self._sock.recv(FRAGMENT_BYTES)
        if not packet:
            return self.leave()
        self.heard.append(self._assembler.feed(packet))
        if self._answer is not None:
            self._sock.send(fragments(encode(self._answer))[0])
        if len(self.heard) >= ENOUGH:
            self.enough.set()
        return None


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give both ends, where looks come quickly."""
    monkeypatch.setattr(limits, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(limits, "SILENT_LOOKS", 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


async def test_who_says_nothing_is_given_up(sockets: tuple[socket.socket, socket.socket]) -> None:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    received: list[FromEngine] = []
    pipe = PacketPipe(sockets[0], received.append, lost.set_result)
    other = Other(sockets[1], answer=None)
    pipe.watch()
    async with asyncio.timeout(60):
        assert await lost == "it says nothing any more"
    other.leave()
    assert set(map(type, other.heard)) == {Ping}
    assert not received


@pytest.mark.parametrize("answer", [Pong(), Loading("still at it", 0.5)], ids=["a pong", "anything else"])
async def test_who_answers_is_kept(sockets: tuple[socket.socket, socket.socket], answer: FromEngine) -> None:
    lost: list[str] = []
    received: list[FromEngine] = []
    pipe = PacketPipe(sockets[0], received.append, lost.append)
    other = Other(sockets[1], answer)
    pipe.watch()
    async with asyncio.timeout(60):
        await other.enough.wait()
    pipe.close()
    other.leave()
    assert not lost
    assert set(received) == ({answer} if answer != Pong() else set())  # a pong is not passed on


async def test_nobody_is_asked_before_there_is_somebody_who_reads(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    lost: list[str] = []
    pipe = PacketPipe(sockets[0], lambda _: None, lost.append)
    assert pipe._watch is None
    pipe.send(Ping())
    assert pipe._watch is None
    pipe.close()
    pipe.watch()
    assert pipe._watch is None
    assert not lost

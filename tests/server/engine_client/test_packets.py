"""The server's end of the engine's socket against one played by the test: it notices whether the other end is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from voxlane.engine.api import (
    FRAGMENT_BYTES,
    Append,
    Assembler,
    Cancel,
    EndInput,
    FromEngine,
    Loading,
    Message,
    Ping,
    Pong,
    encode,
    fragments,
)
from voxlane.server import limits
from voxlane.server.engine_client.packets import SOON_S, PacketPipe
from voxlane.server.errors import Overloaded

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


def packets_in(sock: socket.socket) -> list[list[Message]]:
    """Return the messages of each packet that has come."""
    assembler, found = Assembler(), list[list[Message]]()
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while packet := sock.recv(FRAGMENT_BYTES):
            found.append(list(assembler.messages(packet)))
    return found


async def test_sound_of_many_voices_shares_a_packet(sockets: tuple[socket.socket, socket.socket]) -> None:
    pipe = PacketPipe(sockets[0], lambda _: None, lambda _: None)
    sounds = [Append(f"s{number}/hear1", audio=bytes([number]) * 1920) for number in range(8)]
    for sound in sounds:
        pipe.send_soon(sound)
    assert packets_in(sockets[1]) == []
    await asyncio.sleep(2 * SOON_S)
    assert packets_in(sockets[1]) == [sounds]
    pipe.close()


async def test_any_other_message_sends_the_sound_before_it(sockets: tuple[socket.socket, socket.socket]) -> None:
    pipe = PacketPipe(sockets[0], lambda _: None, lambda _: None)
    first, last = Append("a/hear1", audio=bytes(1920)), Append("b/hear1", audio=bytes(1920))
    pipe.send_soon(first)
    pipe.send(EndInput("a/hear1"))
    pipe.send_soon(last)
    pipe.send(Cancel("b/hear1"))
    messages = [message for packet in packets_in(sockets[1]) for message in packet]
    assert messages == [first, EndInput("a/hear1"), last, Cancel("b/hear1")]
    pipe.close()


async def test_much_sound_does_not_wait(sockets: tuple[socket.socket, socket.socket]) -> None:
    pipe = PacketPipe(sockets[0], lambda _: None, lambda _: None)
    for number in range(40):
        pipe.send_soon(Append(f"s{number}/hear1", audio=bytes(1920)))
    packets = packets_in(sockets[1])
    assert len(packets) == 2
    assert sum(map(len, packets)) in range(34, 40)
    pipe.close()
    pipe.send_soon(Append("a/hear1", audio=bytes(2)))
    await asyncio.sleep(2 * SOON_S)  # nothing is sent, and no timer runs on
    assert packets_in(sockets[1]) == []


async def test_sound_is_refused_when_too_much_waits(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES", 5000)
    pipe = PacketPipe(sockets[0], lambda _: None, lambda _: None)
    for _ in range(2):
        pipe.send_soon(Append("a/hear1", audio=bytes(1920)))
    with pytest.raises(Overloaded):
        pipe.send_soon(Append("a/hear1", audio=bytes(1920)))
    pipe.close()

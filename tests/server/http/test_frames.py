"""Frames of every kind on WebSockets: floods of them, those without a key, and clients that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import uvicorn
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import MANUAL, bystander, eventually
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol

from voxlane.server import limits
from voxlane.server.api import sockets
from voxlane.server.config import PhoneKeys
from voxlane.server.conversation.client_events import Audio, TextTurn
from voxlane.server.http.frames import CountedFrames
from voxlane.server.phone import incoming
from voxlane.server.protocols.native import NATIVE
from voxlane.server.protocols.openai_realtime.protocol import REALTIME
from voxlane.server.sessions.connection import Connection
from voxlane.server.sessions.conversation import Conversation

KEY = "secret"
PONG, PING, CONTINUED = (bytes([first, 0x80, 0, 0, 0, 0]) for first in (0x8A, 0x89, 0x00))
BEGUN = bytes([0x02, 0x80, 0, 0, 0, 0])  # the first piece of a message
FLOODS = {"pongs": PONG * 20_000, "pings": PING * 20_000, "continuations": BEGUN + CONTINUED * 20_000}
TOO_FAST, REFUSED = 4429, 1008  # a telephone system knows no codes of ours


def frame(kind: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(kind, data, fin).serialize(mask=True)


def message(*parts: Any) -> bytes:
    return frame(Opcode.BINARY, msgpack.packb(parts))


class RawSocket:
    """A WebSocket of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def close_code(self) -> int:
        """Read to the close, answer it and return its code."""
        while True:
            first, length = await self.reader.readexactly(2)
            if length == 126:
                length = int.from_bytes(await self.reader.readexactly(2), "big")
            data = await self.reader.readexactly(length)
            if first & 0x0F == Opcode.CLOSE:
                self.writer.write(frame(Opcode.CLOSE, data))
                return int.from_bytes(data[:2], "big")


@asynccontextmanager
async def raw(
    running: Any,
    path: str = "/v1/voice",
    key: str = "",
    receive_bytes: int = 0,
    source: str = "127.0.0.1",
    *,
    answered: bool = True,
) -> AsyncIterator[RawSocket]:
    """Open a WebSocket without a library; wait for the answer to its handshake unless that waits."""
    sock = socket.socket()
    sock.bind((source, 0))
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, running.listener.getsockname())
    reader, writer = await asyncio.open_connection(sock=sock)
    head = [
        f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: voxlane.v1", *([f"Authorization: Bearer {key}"] if key else []), "", "",
    ]  # fmt: skip
    writer.write("\r\n".join(head).encode())
    if answered:
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    try:
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()


class Parsed:
    """Counts the frames that the server parses, and those of each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: Counter[int] = Counter()
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        receive = Protocol.recv_frame

        def counted(protocol: Protocol, one: Frame) -> None:
            self.turns[self._turn] += 1
            receive(protocol, one)

        monkeypatch.setattr(Protocol, "recv_frame", counted)
        self._tick()

    def _tick(self) -> None:
        self._turn += 1
        self._handle = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


def without_refill(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let what may come at once be all that may come: a busy machine sends slowly."""
    changes = {"frames_per_s": 0.0, **changes}
    monkeypatch.setattr(sockets, "NATIVE", replace(NATIVE, rate_limits=replace(NATIVE.rate_limits, **changes)))
    monkeypatch.setattr(sockets, "REALTIME", replace(REALTIME, rate_limits=replace(REALTIME.rate_limits, **changes)))
    monkeypatch.setattr(incoming, "RATE_LIMITS", replace(incoming.RATE_LIMITS, **changes))


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize(
    ("path", "code", "burst"),
    [
        ("/v1/voice", TOO_FAST, limits.VOICE_FRAMES_BURST),
        ("/v1/realtime", TOO_FAST, limits.REALTIME_FRAMES_BURST),
        ("/v1/phone", REFUSED, limits.VOICE_FRAMES_BURST),
    ],
)
async def test_a_flood_of_frames_is_closed_and_holds_up_nobody(
    serving: Any, monkeypatch: pytest.MonkeyPatch, path: str, code: int, burst: int, flood: str
) -> None:
    without_refill(monkeypatch)
    async with serving(api_key=KEY) as running:
        parsed = Parsed(monkeypatch)
        try:
            async with raw(running, path, KEY) as client:
                client.writer.write(FLOODS[flood])
                assert await client.close_code() == code
                await eventually(lambda: not running.service.sessions.limits.sockets)
        finally:
            parsed.stop()
        assert max(parsed.turns.values()) <= limits.FRAMES_PER_TURN
        assert parsed.turns.total() <= burst + 1  # and the close


SOUND = b"".join(message("audio", bytes(60_000)) for _ in range(4))  # eight seconds at once


@pytest.mark.parametrize("flood", [PONG * 20_000, SOUND], ids=["frames", "sound"])
async def test_a_flooder_is_read_no_more_and_its_address_pauses(
    serving: Any, monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    without_refill(monkeypatch)
    monkeypatch.setattr(limits, "LAST_FRAME_SECONDS", 0.05)
    monkeypatch.setattr(limits, "FLOOD_PAUSE_SECONDS", 3600.0)
    reads = []
    receive = CountedFrames.data_received
    monkeypatch.setattr(CountedFrames, "data_received", lambda *got: (reads.append(got[1]), receive(*got))[1])
    async with serving() as running, raw(running) as client, raw(running, source="127.0.0.2") as other:
        client.writer.write(message("hello", MANUAL) + flood)
        assert await client.close_code() == TOO_FAST
        before = len(reads)
        client.writer.write(flood)
        other.writer.write(message("hello", MANUAL))
        assert b"ready" in await other.reader.readuntil(b"ready")
        await eventually(lambda: len(running.http._server.server_state.connections) == 1)
        assert len(reads) == before + 1, "the other one's hello"
        async with raw(running, answered=False) as again, raw(running, source="127.0.0.2"):
            assert not again.reader._buffer, "those of another address do not wait"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/v1/voice", "/v1/phone"])
@pytest.mark.parametrize("first", [PING, PONG, frame(Opcode.PING, b"hello")], ids=["ping", "pong", "ping with data"])
async def test_without_a_key_only_the_first_message_is_taken(
    serving: Any, monkeypatch: pytest.MonkeyPatch, path: str, first: bytes
) -> None:
    async with serving(api_key=KEY, phone_keys=PhoneKeys(phone=KEY)) as running:
        parsed = Parsed(monkeypatch)
        async with raw(running, path) as client:
            client.writer.write(first)
            assert await client.close_code() == (4401 if path == "/v1/voice" else REFUSED)
            await eventually(lambda: not running.service.sessions.limits.sockets)
        parsed.stop()
        assert parsed.turns.total() <= 1  # the close


async def test_without_a_key_a_message_has_few_pieces(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api_key=KEY) as running:
        parsed = Parsed(monkeypatch)
        async with raw(running) as client:
            client.writer.write(BEGUN + CONTINUED * 1000)
            assert await client.close_code() == TOO_FAST
            await eventually(lambda: not running.service.sessions.limits.sockets)
        parsed.stop()
        assert parsed.turns.total() <= limits.FIRST_FRAMES + 1


NOT_UTF8 = {
    "a text": frame(Opcode.TEXT, b'{"type": "\xff"}'),
    "in pieces": frame(Opcode.TEXT, b"\xc3", fin=False) + frame(Opcode.CONT, b"("),
    "a reason": frame(Opcode.CLOSE, b"\x03\xe8\xff\xfe"),
    "half a code": frame(Opcode.CLOSE, b"\x03"),
}


@pytest.mark.parametrize("path", ["/v1/voice", "/v1/realtime", "/v1/phone"])
@pytest.mark.parametrize("sent", NOT_UTF8)
async def test_what_is_not_utf8_is_closed_in_one_line(
    serving: Any, caplog: pytest.LogCaptureFixture, path: str, sent: str
) -> None:
    async with serving() as running, bystander(running), raw(running, path) as peer:
        peer.writer.write(NOT_UTF8[sent])
        assert await peer.close_code() in (1007, 1002)
    assert not any(record.exc_info or "\n" in record.getMessage() for record in caplog.records)


async def test_a_character_in_two_pieces_is_whole(serving: Any) -> None:
    said = '{"type": "é"}'.encode()
    async with serving() as running, raw(running, "/v1/realtime") as peer:
        peer.writer.write(frame(Opcode.TEXT, said[:11], fin=False) + frame(Opcode.CONT, said[11:]))
        assert b'"error"' in await peer.reader.readuntil(b"invalid_request_error")


async def test_an_endless_message_ends(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_refill(monkeypatch, frames_burst=1 << 20)
    async with serving() as running, raw(running) as client:
        client.writer.write(BEGUN + CONTINUED * (limits.FRAGMENTS + 1))
        assert await client.close_code() == TOO_FAST


async def test_a_hello_in_pieces_and_all_that_follows_at_once(serving: Any) -> None:
    hello = msgpack.packb(("hello", {**MANUAL, "key": KEY}))
    pieces = [(Opcode.BINARY, hello[:10]), (Opcode.CONT, hello[10:11]), (Opcode.CONT, b"")]
    begun = b"".join(frame(kind, data, fin=False) for kind, data in pieces) + frame(Opcode.CONT, hello[11:])
    follows = message("audio", bytes(640)) * 50 + PING * 50 + message("bye")  # more than is taken before a key
    async with serving(api_key=KEY) as running, raw(running) as client:
        client.writer.write(begun + follows)
        assert await client.close_code() == 1000


async def test_frames_that_come_byte_by_byte(serving: Any) -> None:
    long = "x" * 300  # its frame has a length of two bytes
    sent = message("hello", MANUAL) + message("config", {"instructions": long}) + PING + message("bye")
    async with serving() as running, raw(running) as client:
        closing = asyncio.create_task(client.close_code())
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(sent)):
            client.writer.write(sent[at : at + 1])
            await asyncio.sleep(0)
        assert await closing == 1000


def connection_of(running: Any, client: RawSocket) -> Any:
    """Return the server's side of a WebSocket."""
    port = client.writer.get_extra_info("sockname")[1]
    return next(one for one in running.http._server.server_state.connections if one.client[1] == port)


def stop_reading(connection: Any, client: RawSocket) -> None:
    """Let the client read nothing more, and the kernel hold next to nothing."""
    client.writer.transport.pause_reading()
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def test_pings_whose_answers_are_not_read_stop_the_reading(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_refill(monkeypatch, frames_burst=1 << 20)
    monkeypatch.setattr(limits, "SOCKET_WRITE_SECONDS", 0.2, raising=False)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", 0.1)
    async with serving() as running, bystander(running), raw(running, receive_bytes=4096) as client:
        connection = connection_of(running, client)
        client.writer.write(message("hello", MANUAL))
        stop_reading(connection, client)
        client.writer.write(frame(Opcode.PING, bytes(125)) * 20_000)
        waiting = [0]

        def is_gone() -> bool:
            waiting.append(connection.transport.get_write_buffer_size())
            return bool(connection.disconnected)

        await eventually(is_gone)
        assert 0 < max(waiting) < 256 * 1024  # of 2.5 MB
        closed = running.service.metrics.sockets_closed.labels("4408")
        await eventually(lambda: closed._value.get() == 1)


@pytest.mark.parametrize("waits", [20_000, 4_000_000], ids=["some", "more than a buffer"])
async def test_a_client_that_never_reads_is_gone_when_its_session_is(
    serving: Any, monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    monkeypatch.setattr(limits, "SOCKET_WRITE_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", 0.05)
    async with serving() as running, bystander(running), raw(running, receive_bytes=4096) as client:
        connection = connection_of(running, client)
        client.writer.write(message("hello", MANUAL))
        await eventually(lambda: len(running.service.sessions.conversations) == 2)
        stop_reading(connection, client)
        connection.transport.write(bytes(waits))
        assert connection.transport.get_write_buffer_size()
        client.writer.write(message("bye"))  # while much waits not even that is read
        await eventually(lambda: connection.disconnected)
        assert len(running.service.sessions.conversations) == 1


@pytest.mark.parametrize("answers", [True, False], ids=["it answers", "it does not"])
async def test_a_server_that_ends_waits_for_the_answer_to_its_close_frame(
    serving: Any, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Else bytes that a client is sending would reset the connection, and it would not learn the code."""
    monkeypatch.setattr(limits, "LAST_FRAME_SECONDS", 3600.0 if answers else 0.05)
    async with serving() as running, raw(running) as client:
        connection = connection_of(running, client)
        client.writer.write(message("hello", MANUAL) + message("bye"))
        await eventually(lambda: connection.close_sent)
        connection.shutdown()
        assert not connection.transport.is_closing()
        client.writer.write(message("text", "more"))
        if answers:
            assert await client.close_code() == 1000
        await eventually(lambda: connection.transport.is_closing())


# ---- the same messages as without us


class Sink:
    """Takes the place of a TCP transport."""

    def __init__(self) -> None:
        self.closed = False
        self.reads = True
        self.write = bytearray().extend

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _: str) -> None:
        return None


async def received(kind: Any, chunks: list[bytes]) -> list[Any]:
    """Return what an application receives of the bytes after a handshake."""
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        if kind is CountedFrames:
            scope["extensions"]["voxlane.frames"].admit(replace(NATIVE.rate_limits, frames_burst=1 << 20))
        while True:
            got = await receive()
            seen.append((got["type"], got.get("text"), got.get("bytes"), got.get("code")))
            if got["type"] == "websocket.disconnect":
                return

    config = uvicorn.Config(application, log_config=None, lifespan="off", ws_per_message_deflate=False)
    protocol, sink, state = kind(config=config, server_state=ServerState(), app_state={}), Sink(), ServerState()
    protocol.connections = state.connections
    protocol.connection_made(sink)
    head = "GET / HTTP/1.1|Host: x|Upgrade: websocket|Connection: Upgrade|Sec-WebSocket-Version: 13"
    protocol.data_received(f"{head}|Sec-WebSocket-Key: {'A' * 22}==||".replace("|", "\r\n").encode())
    await asyncio.sleep(0)
    for chunk in chunks:
        for _ in range(20):  # more turns than a message needs
            await asyncio.sleep(0)
            if sink.reads:
                break
        if sink.closed:
            break
        protocol.data_received(chunk)
    for _ in range(100):  # more turns than there are frames
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    for _ in range(3):
        await asyncio.sleep(0)
    return seen


KINDS = st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG])
FRAMES = st.builds(
    lambda kind, data, fin, masked: Frame(
        kind, data[:125] if kind >= Opcode.CLOSE else data, fin or kind >= Opcode.CLOSE
    ).serialize(mask=masked),
    KINDS,
    st.one_of(st.binary(max_size=125), st.text(max_size=30).map(str.encode), st.just(b"x" * 300)),
    st.booleans(),
    st.sampled_from([True] * 9 + [False]),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=3)), max_size=12), st.lists(st.integers(1, 200), max_size=12))
def test_applications_receive_what_uvicorn_alone_would_give_them(frames: list[bytes], cuts: list[int]) -> None:
    data, chunks = b"".join(frames), list[bytes]()
    for cut in cuts:
        chunks.append(data[:cut])
        data = data[cut:]
    chunks = [chunk for chunk in (*chunks, data) if chunk]
    # Byte by byte: uvicorn drops the messages of a read in which a later frame breaks the rules.
    single = [bytes([one]) for chunk in chunks for one in chunk]
    assert asyncio.run(received(CountedFrames, chunks)) == asyncio.run(received(WebSocketsSansIOProtocol, single))


async def test_sound_is_taken_at_once_and_in_order(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that come in one read: sound does not overtake a message before it, and one is taken in a turn."""
    seen: list[tuple[int, str]] = []
    turn = 0
    feed, receive = Conversation.feed, Connection._receive

    def counted() -> None:
        nonlocal turn, handle
        turn += 1
        handle = asyncio.get_running_loop().call_soon(counted)

    def fed(conversation: Conversation, event: Any) -> None:
        if isinstance(event, Audio | TextTurn):
            seen.append((turn, type(event).__name__))
        feed(conversation, event)

    async def received(connection: Connection) -> bytes | str:
        found = await receive(connection)
        seen.append((turn, "queued"))
        return found

    monkeypatch.setattr(Conversation, "feed", fed)
    monkeypatch.setattr(Connection, "_receive", received)
    handle = asyncio.get_running_loop().call_soon(counted)
    sound, text = message("audio", bytes(640)), message("text", "hello")
    async with serving() as running, raw(running) as client:
        client.writer.write(message("hello", MANUAL))
        await client.reader.readuntil(b"ready")  # it is written after the reading has begun
        seen.clear()
        client.writer.write(sound * 3 + text + sound * 3)
        await eventually(lambda: [name for _, name in seen].count("Audio") == 6)
    handle.cancel()
    names = [name for _, name in seen]
    assert names[:5] == ["Audio"] * 3 + ["queued", "TextTurn"]
    assert [name for name in names if name != "queued"] == ["Audio"] * 3 + ["TextTurn"] + ["Audio"] * 3
    turns = [when for when, name in seen if name == "Audio"]
    assert len(set(turns)) == len(turns), "two frames in one turn of the event loop"


@pytest.mark.parametrize(("data", "code"), [(bytes(641), 4400), (bytes(64 * 1024), 1009)])
async def test_bad_sound_ends_the_connection(serving: Any, data: bytes, code: int) -> None:
    async with serving() as running, raw(running) as client:
        client.writer.write(message("hello", MANUAL) + message("audio", bytes(640)) + message("audio", data))
        assert await client.close_code() == code

"""Connections that open and say nothing, or never finish what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from peer import MANUAL, Peer, eventually

from voxlane.server import limits
from voxlane.server.config import LimitsConfig

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"messages": [{"role": "user", "content": "hello"}]}'


@pytest.mark.parametrize("said", [b"", HEAD], ids=["silent", "half a head"])
async def test_who_never_asks_is_not_kept(serving: Any, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        writer.write(said)
        assert await reader.read() == b""
        writer.close()


async def test_a_body_may_take_longer_than_a_head(serving: Any) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        await eventually(lambda: server.http._server.server_state.connections)
        (connection,) = server.http._server.server_state.connections
        assert connection._due is not None
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        await eventually(lambda: connection._due is None)  # from now on no clock runs against it
        writer.write(BODY)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()


@pytest.mark.parametrize(("kept_s", "stays"), [(0.05, False), (3600, True)])
async def test_an_idle_connection_is_kept_for_its_own_time(
    serving: Any, monkeypatch: pytest.MonkeyPatch, kept_s: float, stays: bool
) -> None:
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", kept_s)
    async with serving() as server:
        port, connections = server.listener.getsockname()[1], server.http._server.server_state.connections
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await eventually(lambda: connections)
        (idle,) = connections
        monkeypatch.setattr(limits, "HEAD_SECONDS", 0.5)  # this one's own is under way
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        # Another one says nothing and is closed half a second later: a clock that stands still when the server does.
        clock, silent = await asyncio.open_connection("127.0.0.1", port)
        assert await clock.read() == b""
        assert (idle in connections) is stays
        if not stays:
            assert await reader.read() == b""
        for opened in (writer, silent):
            opened.close()


def test_clients_close_idle_connections_before_the_server_does() -> None:
    for limit in (httpx.Limits(), openai.DEFAULT_CONNECTION_LIMITS):
        assert limit.keepalive_expiry is not None
        assert limit.keepalive_expiry < limits.KEEP_ALIVE_SECONDS


DECLARED = b"Host: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """Return the head of the next answer, and read its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head


@pytest.mark.parametrize(
    ("asked", "status"), [(b"GET /healthz", b"200"), (b"POST /v1/nowhere", b"404"), (b"POST /v1/models", b"405")]
)
async def test_an_answer_to_an_unread_body_is_the_last(
    serving: Any, monkeypatch: pytest.MonkeyPatch, asked: bytes, status: bytes
) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.05, raising=False)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        await eventually(lambda: server.http._server.server_state.connections)
        (connection,) = server.http._server.server_state.connections
        writer.write(asked + b" HTTP/1.1\r\n" + DECLARED)
        head = await _answer(reader)
        assert head.startswith(b"http/1.1 " + status)
        assert b"connection: close" in head
        assert await reader.read() == b""  # the end comes at once, though the body does not
        while not connection.transport.inner.is_closing():  # a trickle does not keep it
            writer.write(b"x")
            await asyncio.sleep(0.01)
        writer.close()


async def test_answered_connections_with_unread_bodies_shut_out_nobody(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 3600, raising=False)
    async with serving(limits=LimitsConfig(connections=40)) as server:
        port, connections = server.listener.getsockname()[1], server.http._server.server_state.connections
        trickles = []
        for _ in range(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n" + DECLARED + b"x")
            assert b"connection: close" in await _answer(reader)
            trickles.append(writer)
        assert (await server.client.get("/v1/models")).status_code == 200
        assert len(connections) == 1
        for writer in trickles:
            writer.write(b"x")
        assert (await server.client.get("/v1/models")).status_code == 200
        # They are gone with their clients, or with the server.
        for writer in trickles[:30]:
            writer.close()
        await eventually(lambda: len(server.http._connections.ending) == 30)
    for writer in trickles[30:]:
        writer.close()


async def test_those_that_wait_for_their_peers_are_few(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 3600, raising=False)
    monkeypatch.setattr(limits, "ENDING_CONNECTIONS", 2, raising=False)
    opened = []
    async with serving() as server:
        for waits in (1, 2, 2, 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
            writer.write(b"GET /healthz HTTP/1.1\r\n" + DECLARED)
            assert await _answer(reader)
            assert await reader.read() == b""
            assert len(server.http._connections.ending) == waits
            opened.append(writer)
    for writer in opened:
        writer.close()


async def test_an_answer_is_not_lost_under_a_large_body(serving: Any) -> None:
    body = bytes(4_000_000)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        writer.write(b"POST /v1/nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        assert (await _answer(reader)).startswith(b"http/1.1 404")
        assert await reader.read() == b""
        writer.close()


async def test_the_rest_of_a_body_passes_slowly(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINGER_REST_SECONDS", 3600)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        await eventually(lambda: server.http._server.server_state.connections)
        (connection,) = server.http._server.server_state.connections
        writer.write(b"POST /v1/nowhere HTTP/1.1\r\n" + DECLARED)
        assert (await _answer(reader)).startswith(b"http/1.1 404")
        writer.write(b"x")
        await eventually(lambda: not connection._transport.inner.is_reading())  # until its time is over
        writer.close()


async def test_a_body_that_came_whole_keeps_the_connection(serving: Any) -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        for _ in range(3):
            writer.write(b"POST /v1/nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\nbody")
            head = await _answer(reader)
            assert head.startswith(b"http/1.1 404")
            assert b"connection: close" not in head
        writer.close()


async def test_connections_of_one_address_are_limited(serving: Any) -> None:
    async with serving(limits=LimitsConfig(connections_per_address=2)) as server:
        port = server.listener.getsockname()[1]
        sockets = [await Peer.open(server.url, MANUAL) for _ in range(3)]  # these are no HTTP connections any more
        assert (await server.client.get("/v1/models")).status_code == 200
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = others[0]
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await _answer(reader)).startswith(b"http/1.1 200")  # operators can still look
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = await _answer(reader)
        assert head.startswith(b"http/1.1 503")
        assert b"connection: close" in head
        assert await reader.read() == b""
        await eventually(lambda: server.http._connections.of("127.0.0.1") == 2)
        assert (await server.client.get("/v1/models")).status_code == 200
        for _, opened in others:
            opened.close()
        for peer in sockets:
            await peer.bye()
        await eventually(lambda: server.http._connections.of("127.0.0.1") == 1)

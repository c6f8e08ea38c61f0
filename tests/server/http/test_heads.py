"""Connections that open and say nothing, or never finish what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from peer import eventually

from voxlane.server import limits

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

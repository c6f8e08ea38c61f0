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


async def test_clients_close_idle_connections_before_the_server_does(serving: Any) -> None:
    async with serving() as server:
        kept = server.http._config.timeout_keep_alive
        for limit in (httpx.Limits(), openai.DEFAULT_CONNECTION_LIMITS):
            assert limit.keepalive_expiry is not None
            assert limit.keepalive_expiry < kept

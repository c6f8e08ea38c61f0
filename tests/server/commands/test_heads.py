"""Connections that open and say nothing, or never finish what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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


async def test_a_body_may_take_longer_than_a_head(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
        writer.write(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        await asyncio.sleep(0.2)  # nothing to wait for: what is looked for is what does not happen
        writer.write(BODY)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()

"""Other chat servers on this machine: real HTTP servers that answer well, badly, slowly or not at all."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from voxlane.server.commands import neighbours
from voxlane.server.commands.neighbours import Neighbour, advice, find_neighbours

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def answering(body: bytes, status: str = "200 OK", *, silent: bool = False) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if silent:
            await reader.read()
        else:
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
            )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_server_that_lists_models_is_found() -> None:
    async with answering(b'{"object": "list", "data": [{"id": "qwen3:8b", "object": "model"}]}') as port:
        (found,) = await find_neighbours(1, {port: "Ollama"})
        assert found == Neighbour("Ollama", f"http://127.0.0.1:{port}/v1", "qwen3:8b")
        assert await find_neighbours(port, {port: "Ollama"}) == [], "our own port is no neighbour"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"<html>hello</html>", "200 OK"),
        (b"[]", "200 OK"),
        (b'{"data": []}', "200 OK"),
        (b'{"data": [{"id": 5}]}', "200 OK"),
        (b'{"data": [{"id": "a\\"b"}]}', "200 OK"),
        (b'{"data": [{"id": "a\\nb"}]}', "200 OK"),
        (b'{"data": [{"id": "m", "owned_by": "voxlane"}]}', "200 OK"),
        (b'{"data": [{"id": "m"}]}', "404 Not Found"),
        (b" " * (neighbours.MAX_ANSWER_BYTES + 1), "200 OK"),
    ],
)
async def test_what_is_no_chat_server_is_passed_over(body: bytes, status: str) -> None:
    async with answering(body, status) as port:
        assert await find_neighbours(1, {port: "vLLM"}) == []


async def test_a_silent_port_does_not_hold_up_the_banner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "TIMEOUT_S", 0.05)
    async with answering(b"", silent=True) as port:
        assert await find_neighbours(1, {port: "vLLM"}) == []
    assert await find_neighbours(1, {port: "vLLM"}) == [], "the port is closed by now"


def test_the_advice_is_configuration_that_can_be_used() -> None:
    told = advice(Neighbour("Ollama", "http://127.0.0.1:11434/v1", "qwen3:8b"))
    parsed = tomllib.loads("\n".join(line.strip() for line in told.splitlines()[1:]))
    assert parsed == {"chat": {"url": "http://127.0.0.1:11434/v1", "model": "qwen3:8b"}}

"""Conversations with the chat model of another server: ours again, or one that answers badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from peer import Peer, eventually

from voxlane.engine.api import Finished, Pause, Resume, Submit
from voxlane.server.config import ChatConfig
from voxlane.server.engine_client.remote_chat import RemoteChat

TOOLS = [{"name": "weather", "description": "?", "parameters": '{"type": "object", "properties": {}}'}]


def remote(url: str) -> ChatConfig:
    return ChatConfig(f"{url}/v1", "scripted")


async def test_another_server_answers_and_remembers(serving: Any) -> None:
    async with serving() as other, serving(model="", chat=remote(other.url)) as running:
        peer = await Peer.open(running.url, {})
        assert peer.ready["capabilities"]["chat_model"] == "scripted"
        told = await peer.say("hello to you all")
        assert "".join(message[3] for message in told if message[0] == "reply_text") == "hello to you all"
        assert b"".join(message[4] for message in told if message[0] == "audio")[::2] == b"hello to you all"
        told = await peer.say("history")
        text = "".join(message[3] for message in told if message[0] == "reply_text")
        assert "user=hello to you all;assistant=hello to you all;user=history;" in text
        await peer.bye()


async def test_a_temperature_nobody_chose_is_the_other_servers(serving: Any) -> None:
    async with serving() as other, serving(model="", chat=remote(other.url)) as running:
        for config, said in (({}, "unset=('temperature', "), ({"temperature": 0.5}, "temperature=0.5, ")):
            peer = await Peer.open(running.url, {"config": {"speaks": False, **config}})
            await peer.say("sampling")
            assert said in "".join(message[3] for message in peer.of("reply_text"))
            await peer.bye()


async def test_a_tool_there_is_called_here(serving: Any) -> None:
    async with serving() as other, serving(model="", chat=remote(other.url)) as running:
        peer = await Peer.open(running.url, {"config": {"tools": TOOLS, "speaks": False}})
        await peer.send("text", "call one moment")
        call = await peer.until("tool_call")
        assert call[4:] == ["weather", '{"city": "Paris"}']
        await peer.send("tool_result", call[3], "rain")
        await peer.until("reply_done", lambda message: message[3] == "rain")
        await peer.until("turn_done")
        await peer.send("config", {"tool_choice": "weather"})
        await peer.say("tools")
        assert "weather" in "".join(message[3] for message in peer.of("reply_text")[-3:])
        await peer.bye()


async def test_stopping_here_cancels_there(serving: Any) -> None:
    async with serving() as other, serving(model="", chat=remote(other.url)) as running:
        peer = await Peer.open(running.url, {})
        cancelled = other.service.metrics.finished_requests.labels("cancelled")._value
        for ending in ("stop", "bye"):
            before = cancelled.get()
            await peer.send("text", "wait for ever")
            await peer.until("reply_text")
            await peer.send(ending)
            await eventually(lambda before=before: cancelled.get() > before)
        assert await peer.closed() == 1000


async def test_our_engine_dies_while_another_thinks(serving: Any) -> None:
    async with serving() as other, serving(model="", chat=remote(other.url)) as running:
        peer = await Peer.open(running.url, {})
        await peer.send("text", "wait for ever")
        await peer.until("reply_text")
        running.kill_engine()
        assert (await peer.until("turn_done"))[3] == "failed"
        await eventually(lambda: not other.service.engine.open_streams)
        await peer.send("text", "history")
        assert (await peer.until("turn_done"))[3] == "done"
        await peer.bye()


@asynccontextmanager
async def stranger(*answers: bytes, asked: list[Any] | None = None) -> AsyncIterator[str]:
    """Run a server that gives these answers in turn, the last one again and again; note what it is `asked`."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(one.split(b":")[1]) for one in head.split(b"\r\n") if one.lower().startswith(b"content-len"))
        body = json.loads(await reader.readexactly(length))
        if asked is not None:
            asked.append(body)
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def stream(*chunks: str) -> bytes:
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return (head + "".join(f"data: {chunk}\n\n" for chunk in chunks)).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        b"",
        b"nonsense\r\n\r\n",
        stream("not json"),
        stream("[]"),
        stream("[" * 5000),
        stream('{"error": {"message": "full"}}'),
        stream('{"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}'),
        stream('{"choices": {"a": 1}}'),
    ],
)
async def test_a_server_that_answers_badly_fails_one_turn(serving: Any, answer: bytes) -> None:
    async with stranger(answer) as url, serving(model="", chat=ChatConfig(url, "x")) as running:
        peer = await Peer.open(running.url, {})
        told = await peer.say("hello")
        assert told[-1][3] == "failed"
        assert next(message for message in told if message[0] == "error")[2] == "engine_failed"
        await peer.send("ping", 1)
        await peer.until("pong")
        await peer.bye()


CALL = '{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "weather"}}]}}]}'


async def test_a_server_that_writes_a_call_that_is_none_is_asked_again_without_tools(serving: Any) -> None:
    bad = stream('{"choices": [{"delta": {"content": "<tool_call>{</tool_call>"}}]}', "[DONE]")
    good = stream('{"choices": [{"delta": {"content": "It rains."}}]}', CALL, "[DONE]")
    asked: list[Any] = []
    async with stranger(bad, good, asked=asked) as url, serving(model="", chat=ChatConfig(url, "x")) as running:
        peer = await Peer.open(running.url, {"config": {"tools": TOOLS}})
        told = await peer.say("hello")
        assert [body["tool_choice"] for body in asked] == ["auto", "none"]
        assert told[-1][3] == "done"
        assert next(message for message in told if message[0] == "reply_done")[3] == "It rains."
        assert not peer.of("tool_call"), "none was allowed"
        await peer.bye()


async def test_length_and_empty_chunks(serving: Any) -> None:
    answer = stream(
        '{"choices": []}',
        '{"choices": [{"delta": {"content": "One."}}]}',
        '{"choices": [{"delta": null, "finish_reason": "length"}]}',
        "[DONE]",
    )
    async with stranger(answer) as url, serving(model="", chat=ChatConfig(url, "x")) as running:
        peer = await Peer.open(running.url, {"config": {"seed": 4}})
        told = await peer.say("hello")
        assert told[-1][3] == "done"
        assert next(message for message in told if message[0] == "reply_done")[3] == "One."
        await peer.bye()


async def test_a_pause_stops_the_answer_there_and_the_sound_here() -> None:
    told: list[Any] = []
    here: list[Any] = []
    async with stranger(stream('{"choices": [{"delta": {"content": "One."}}]}', "[DONE]")) as url:
        chat = RemoteChat(ChatConfig(url, "x"), "")
        channel = chat.open(told.append)
        channel.engine = SimpleNamespace(tell=here.append, close=lambda: None)  # type: ignore[assignment]
        channel.tell(Submit("s/chat1", "chat"))
        channel.tell(Pause(("s/chat1", "s/say1")))
        await asyncio.sleep(0.2)
        assert (told, here) == ([], [Pause(("s/say1",))])
        channel.tell(Resume("s/chat1"))
        await eventually(lambda: told and isinstance(told[-1], Finished))
        assert told[0].text == "One."
        channel.tell(Pause(("s/chat1",)))
        assert here[1:] == [Pause(("s/chat1",))], "an answer that has ended is the engine's to ignore"
        channel.close()
        await chat.aclose()

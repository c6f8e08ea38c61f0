"""The stock asynchronous `openai` client, with a microphone and a player."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from client_script import INSTRUCTIONS, MAX_TOKENS, Player
from microphone import Microphone
from openai import VERSION, AsyncOpenAI

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"


def settings(turn_detection: dict[str, Any] | None) -> Any:
    """Return what a session.update says."""
    heard = {"transcription": {"model": "whisper-1"}, "turn_detection": turn_detection}
    return {
        "type": "realtime",
        "instructions": INSTRUCTIONS,
        "max_output_tokens": MAX_TOKENS,
        "audio": {"input": heard, "output": {"voice": "marin"}},
        "tools": [WEATHER],
        "tool_choice": "none",
    }


def message(role: str, text: str) -> Any:
    """Return an item of text."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@contextlib.asynccontextmanager
async def beside(*lives: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let coroutines run beside the block; one that fails ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(life) for life in lives]
        yield
        for task in tasks:
            task.cancel()


class Caller:
    """The stock asynchronous client, with a microphone and a player."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.microphone = Microphone()
        self.player = Player()
        self._seen: list[Any] = []
        self._news = asyncio.Condition()

    async def send(self, frame: bytes) -> None:
        """Send a frame of the microphone's."""
        await self.connection.input_audio_buffer.append(audio=base64.b64encode(frame).decode())

    async def listen(self) -> None:
        """Take what comes until cancelled."""
        async for event in self.connection:
            if event.type == "response.output_audio.delta":
                self.player.take(event.item_id, base64.b64decode(event.delta))
            if event.type == "input_audio_buffer.speech_started" and (cut := self.player.stop()):
                await self.connection.conversation.item.truncate(**cut)
            async with self._news:
                self._seen.append(event)
                self._news.notify_all()

    async def until(self, kind: str) -> Any:
        """Return the next event of a kind; what came before it is forgotten."""
        async with self._news:
            await self._news.wait_for(lambda: any(event.type == kind for event in self._seen))
            place = next(place for place, event in enumerate(self._seen) if event.type == kind)
            event, self._seen = self._seen[place], self._seen[place + 1 :]
            return event

    async def respond(self, **parameters: Any) -> Any:
        """Ask for a response and return how it ended."""
        await self.connection.response.create(response=parameters)
        return (await self.until("response.done")).response

    async def retrieve(self, item: str) -> Any:
        """Return an item as the server remembers it."""
        await self.connection.conversation.item.retrieve(item_id=item)
        return (await self.until("conversation.item.retrieved")).item

    async def remember(self, item: Any) -> None:
        """Put an item into the conversation."""
        await self.connection.conversation.item.create(item=item)


def stock_client(url: str, key: str) -> AsyncOpenAI:
    """Return the stock client. Version 1 makes wss:// of every base URL, unless it is told the one for WebSockets."""
    websocket: Any = {"websocket_base_url": f"{url.replace('http', 'ws', 1)}/v1"} if VERSION.startswith("1.") else {}
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, **websocket)


@contextlib.asynccontextmanager
async def calling(url: str, key: str, turn_detection: dict[str, Any] | None) -> AsyncIterator[Caller]:
    """Connect with the stock client and configure the session; without turn detection the microphone is off."""
    async with (
        stock_client(url, key) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        caller = Caller(connection)
        lives = [caller.listen()] + ([caller.microphone.run(caller.send)] if turn_detection else [])
        async with beside(*lives):
            assert (await caller.until("session.created")).session.type == "realtime"
            await connection.session.update(session=settings(turn_detection))
            updated = (await caller.until("session.updated")).session
            assert (updated.instructions, updated.audio.output.voice) == (INSTRUCTIONS, "marin")
            detection = updated.audio.input.turn_detection
            assert (detection and detection.type) == (turn_detection and turn_detection["type"])
            yield caller

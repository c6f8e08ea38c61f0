"""Clients that we did not write hold one conversation each with a real server, over the OpenAI Realtime API.

What passes between them is recorded and checked by realtime_scenario; here is what the client itself must notice.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner
from microphone import RATE, Microphone
from openai import AsyncOpenAI, OpenAI
from realtime_scenario import Hear, answers, check, left, listener, record, steady_key
from wiretap import Wiretap

pytestmark = pytest.mark.weights

INSTRUCTIONS = "You are a friendly voice assistant. Answer in one short sentence."
LISTENS_S = 0.8
"""How long the person listens to the story before cutting in."""

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FORECAST = "It is raining in Paris, 11 degrees."
ASKED = "What is the weather in Paris?"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"


def settings(turn_detection: dict[str, Any]) -> Any:
    """Return what a session.update says."""
    heard = {"transcription": {"model": "whisper-1"}, "turn_detection": turn_detection}
    return {
        "type": "realtime",
        "instructions": INSTRUCTIONS,
        "max_output_tokens": 30,
        "audio": {"input": heard, "output": {"voice": "marin"}},
        "tools": [WEATHER],
        "tool_choice": "none",
    }


def message(role: str, text: str) -> Any:
    """Return an item of text."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@pytest.fixture(scope="module")
def clips(server: Any) -> dict[str, bytes]:
    return record(server.client)


@pytest.fixture(scope="module")
def hear(server: Any) -> Hear:
    return listener(server.client)


@pytest.fixture
def key(server: Any) -> str:
    return steady_key(server.client)


@pytest.fixture
def tap(server: Any) -> Iterator[Wiretap]:
    with Wiretap(server.url) as tap:
        yield tap


class Player:
    """Plays each reply as it comes, after the one before it, and knows how much of it has been heard."""

    def __init__(self) -> None:
        self._item = ""
        self._began_s = self._ends_s = 0.0

    def take(self, item: str, pcm: bytes) -> None:
        """Play on."""
        at_s = max(self._ends_s, time.monotonic())
        if item != self._item:
            self._item, self._began_s = item, at_s
        self._ends_s = at_s + len(pcm) / 2 / RATE

    def left_s(self) -> float:
        """Return how long what has come will still play."""
        return max(0.0, self._ends_s - time.monotonic())

    def stop(self) -> dict[str, Any] | None:
        """Fall silent; return the truncation that the server is to be told, if there was something left to play."""
        now = time.monotonic()
        if now >= self._ends_s:
            return None
        self._ends_s = now
        return {"item_id": self._item, "content_index": 0, "audio_end_ms": int(max(0.0, now - self._began_s) * 1000)}


@contextlib.asynccontextmanager
async def beside(*lives: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let coroutines run beside the block; one that fails ends it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(life) for life in lives]
        yield
        for task in tasks:
            task.cancel()


# ---- openai, asynchronous


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


@contextlib.asynccontextmanager
async def calling(url: str, key: str, turn_detection: dict[str, Any]) -> AsyncIterator[Caller]:
    """Connect with the stock client and configure the session."""
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client,
        client.realtime.connect(model="gpt-realtime") as connection,
    ):
        caller = Caller(connection)
        async with beside(caller.microphone.run(caller.send), caller.listen()):
            assert (await caller.until("session.created")).session.type == "realtime"
            await connection.session.update(session=settings(turn_detection))
            updated = (await caller.until("session.updated")).session
            assert (updated.instructions, updated.audio.output.voice) == (INSTRUCTIONS, "marin")
            assert updated.audio.input.turn_detection.type == turn_detection["type"]
            yield caller


PLAIN: dict[str, Any] = {"conversation": "none", "output_modalities": ["text"], "tool_choice": "none"}


async def test_openai_async(tap: Wiretap, key: str, clips: dict[str, bytes], hear: Hear, server: Any) -> None:
    async with calling(tap.url, key, {"type": "semantic_vad", "interrupt_response": True}) as caller:
        caller.microphone.say(clips["question"])
        asked = [(await caller.until(TRANSCRIBED)).transcript]
        await caller.until("response.done")
        await asyncio.sleep(caller.player.left_s())
        caller.microphone.say(clips["story"])
        asked.append((await caller.until(TRANSCRIBED)).transcript)
        await caller.until("response.output_audio.delta")
        await asyncio.sleep(LISTENS_S)
        caller.microphone.say(clips["cut_in"])
        (story,) = (await caller.until("response.done")).response.output
        asked.append((await caller.until(TRANSCRIBED)).transcript)
        await caller.until("response.done")
        kept = (await caller.retrieve(story.id)).content[0].transcript
        await caller.remember(message("user", ASKED))
        (call,) = (await caller.respond(tool_choice="required")).output
        result = {"type": "function_call_output", "call_id": call.call_id, "output": FORECAST}
        await caller.remember(result)
        (told,) = (await caller.respond(tool_choice="none")).output
        await asyncio.sleep(caller.player.left_s())
        while (await caller.retrieve(told.id)).status != "completed":  # it is, once the server, too, thinks it heard
            pass
        seen = await caller.respond(**PLAIN)
    check(tap.wire, hear)
    question, _, cut_in, _, forecast, *_ = answers(tap.wire)
    talk = [asked[0], question.transcript, asked[1], kept, asked[2], cut_in.transcript]
    items = [message(("user", "assistant")[place % 2], text) for place, text in enumerate(talk)]
    items += [message("user", ASKED), call.model_dump(include={"type", "call_id", "name", "arguments"}), result]
    async with calling(server.url, steady_key(server.client), {"type": "server_vad"}) as caller:
        for item in [*items, message("assistant", forecast.transcript)]:
            await caller.remember(item)
        same = await caller.respond(**PLAIN)
    # The same prompt: the model knows of the story what was heard of it, and of all else what was said.
    assert seen.usage.input_tokens == same.usage.input_tokens
    assert seen.output[0].content[0].text == same.output[0].content[0].text


# ---- openai, synchronous


class BlockingCaller:
    """The stock synchronous client: a thread for the microphone, the test's own for what comes."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.microphone = Microphone()
        self.player = Player()

    def send(self, frame: bytes) -> None:
        """Send a frame of the microphone's."""
        self.connection.input_audio_buffer.append(audio=base64.b64encode(frame).decode())

    def until(self, kind: str) -> Any:
        """Return the next event of a kind."""
        while True:
            event = self.connection.recv()
            if event.type == "response.output_audio.delta":
                self.player.take(event.item_id, base64.b64decode(event.delta))
            if event.type == "input_audio_buffer.speech_started" and (cut := self.player.stop()):
                self.connection.conversation.item.truncate(**cut)
            if event.type == kind:
                return event


def test_openai_sync(tap: Wiretap, key: str, clips: dict[str, bytes], hear: Hear) -> None:
    client = OpenAI(base_url=f"{tap.url}/v1", api_key=key)
    with client, client.realtime.connect(model="gpt-realtime") as connection:
        caller = BlockingCaller(connection)
        caller.until("session.created")
        connection.session.update(session=settings({"type": "server_vad", "silence_duration_ms": 400}))
        caller.until("session.updated")
        speaking = threading.Thread(target=caller.microphone.run_blocking, args=(caller.send,))
        speaking.start()
        try:
            hold_conversation(caller, clips)
        finally:
            caller.microphone.close()
            speaking.join()
    check(tap.wire, hear)


def hold_conversation(caller: BlockingCaller, clips: dict[str, bytes]) -> None:
    conversation = caller.connection.conversation
    caller.microphone.say(clips["question"])
    caller.until("response.done")
    time.sleep(caller.player.left_s())
    caller.microphone.say(clips["story"])
    caller.until("response.output_audio.delta")
    time.sleep(LISTENS_S)
    caller.microphone.say(clips["cut_in"])
    cut = caller.until("response.done").response
    assert cut.status == "cancelled"
    conversation.item.retrieve(item_id=cut.output[0].id)
    assert caller.until("conversation.item.retrieved").item.status == "incomplete"
    caller.until("response.done")
    conversation.item.create(item=message("user", ASKED))
    caller.connection.response.create(response={"tool_choice": "required"})
    (call,) = caller.until("response.done").response.output
    conversation.item.create(item={"type": "function_call_output", "call_id": call.call_id, "output": FORECAST})
    caller.connection.response.create(response={"tool_choice": "none"})
    caller.until("response.done")


# ---- openai-agents


class Audience:
    """What the SDK tells the application, and a player."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._news = asyncio.Condition()
        self.player = Player()
        self.events: list[Any] = []

    async def listen(self) -> None:
        """Take what comes until cancelled."""
        async for event in self._session:
            if event.type == "audio":
                self.player.take(event.item_id, event.audio.data)
            async with self._news:
                self.events.append(event)
                self._news.notify_all()

    def all(self, kind: str) -> list[Any]:
        """Return the events of a kind so far."""
        return [event for event in self.events if event.type == kind]

    async def until(self, kind: str, count: int) -> None:
        """Wait for so many events of a kind since the beginning."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.all(kind)) >= count)


async def choose_tools(session: Any, choice: str) -> None:
    """Change the session's tool choice, which the SDK has no word of its own for."""
    update = {"session": {"type": "realtime", "tool_choice": choice}}
    await session.model.send_event(RealtimeModelSendRawMessage({"type": "session.update", "other_data": update}))


async def test_openai_agents(tap: Wiretap, key: str, clips: dict[str, bytes], hear: Hear) -> None:
    @function_tool
    async def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        assert city
        await choose_tools(session, "none")
        return FORECAST

    runner = RealtimeRunner(RealtimeAgent(name="Guide", instructions=INSTRUCTIONS, tools=[get_weather]))
    url = tap.url.replace("http", "ws", 1) + "/v1/realtime?model=gpt-realtime"
    initial: Any = {"max_output_tokens": 30, "tool_choice": "none"}
    session = await runner.run(model_config={"api_key": key, "url": url, "initial_model_settings": initial})
    async with session:
        audience, microphone = Audience(session), Microphone()
        async with beside(audience.listen(), microphone.run(session.send_audio)):
            microphone.say(clips["question"])
            await audience.until("agent_end", 1)
            await asyncio.sleep(audience.player.left_s())
            microphone.say(clips["story"])
            await audience.until("agent_start", 2)
            await audience.until("audio", len(audience.all("audio")) + 1)
            await asyncio.sleep(LISTENS_S)
            microphone.say(clips["cut_in"])
            await audience.until("agent_end", 3)
            await choose_tools(session, "required")
            await session.send_message(ASKED)
            await audience.until("tool_end", 1)
            await audience.until("agent_end", 5)
    check(tap.wire, hear)
    assert audience.all("error") == []
    assert [event.output for event in audience.all("tool_end")] == [FORECAST]
    stopped = audience.all("audio_interrupted")[-1]
    (known,) = [item for item in audience.all("history_updated")[-1].history if item.item_id == stopped.item_id]
    assert known.content[0].transcript == left(tap.wire, stopped.item_id)

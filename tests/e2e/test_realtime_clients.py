"""Clients that we did not write hold one conversation each with a real server, over the OpenAI Realtime API.

What passes between them is recorded and checked by realtime_scenario; here is what the client itself must notice.
"""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents_caller import Audience, choose_tools
from client_script import ASKED, FORECAST, INSTRUCTIONS, LISTENS_S, Player
from microphone import Microphone
from openai import OpenAI
from openai_caller import TRANSCRIBED, beside, calling, message, settings
from realtime_scenario import Hear, answers, check, left, listener, record, steady_key
from wiretap import Wiretap

pytestmark = pytest.mark.weights


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


# ---- openai, asynchronous


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

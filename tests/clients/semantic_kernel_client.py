"""semantic-kernel: its OpenAIRealtimeWebsocket; with `--chat` its chat, speech and transcription over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from client_script import (
    ASKED,
    CHAT_MODEL,
    FORECAST,
    INSTRUCTIONS,
    LISTENS_S,
    MAX_TOKENS,
    SKY,
    Place,
    Player,
    play,
    wav,
)
from microphone import Microphone
from openai import AsyncOpenAI
from openai_caller import TRANSCRIBED, beside
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    InputAudioTranscription,
    OpenAIAudioToText,
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
    OpenAIRealtimeExecutionSettings,
    OpenAIRealtimeWebsocket,
    OpenAITextToAudio,
    SendEvents,
    TurnDetection,
)
from semantic_kernel.contents import (
    AudioContent,
    ChatHistory,
    RealtimeAudioEvent,
    RealtimeEvent,
    RealtimeTextEvent,
    TextContent,
)
from semantic_kernel.functions import kernel_function


class Weather:
    """A plugin with one function."""

    def __init__(self) -> None:
        self.called: dict[str, Any] = {}
        self.service: Any = None

    @kernel_function(name="get_weather", description="Get the current weather of a city.")
    async def get_weather(self, city: str) -> str:
        """Return the forecast; over Realtime, let the model then answer in words."""
        self.called["city"] = city
        if self.service:
            await self.service.connection.session.update(session={"type": "realtime", "tool_choice": "none"})
        return FORECAST


# ---- over Realtime


class Talk:
    """A running session, with a microphone and a player."""

    def __init__(self, service: OpenAIRealtimeWebsocket) -> None:
        self.service = service
        self.microphone, self.player = Microphone(), Player()
        self.said: list[str] = [""]  # of each response, as text events tell it
        self.events: list[Any] = []
        self._news = asyncio.Condition()

    async def hear(self, pcm: bytes) -> None:
        """Send a frame of the microphone's."""
        audio = AudioContent(data=base64.b64encode(pcm).decode(), data_format="base64")
        await self.service.send(RealtimeAudioEvent(audio=audio))

    async def listen(self) -> None:
        """Take what comes until cancelled."""
        async for event in self.service.receive():
            if isinstance(event, RealtimeAudioEvent):
                self.player.take(event.service_event.item_id, base64.b64decode(event.service_event.delta))
            if isinstance(event, RealtimeTextEvent):
                self.said[-1] += event.text.text
            if event.service_type == "input_audio_buffer.speech_started" and (cut := self.player.stop()):
                await self.send(SendEvents.CONVERSATION_ITEM_TRUNCATE, cut)
            if event.service_type == "response.done":
                self.said.append("")
            assert event.service_type != "error", event
            async with self._news:
                self.events.append(event)
                self._news.notify_all()

    def all(self, kind: str) -> list[Any]:
        """Return the service's own events of a type so far."""
        return [event.service_event for event in self.events if event.service_type == kind]

    async def until(self, kind: str, count: int = 1) -> Any:
        """Wait for so many events of a type since the beginning; return the last one."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[-1]

    async def send(self, kind: SendEvents, data: dict[str, Any] | None = None) -> None:
        """Send an event."""
        await self.service.send(RealtimeEvent(service_type=kind, service_event=data))

    async def type(self, words: str) -> None:
        """Type a message and ask for the answer."""
        await self.service.send(RealtimeTextEvent(text=TextContent(text=words)))
        await self.send(SendEvents.RESPONSE_CREATE)


@contextlib.asynccontextmanager
async def talking(place: Place, **more: Any) -> AsyncIterator[Talk]:
    """Open a session."""
    client = AsyncOpenAI(base_url=place.api, api_key=place.key)
    settings = OpenAIRealtimeExecutionSettings(
        instructions=INSTRUCTIONS,
        voice="alloy",
        turn_detection=TurnDetection(type="server_vad", create_response=True, interrupt_response=True),
        input_audio_transcription=InputAudioTranscription(model="whisper-1"),
        max_output_tokens=MAX_TOKENS,
        **more,
    )
    service = OpenAIRealtimeWebsocket(ai_model_id="gpt-realtime", client=client)
    weather = Weather()
    weather.service = service
    plugins = {"plugins": {"Weather": weather}} if more else {}
    async with client, service(settings=settings, **plugins):
        talk = Talk(service)
        async with beside(talk.listen(), talk.microphone.run(talk.hear)):
            await talk.until("session.updated")
            yield talk


async def connect(place: Place) -> dict[str, Any]:
    """Open a session and configure it."""
    async with talking(place):
        return {}


async def voice(place: Place) -> dict[str, Any]:
    """Ask aloud."""
    async with talking(place) as talk:
        talk.microphone.say(place.clips["question"])
        await talk.until("response.done")
        return {"asked": (await talk.until(TRANSCRIBED)).transcript, "said": talk.said[0]}


async def interruption(place: Place) -> dict[str, Any]:
    """Ask for a story and cut in; what is left of it is asked by the connection, for the service has no word for it."""
    async with talking(place) as talk:
        talk.microphone.say(place.clips["story"])
        await talk.until("response.output_audio.delta")
        await asyncio.sleep(LISTENS_S)
        talk.microphone.say(place.clips["cut_in"])
        (story,) = (await talk.until("response.done")).response.output
        await talk.until("response.done", 2)
        await talk.service.connection.conversation.item.retrieve(item_id=story.id)
        left = (await talk.until("conversation.item.retrieved")).item
        return {"kept": left.content[0].transcript, "said": talk.said[1]}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function of the kernel and use its result."""
    async with talking(place, function_choice_behavior=FunctionChoiceBehavior.Required()) as talk:
        await talk.type(ASKED)
        await talk.until("response.done", 2)
        (call,) = talk.all("response.function_call_arguments.done")
        return {"called": "get_weather", "arguments": json.loads(call.arguments), "said": talk.said[1]}


async def text(place: Place) -> dict[str, Any]:
    """Type a question."""
    async with talking(place, output_modalities=["text"]) as talk:
        await talk.type(SKY)
        await talk.until("response.done")
        return {"said": talk.said[0]}


# ---- over HTTP


@contextlib.asynccontextmanager
async def chatting(place: Place) -> AsyncIterator[tuple[AsyncOpenAI, OpenAIChatCompletion]]:
    """Make the chat service."""
    async with AsyncOpenAI(base_url=place.api, api_key=place.key) as client:
        yield client, OpenAIChatCompletion(ai_model_id=CHAT_MODEL, async_client=client)


SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": MAX_TOKENS}


async def ask(service: OpenAIChatCompletion, words: str, **more: Any) -> str:
    """Ask the chat model."""
    history = ChatHistory()
    history.add_user_message(words)
    settings = OpenAIChatPromptExecutionSettings(
        **SETTINGS, **{key: more.pop(key) for key in list(more) if key != "kernel"}
    )
    return str(await service.get_chat_message_content(history, settings, **more))


async def chat_connect(place: Place) -> dict[str, Any]:
    """Ask for an answer."""
    async with chatting(place) as (_, service):
        assert await ask(service, "Hello!")
        return {}


async def chat_voice(place: Place) -> dict[str, Any]:
    """Let a question be transcribed, answered and spoken."""
    async with chatting(place) as (client, service):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "question.wav"
            file.write_bytes(wav(place.clips["question"]))
            listener = OpenAIAudioToText(ai_model_id="whisper-1", async_client=client)
            asked = (await listener.get_text_content(AudioContent(uri=str(file)))).text
            answer = await ask(service, asked)
            speaker = OpenAITextToAudio(ai_model_id="tts-1", async_client=client)
            spoken = await speaker.get_audio_content(answer)
            file = Path(folder) / "answer.mp3"
            file.write_bytes(spoken.data)
            heard = (await listener.get_text_content(AudioContent(uri=str(file)))).text
        return {"asked": asked, "said": heard}


async def chat_tool(place: Place) -> dict[str, Any]:
    """Let the model call a function of the kernel and use its result."""
    kernel, weather = Kernel(), Weather()
    kernel.add_plugin(weather, "Weather")
    async with chatting(place) as (_, service):
        behaviour = FunctionChoiceBehavior.Required()
        said = await ask(service, ASKED, kernel=kernel, function_choice_behavior=behaviour)
        return {"called": "get_weather", "arguments": weather.called, "said": said}


async def chat_text(place: Place) -> dict[str, Any]:
    """Read an answer as it comes."""
    history = ChatHistory()
    history.add_user_message(SKY)
    async with chatting(place) as (_, service):
        stream = service.get_streaming_chat_message_content(history, OpenAIChatPromptExecutionSettings(**SETTINGS))
        pieces = [str(piece) async for piece in stream]
        assert len(pieces) > 2
        return {"said": "".join(pieces)}


CHAT = (chat_connect, chat_voice, chat_tool, chat_text)

play("semantic-kernel", connect, voice, interruption, tool, text, chat=CHAT)

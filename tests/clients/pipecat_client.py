"""pipecat's OpenAIRealtimeLLMService in a pipeline with a scripted microphone and a loudspeaker that takes its time.

With `--beta` it uses the older OpenAIRealtimeBetaLLMService.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from client_script import ASKED, FORECAST, INSTRUCTIONS, LISTENS_S, MAX_TOKENS, SKY, Place, Refused, play
from microphone import RATE, Microphone
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    ErrorFrame,
    Frame,
    FunctionCallResultFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    StartFrame,
    TranscriptionFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import FunctionCallParams
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

if version("pipecat-ai").startswith("0."):
    import pipecat_parts_0 as parts
else:
    import pipecat_parts_1 as parts


class Ear(BaseInputTransport):
    """Feeds the microphone's frames into the pipeline."""

    def __init__(self, microphone: Microphone) -> None:
        super().__init__(TransportParams(audio_in_enabled=True))
        self._microphone = microphone

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._running = self.create_task(self._microphone.run(self._push))

    async def cancel(self, frame: CancelFrame) -> None:
        await self.cancel_task(self._running)
        await super().cancel(frame)

    async def _push(self, pcm: bytes) -> None:
        await self.push_audio_frame(InputAudioRawFrame(audio=pcm, sample_rate=RATE, num_channels=1))


class Loudspeaker(BaseOutputTransport):
    """Plays for as long as the sound lasts."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True))

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        return True


class Watcher(BaseObserver):
    """Keeps what passes through the pipeline."""

    def __init__(self) -> None:
        super().__init__(observe_every_push=False)
        self.frames: list[Frame] = []
        self._news = asyncio.Condition()

    async def on_push_frame(self, data: FramePushed) -> None:
        towards = parts.TRANSCRIPTS if isinstance(data.frame, TranscriptionFrame) else FrameDirection.DOWNSTREAM
        if data.direction is towards or isinstance(data.frame, ErrorFrame):
            async with self._news:
                if data.frame.id not in {frame.id for frame in self.frames}:  # 0.0.85 tells of every step of its way
                    self.frames.append(data.frame)
                self._news.notify_all()

    def all(self, kind: type[Frame]) -> list[Frame]:
        """Return the frames of a kind so far."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, kind: type[Frame], count: int) -> None:
        """Wait for so many frames of a kind since the beginning; an error ends it."""

        def enough() -> bool:
            assert not self.all(ErrorFrame), self.all(ErrorFrame)
            return len(self.all(kind)) >= count

        async with self._news:
            await self._news.wait_for(enough)

    async def first(self, kind: type[Frame]) -> Frame:
        """Return the first frame of a kind."""
        async with self._news:
            await self._news.wait_for(lambda: self.all(kind))
            return self.all(kind)[0]


def properties(**heard: Any) -> Any:
    """Return the session's settings; turn detection is left to the server's default."""
    return parts.events.SessionProperties(
        instructions=INSTRUCTIONS,
        max_output_tokens=MAX_TOKENS,
        audio=parts.events.AudioConfiguration(
            input=parts.events.AudioInput(transcription=parts.events.InputAudioTranscription(), **heard)
        ),
        tool_choice="none",
    )


class Bot:
    """The pipeline, and what a conversation needs of it."""

    def __init__(self, place: Place, settings: Any, opening: str) -> None:
        self.microphone, self.watcher = Microphone(), Watcher()
        self.replies: list[str] = []  # ids of items
        self.called: list[FunctionCallParams] = []
        self.service = parts.make_service(place, settings)
        self.service.register_function("get_weather", self._get_weather)
        self.service.add_event_handler("on_conversation_item_created", self._created)
        user, assistant = parts.make_aggregators(self.service, [{"role": "user", "content": opening}])
        pipeline = Pipeline([Ear(self.microphone), user, self.service, Loudspeaker(), assistant])
        self.worker = parts.make_worker(pipeline, self.watcher)

    async def choose_tools(self, choice: str) -> None:
        """Change the session's tool choice."""
        await self.service.send_client_event(
            parts.events.SessionUpdateEvent(session=parts.events.SessionProperties(tool_choice=choice))
        )

    async def _get_weather(self, call: FunctionCallParams) -> None:
        self.called.append(call)
        await self.choose_tools("none")
        await call.result_callback(FORECAST)

    async def _created(self, _: object, name: str, item: object) -> None:
        if getattr(item, "role", None) == "assistant":
            self.replies.append(name)

    def asked(self) -> str:
        """Return what was understood last."""
        return str(self.watcher.all(TranscriptionFrame)[-1].text)

    async def said(self) -> str:
        """Return the last reply."""
        return str((await self.service.retrieve_conversation_item(self.replies[-1])).content[0].transcript)


@contextlib.asynccontextmanager
async def talking(place: Place, *, opening: str = "Hello!", **heard: Any) -> AsyncIterator[Bot]:
    """Run the pipeline; the model answers the opening at once."""
    bot = Bot(place, properties(**heard), opening)
    async with parts.running(bot.worker):
        await bot.worker.queue_frame(LLMRunFrame())
        yield bot


async def connect(place: Place) -> dict[str, Any]:
    """Open a session; the bot says something first."""
    async with talking(place) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        return {}


async def voice(place: Place) -> dict[str, Any]:
    """Ask aloud."""
    async with talking(place) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        bot.microphone.say(place.clips["question"])
        await bot.watcher.until(BotStoppedSpeakingFrame, 2)
        return {"asked": bot.asked(), "said": await bot.said()}


async def interruption(place: Place) -> dict[str, Any]:
    """Ask for a story and cut in."""
    async with talking(place) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        bot.microphone.say(place.clips["story"])
        await bot.watcher.until(BotStartedSpeakingFrame, 2)
        interruptions = len(bot.watcher.all(InterruptionFrame))
        await asyncio.sleep(LISTENS_S)
        story = bot.replies[-1]
        bot.microphone.say(place.clips["cut_in"])
        await bot.watcher.until(InterruptionFrame, interruptions + 1)
        await bot.watcher.until(BotStoppedSpeakingFrame, 3)
        left = await bot.service.retrieve_conversation_item(story)
        return {"kept": left.content[0].transcript, "said": await bot.said()}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result."""
    async with talking(place) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        await bot.choose_tools("required")
        bot.microphone.say(place.clips["weather"])
        await bot.watcher.until(FunctionCallResultFrame, 1)
        await bot.watcher.until(BotStoppedSpeakingFrame, 2)
        (call,) = bot.called
        seen = {"asked": bot.asked(), "said": await bot.said()}
        return {"called": call.function_name, "arguments": dict(call.arguments), **seen}


async def text(place: Place) -> dict[str, Any]:
    """Give the question as a text."""
    async with talking(place, opening=SKY) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        return {"said": await bot.said()}


async def push_to_talk(place: Place) -> dict[str, Any]:
    """Say something while the button is pressed."""
    async with talking(place, turn_detection=False) as bot:
        await bot.watcher.until(BotStoppedSpeakingFrame, 1)
        await bot.worker.queue_frame(UserStartedSpeakingFrame())
        bot.microphone.say(place.clips["question"])
        await asyncio.sleep(len(place.clips["question"]) / 2 / RATE)
        await bot.worker.queue_frame(UserStoppedSpeakingFrame())
        await bot.watcher.until(BotStoppedSpeakingFrame, 2)
        return {"asked": bot.asked(), "said": await bot.said()}


async def beta(place: Place) -> dict[str, Any]:
    """Run a pipeline with the service of the beta version; an error frame is what an application sees."""
    watcher = Watcher()
    service = parts.make_beta_service(place)
    user, assistant = parts.make_aggregators(service, [{"role": "user", "content": ASKED}])
    worker = parts.make_worker(Pipeline([user, service, assistant]), watcher)
    async with parts.running(worker):
        await worker.queue_frame(LLMRunFrame())
        raise Refused(str(await watcher.first(ErrorFrame)))


play("pipecat-ai", connect, voice, interruption, tool, text, push_to_talk, beta=beta)

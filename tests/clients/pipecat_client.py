"""pipecat's OpenAIRealtimeLLMService in a pipeline with a scripted microphone and a loudspeaker that takes its time.

Arguments: the server's URL, its key, and a folder with what the person says.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from microphone import RATE, Microphone
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
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
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
    SessionUpdateEvent,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

INSTRUCTIONS = "You are a friendly voice assistant. Answer in one short sentence."
LISTENS_S = 1.2
FORECAST = "It is raining in Paris, 11 degrees."
WEATHER = FunctionSchema(
    name="get_weather",
    description="Get the current weather of a city.",
    properties={"city": {"type": "string"}},
    required=["city"],
)


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
        towards = FrameDirection.UPSTREAM if isinstance(data.frame, TranscriptionFrame) else FrameDirection.DOWNSTREAM
        if data.direction is towards or isinstance(data.frame, ErrorFrame):
            async with self._news:
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
            await asyncio.wait_for(self._news.wait_for(enough), 60)


PROPERTIES = SessionProperties(
    instructions=INSTRUCTIONS,
    max_output_tokens=30,
    audio=AudioConfiguration(input=AudioInput(transcription=InputAudioTranscription())),
    tool_choice="none",
)
"""Turn detection is left to the server's default."""


class Bot:
    """The pipeline, and what the conversation needs of it."""

    def __init__(self, url: str, key: str) -> None:
        self.microphone, self.watcher = Microphone(), Watcher()
        self.replies: list[str] = []  # ids of items
        self.service = OpenAIRealtimeLLMService(
            api_key=key,
            base_url=url.replace("http", "ws", 1) + "/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(session_properties=PROPERTIES),
        )
        self.service.register_function("get_weather", self._get_weather)
        self.service.add_event_handler("on_conversation_item_created", self._created)
        context = LLMContext(messages=[{"role": "user", "content": "Hello!"}], tools=ToolsSchema([WEATHER]))
        pair = LLMContextAggregatorPair(context)
        self.worker = PipelineWorker(
            Pipeline([Ear(self.microphone), pair.user(), self.service, Loudspeaker(), pair.assistant()]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
            observers=[self.watcher],
            enable_rtvi=False,
        )

    async def choose_tools(self, choice: str) -> None:
        """Change the session's tool choice."""
        await self.service.send_client_event(SessionUpdateEvent(session=SessionProperties(tool_choice=choice)))

    async def _get_weather(self, call: FunctionCallParams) -> None:
        assert call.arguments["city"]
        await self.choose_tools("none")
        await call.result_callback(FORECAST)

    async def _created(self, _: object, name: str, item: object) -> None:
        if getattr(item, "role", None) == "assistant":
            self.replies.append(name)


async def converse(url: str, key: str, clips: dict[str, bytes]) -> None:
    """Hold the conversation."""
    bot = Bot(url, key)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(bot.worker)
    running = asyncio.create_task(runner.run())
    await bot.worker.queue_frame(LLMRunFrame())
    await bot.watcher.until(BotStoppedSpeakingFrame, 1)  # the greeting
    bot.microphone.say(clips["question"])
    await bot.watcher.until(BotStoppedSpeakingFrame, 2)
    bot.microphone.say(clips["story"])
    await bot.watcher.until(BotStartedSpeakingFrame, 3)
    interruptions = len(bot.watcher.all(InterruptionFrame))
    await asyncio.sleep(LISTENS_S)
    story = bot.replies[-1]
    bot.microphone.say(clips["cut_in"])
    await bot.watcher.until(InterruptionFrame, interruptions + 1)
    await bot.watcher.until(BotStoppedSpeakingFrame, 4)
    left = await bot.service.retrieve_conversation_item(story)
    assert left.content[0].transcript
    await bot.choose_tools("required")
    bot.microphone.say(clips["weather"])
    await bot.watcher.until(FunctionCallResultFrame, 1)
    await bot.watcher.until(BotStoppedSpeakingFrame, 5)
    assert len(bot.watcher.all(TranscriptionFrame)) == 4
    await runner.cancel()
    await running


def main() -> None:
    """Run it."""
    url, key, folder = sys.argv[1:]
    clips = {file.stem: file.read_bytes() for file in Path(folder).glob("*.pcm")}
    asyncio.run(asyncio.wait_for(converse(url, key, clips), 120))


main()

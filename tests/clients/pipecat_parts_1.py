"""The parts of a pipeline as pipecat 1 has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from client_script import Place
from microphone import RATE
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

TRANSCRIPTS = FrameDirection.UPSTREAM
"""Where frames with what the person has said go."""

WEATHER = FunctionSchema(
    name="get_weather",
    description="Get the current weather of a city.",
    properties={"city": {"type": "string"}},
    required=["city"],
)


def make_service(place: Place, settings: Any) -> Any:
    """Return the service."""
    return OpenAIRealtimeLLMService(
        api_key=place.key,
        base_url=f"{place.websocket}/realtime",
        settings=OpenAIRealtimeLLMService.Settings(session_properties=settings),
    )


def make_aggregators(service: Any, messages: list[Any]) -> tuple[Any, Any]:
    """Return the processors that keep the context: the person's and the bot's."""
    del service
    pair = LLMContextAggregatorPair(LLMContext(messages=messages, tools=ToolsSchema([WEATHER])))
    return pair.user(), pair.assistant()


def make_worker(pipeline: Pipeline, observer: BaseObserver) -> Any:
    """Return what runs a pipeline."""
    params = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    return PipelineWorker(pipeline, params=params, observers=[observer], enable_rtvi=False)


@contextlib.asynccontextmanager
async def running(worker: Any) -> AsyncIterator[None]:
    """Run a pipeline while the block lasts."""
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        await runner.cancel()
        await task


__all__ = ["TRANSCRIPTS", "events", "make_aggregators", "make_service", "make_worker", "running"]

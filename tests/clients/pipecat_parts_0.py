"""The parts of a pipeline as pipecat 0.0.85 has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from client_script import Place
from microphone import RATE
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.openai_llm_context import OpenAILLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai_realtime import OpenAIRealtimeLLMService, events
from pipecat.services.openai_realtime_beta import OpenAIRealtimeBetaLLMService

TRANSCRIPTS = FrameDirection.DOWNSTREAM
"""Where frames with what the person has said go."""

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def make_service(place: Place, settings: Any) -> Any:
    """Return the service."""
    return OpenAIRealtimeLLMService(
        api_key=place.key, base_url=f"{place.websocket}/realtime", session_properties=settings
    )


def make_beta_service(place: Place) -> Any:
    """Return the service of the beta version."""
    return OpenAIRealtimeBetaLLMService(api_key=place.key, base_url=f"{place.websocket}/realtime")


def make_aggregators(service: Any, messages: list[Any]) -> tuple[Any, Any]:
    """Return the processors that keep the context: the person's and the bot's."""
    pair = service.create_context_aggregator(OpenAILLMContext(messages, [WEATHER]))
    return pair.user(), pair.assistant()


def make_worker(pipeline: Pipeline, observer: BaseObserver) -> Any:
    """Return what runs a pipeline."""
    params = PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    return PipelineTask(pipeline, params=params, observers=[observer])


@contextlib.asynccontextmanager
async def running(worker: Any) -> AsyncIterator[None]:
    """Run a pipeline while the block lasts."""
    task = asyncio.create_task(PipelineRunner(handle_sigint=False).run(worker))
    try:
        yield
    finally:
        await worker.cancel()
        await task


__all__ = ["TRANSCRIPTS", "events", "make_aggregators", "make_beta_service", "make_service", "make_worker", "running"]

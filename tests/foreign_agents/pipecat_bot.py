"""A pipecat bot that answers Twilio's media streams, with voxlane's HTTP endpoints as its models.

    python pipecat_bot.py PORT http://127.0.0.1:8000/v1 CHAT_MODEL

It is the bot of pipecat's own examples: the FastAPI transport with the Twilio serializer, Silero's voice detector and
the smart-turn model of the wheel, pipecat's OpenAI services with another address, and all settings as they ship. Ours
is nothing but this list of parts. It runs in an environment of its own: pipecat-ai[openai,silero,websocket], uvicorn.
"""

from __future__ import annotations

import json
import sys

import uvicorn
from fastapi import FastAPI, WebSocket
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

INSTRUCTIONS = (
    "You are a storyteller. When you are asked for a story, tell a long one, of at least twenty sentences. "
    "Answer all other questions in one short sentence."
)
HEARS_RATE, SPEAKS_RATE = 16_000, 24_000  # of Silero, and of OpenAI's speech


def transport(socket: WebSocket, stream: str) -> FastAPIWebsocketTransport:
    """Return the transport of a telephone line."""
    serializer = TwilioFrameSerializer(stream, params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
    params = FastAPIWebsocketParams(audio_in_enabled=True, audio_out_enabled=True, serializer=serializer)
    return FastAPIWebsocketTransport(websocket=socket, params=params)


def worker(line: FastAPIWebsocketTransport, models: str, chat_model: str) -> PipelineWorker:
    """Return pipecat's pipeline for one call."""
    at = {"api_key": "none", "base_url": models}
    hearing, speaking = OpenAISTTService(**at), OpenAITTSService(**at)
    settings = OpenAILLMService.Settings(model=chat_model, system_instruction=INSTRUCTIONS)
    thinking = OpenAILLMService(**at, settings=settings)
    turns = LLMContextAggregatorPair(
        LLMContext(), user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    parts = [line.input(), hearing, turns.user(), thinking, speaking, line.output(), turns.assistant()]
    rates = PipelineParams(audio_in_sample_rate=HEARS_RATE, audio_out_sample_rate=SPEAKS_RATE)
    return PipelineWorker(Pipeline(parts), params=rates, enable_rtvi=False)


async def call(socket: WebSocket, models: str, chat_model: str) -> None:
    """Hold one call, until the carrier ends it."""
    await socket.accept()
    event = {}
    while event.get("event") != "start":
        event = json.loads(await socket.receive_text())
    line = transport(socket, event["start"]["streamSid"])
    runner = WorkerRunner(handle_sigint=False)

    @line.event_handler("on_client_disconnected")
    async def left(_: object, __: object) -> None:
        await runner.cancel()

    await runner.add_workers(worker(line, models, chat_model))
    await runner.run()


def main() -> None:
    """Serve calls."""
    port, (models, chat_model) = int(sys.argv[1]), sys.argv[2:]
    app = FastAPI()

    @app.websocket("/twilio")
    async def answer(socket: WebSocket) -> None:
        await call(socket, models, chat_model)

    uvicorn.run(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()

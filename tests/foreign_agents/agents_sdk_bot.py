"""The voice pipeline of OpenAI's Agents SDK behind a WebSocket of plain PCM, with voxlane's endpoints as its models.

    python agents_sdk_bot.py PORT http://127.0.0.1:8000/v1 CHAT_MODEL

The turns, the agent, the sentences and the order of the sound are the SDK's: `VoicePipeline` with a stream as its
input, as it ships. It listens through `/realtime` (a transcription session), thinks through `/chat/completions` and
speaks through `/audio/speech`. Ours is the WebSocket alone: it passes sound on and writes the number of a turn before
its sound, as agents_sdk_bot.toml tells the lab. The SDK has no interruption for such a pipeline, so this bot has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import numpy as np
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, set_tracing_disabled
from agents.voice import (
    OpenAIVoiceModelProvider,
    SingleAgentVoiceWorkflow,
    StreamedAudioInput,
    StreamedAudioResult,
    VoicePipeline,
    VoicePipelineConfig,
)
from openai import AsyncOpenAI
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

INSTRUCTIONS = (
    "You are a storyteller. When you are asked for a story, tell a long one, of at least twenty sentences. "
    "Answer all other questions in one short sentence."
)
LONGEST_TOKENS = 120
"""An answer that cannot be stopped must end by itself."""


def pipeline(client: AsyncOpenAI, chat_model: str) -> VoicePipeline:
    """Return the SDK's pipeline for one call."""
    model = OpenAIChatCompletionsModel(model=chat_model, openai_client=client)
    settings = ModelSettings(max_tokens=LONGEST_TOKENS)
    agent = Agent(name="Storyteller", instructions=INSTRUCTIONS, model=model, model_settings=settings)
    provider = OpenAIVoiceModelProvider(openai_client=client)
    return VoicePipeline(workflow=SingleAgentVoiceWorkflow(agent), config=VoicePipelineConfig(model_provider=provider))


async def speak(result: StreamedAudioResult, socket: ServerConnection) -> None:
    """Send the sound of the pipeline, and around that of each turn its number."""
    turn, speaking = 0, False
    async for event in result.stream():
        if event.type == "voice_stream_event_audio" and event.data is not None:
            if not speaking:
                turn, speaking = turn + 1, True
                await socket.send(json.dumps({"type": "turn", "turn": turn}))
            await socket.send(event.data.astype("<i2").tobytes())
        elif event.type == "voice_stream_event_lifecycle" and event.event == "turn_ended" and speaking:
            speaking = False
            await socket.send(json.dumps({"type": "turn_ended", "turn": turn}))


async def call(socket: ServerConnection, client: AsyncOpenAI, chat_model: str) -> None:
    """Hold one call, until the other side ends it."""
    microphone = StreamedAudioInput()
    speaking = asyncio.create_task(speak(await pipeline(client, chat_model).run(microphone), socket))
    with contextlib.suppress(ConnectionClosed):
        async for message in socket:
            if isinstance(message, bytes):
                await microphone.add_audio(np.frombuffer(message, "<i2"))
    speaking.cancel()
    with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
        await speaking


async def run(port: int, models: str, chat_model: str) -> None:
    """Serve calls."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=models, api_key="none")
    async with serve(lambda socket: call(socket, client, chat_model), "127.0.0.1", port) as server:
        print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), *sys.argv[2:]))

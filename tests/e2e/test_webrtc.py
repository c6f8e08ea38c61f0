"""A call over WebRTC with real models: a question, a story that is cut short, and packets that are lost both ways."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import numpy as np
import pytest
from realtime_scenario import CUT_IN, QUESTION, STORY, likeness
from voice_server import VoiceServer, words
from webrtc_caller import RATE, Caller

pytestmark = [pytest.mark.weights, pytest.mark.soak]

ANSWER_S = 120.0
LOST = 20
"""Every twentieth packet is lost."""
SETTINGS = {
    "type": "realtime",
    "instructions": "You are a friendly voice assistant. Answer in one short sentence.",
    "temperature": 0,
    "audio": {"input": {"transcription": {"model": "whisper-1"}}},
}
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"


def lose_packets(caller: Caller) -> None:
    """Lose packets on their way to the server, and on their way back."""
    (sender,) = caller.connection.getSenders()
    transport, count = sender.transport, itertools.count(1)
    send, take = transport._send_rtp, transport._handle_rtp_data

    async def send_most(data: bytes) -> None:
        if next(count) % LOST:
            await send(data)

    async def take_most(data: bytes, arrival_time_ms: int) -> None:
        if next(count) % LOST:
            await take(data, arrival_time_ms=arrival_time_ms)

    transport._send_rtp, transport._handle_rtp_data = send_most, take_most


async def heard_by(caller: Caller, kind: str) -> Any:
    async with asyncio.timeout(ANSWER_S):
        return await caller.until(kind)


async def talk(server: VoiceServer, said: dict[str, np.ndarray], *, lossy: bool) -> list[str]:
    """Hold the call, check it on the way, and return the names of all events that have come."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        caller = Caller(http)
        try:
            await caller.connect(await caller.post(session=SETTINGS))
            if lossy:
                lose_packets(caller)
            await heard_by(caller, "session.created")
            # a question and its answer
            caller.microphone.say(said[QUESTION])
            assert likeness((await heard_by(caller, TRANSCRIBED))["transcript"], QUESTION) > 0.8
            first = (await heard_by(caller, "response.done"))["response"]
            assert first["status"] == "completed"
            assert (await heard_by(caller, "output_audio_buffer.stopped"))["response_id"] == first["id"]
            sound = np.concatenate(caller.heard).astype(np.float32) / 32768
            if not lossy:  # what is heard is what was said
                told = first["output"][0]["content"][0]["transcript"]
                assert likeness(await asyncio.to_thread(server.transcribe, sound, RATE), told) > 0.7
            # a story that is cut short
            caller.microphone.say(said[STORY])
            started = await heard_by(caller, "output_audio_buffer.started")
            caller.microphone.say(said[CUT_IN])
            cleared = await heard_by(caller, "output_audio_buffer.cleared")
            assert cleared["response_id"] == started["response_id"]
            truncated = await heard_by(caller, "conversation.item.truncated")
            assert truncated["audio_end_ms"] > 0
            answer = (await heard_by(caller, "response.done"))["response"]
            while answer["id"] == started["response_id"]:
                answer = (await heard_by(caller, "response.done"))["response"]
            assert answer["status"] == "completed"
            assert words(answer["output"][0]["content"][0]["transcript"])
            await heard_by(caller, "output_audio_buffer.stopped")
            caller.grammar.end()
            return list(caller.kinds())
        finally:
            await caller.close()


@pytest.mark.parametrize("lossy", [False, True], ids=["every packet", "5 % lost"])
def test_a_question_a_story_and_an_interruption(server: VoiceServer, lossy: bool) -> None:
    said = {text: server.say(text) for text in (QUESTION, STORY, CUT_IN)}
    assert "error" not in asyncio.run(talk(server, said, lossy=lossy))

"""The whole voice path with a codec language model for a voice: a random one, so that what it says is noise.

Everything else is real: the server, its engine, the chat model, the sockets, and people who cut in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError
from small_talker import write_talker
from voice_server import VoiceServer

from voxlane.codecs.wav import decode_wav

from .test_conversation import Caller, calling, cough, interrupt, reply_to, say

pytestmark = pytest.mark.weights

FRAME_SAMPLES = 1920
QUESTION = "Tell me about the sea."
MANNER = {"max_tokens": 16, "voice_language": "en", "voice_instructions": "Take your time."}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that ends about when its text does, after ten seconds at the latest."""
    return write_talker(tmp_path_factory.mktemp("noise") / "talker", max_frames=125, end=2.0)


@pytest.fixture(scope="module")
def noisy(noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server that speaks with it."""
    server = VoiceServer(tmp_path_factory.mktemp("server") / "log", "--tts-model", str(noise), "--kv-memory-mib", "256")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


def check_words(caller: Caller, epoch: int, text: str, samples: int) -> None:
    """Every word of a reply is told once, in order, and within its sound."""
    words = [
        word for event in caller.events if event.name == "audio" and event["epoch"] == epoch for word in event["words"]
    ]
    end, sample = 0, 0
    for start, stop, first, last in words:
        assert end <= start < stop
        assert sample <= first <= last <= samples
        end, sample = stop, last
    assert text[:end].split() == text.split()


def alike(found: bytes, expected: bytes) -> bool:
    """Tell whether two sounds are the same, however their frames were decoded together."""
    one, other = (np.frombuffer(sound, "<i2").astype(int) for sound in (found, expected))
    return len(one) == len(other) > 0 and int(np.abs(one - other).max()) <= 4


async def test_a_conversation_in_codec_frames(server: Any, noisy: VoiceServer) -> None:
    """Noise answers; a cough holds it, and it goes on at the same sample; a question ends it."""
    sky, name = (say(server, text) for text in ("Why is the sky blue?", "Wait, what is your name?"))
    async with calling(noisy.url, **MANNER) as caller:
        alone = await reply_to(caller, QUESTION)
        reply = await caller.until("reply", 0)
        done = await caller.until("reply_done", 0)
        check_words(caller, reply["epoch"], done["text"], len(alone) // 2)
        assert len(alone) % (2 * FRAME_SAMPLES) == 0
    async with calling(noisy.url, **MANNER) as caller:
        assert alike(await reply_to(caller, QUESTION, cough()), alone)
        cut = await interrupt(caller, sky, name)
        await caller.until("reply_done", caller.events.index(cut))
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert min(event["epoch"] for event in after) > cut["epoch"]
    while noisy.metric("voxlane_engine_requests", state="running"):
        pass


def test_a_file_of_it(noisy: VoiceServer) -> None:
    def speech(text: str, **settings: Any) -> bytes:
        content: bytes = noisy.client.audio.speech.create(
            model="tts-1", voice="alloy", input=text, response_format="wav", **settings
        ).content
        return content

    samples, rate = decode_wav(speech("It costs $4.50. "))
    assert (rate, len(samples) % FRAME_SAMPLES) == (24_000, 0)
    assert len(samples) > 0
    hello = speech("Hello.")
    assert alike(speech("Hello."), hello)
    assert not alike(speech("Hello.", extra_body={"seed": 5}), hello)
    assert not alike(speech("Hello.", instructions="Sing it."), hello)
    for wrong in ({"speed": 1.5}, {"extra_body": {"language": "klingon"}}):
        with pytest.raises(BadRequestError):
            speech("Hello.", **wrong)


def test_the_command(noise: Path, tmp_path: Path) -> None:
    target = tmp_path / "said.wav"
    command = [sys.executable, "-m", "voxlane.server.cli", "say", "Hello.", "--model", str(noise), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(decode_wav(target.read_bytes())[0]) % FRAME_SAMPLES == 0

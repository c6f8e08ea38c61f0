"""Voices from recordings through the real server and the real engine. The model is small and random: noise speaks, but
it is the noise of a voice, made from a recording, asked for by name, kept over the engine's death.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from base_talker import write_base_talker
from voice_server import START_S, VoiceServer
from waiting import until

from voxlane.codecs.wav import encode_wav

ROUNDING = 8
"""Of 32,768: a step in time of one frame changes nearly all of it."""

TEXT = "Good morning to all of you."


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    folder = tmp_path_factory.mktemp("base")
    write_base_talker(folder / "tiny-base")
    models = ("--model", "", "--asr-model", "", "--tts-model", str(folder / "tiny-base"), "--device", "cpu")
    server = VoiceServer(folder / "log", *models)
    yield server
    assert server.stop() == 0


def clip(pitch: float, seconds: float = 2.0) -> bytes:
    times = np.arange(round(44_100 * seconds)) / 44_100
    noise = np.random.default_rng(round(pitch)).normal(0, 0.05, len(times))
    return encode_wav((0.3 * np.sin(2 * np.pi * pitch * times) + noise).astype(np.float32), 44_100)


def make(server: VoiceServer, name: str, pitch: float, **ours: str) -> Any:
    sample = ("clip.wav", clip(pitch))
    return server.client.audio.voices.create(name=name, audio_sample=sample, consent="true", extra_body=ours)


def say(server: VoiceServer, voice: Any, text: str = TEXT, **parameters: Any) -> bytes:
    body = {"input": text, "voice": voice, "response_format": "pcm", "seed": 7, **parameters}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.content


def alike(first: bytes, second: bytes) -> bool:
    """Return whether two sounds are the same but for rounding: frames are decoded in chunks as the moment has it."""
    if len(first) != len(second):
        return False
    apart = np.frombuffer(first, "<i2").astype(np.int32) - np.frombuffer(second, "<i2")
    return bool(np.abs(apart).max() <= ROUNDING)


def test_a_voice_that_is_deleted_while_it_speaks_speaks_to_its_end(talker: VoiceServer) -> None:
    make(talker, "ada", 220, text="What is said in it.")
    text = " ".join([TEXT] * 6)
    whole = say(talker, "ada", text)
    body = {"input": text, "voice": "ada", "response_format": "pcm", "seed": 7}
    with httpx.stream("POST", f"{talker.url}/v1/audio/speech", json=body, timeout=120) as answer:
        pieces = answer.iter_raw()
        sound = next(pieces)
        assert talker.client.audio.voices.delete("ada").deleted
        sound += b"".join(pieces)
    assert alike(sound, whole)
    with pytest.raises(openai.BadRequestError, match="voice"):
        talker.client.audio.speech.create(model="tts-1", voice="ada", input=TEXT)
    log = talker.log.read_text()
    assert "/v1/audio/voices" in log
    assert not any(word in log for word in ("ada", "What is said", "Good morning"))


def test_a_voice_is_made_and_speaks_and_outlives_the_engine(talker: VoiceServer) -> None:
    for voice, why in (("ada", "none has been made yet"), ("alloy", "none has been made from a recording")):
        with pytest.raises(openai.BadRequestError, match=why):
            talker.client.audio.speech.create(model="tts-1", voice=voice, input=TEXT)
    make(talker, "ada", 220, text="What is said in it.", language="en")
    make(talker, "bob", 110)
    ada, bob = say(talker, "ada"), say(talker, {"id": "bob"})
    assert min(len(ada), len(bob)) > 2 * 1920
    assert not alike(ada, bob)
    assert alike(say(talker, "ada"), ada)
    assert alike(say(talker, "alloy"), ada)  # OpenAI's names mean the default voice: the oldest
    make(talker, "manner", 220)  # the same person, without the manner of the clip
    assert not alike(say(talker, "manner"), ada)

    starts = talker.metric("voxlane_engine_starts_total")
    os.kill(talker.engine_pid(), signal.SIGKILL)
    until(lambda: talker.metric("voxlane_engine_starts_total") > starts, "another engine is ready", START_S)
    assert alike(say(talker, "ada"), ada)
    assert alike(say(talker, "bob"), bob)

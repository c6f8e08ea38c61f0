"""A speech-to-speech model beside a voice and a recogniser: it reads aloud and writes down where a request names it.

Its weights are random: its voice is noise, and what it writes down is always the same word. `make test` looks at what
a server asks of the scripted engine instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import lfm2_audio_checkpoint as checkpoint
import numpy as np
import pytest
from converse_listener import sound
from house import start
from msgspec import structs
from openai import APIStatusError
from voice_server import VoiceServer

from voxlane.codecs.wav import decode_wav, encode_wav
from voxlane.engine.api import ConverseModel, Submit
from voxlane.engine.models.lfm2_audio.config import AUDIO_START, END_OF_TURN
from voxlane.server.engine_client.stream import RequestStream

pytestmark = pytest.mark.weights

FRAME_SAMPLES, RATE = 1920, 16_000
WORD = "salt"
TEXT = "The library opens at nine, and a ticket costs $4.50."


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server with a voice, a recogniser and the random model."""
    folder, word = tmp_path_factory.mktemp("speech") / "noise", map(checkpoint.token_of, WORD)
    follows = dict(pairwise((checkpoint.token_of("\n"), AUDIO_START, *word, END_OF_TURN)))
    checkpoint.write(folder, checkpoint.TRUE_RATIOS, breathes=True, follows=follows)
    server = VoiceServer(
        tmp_path_factory.mktemp("server") / "log",
        *("--speech-model", str(folder), "--model", "", "--asr-model", "moonshine-tiny-en"),
    )
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


async def test_a_request_goes_to_the_model_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as running:
        engine = running.service.engine
        assert engine._ready is not None
        engine._ready = structs.replace(engine._ready, speech=ConverseModel("noise", 2033, 12.5, FRAME_SAMPLES))
        asked: list[Submit] = []
        submit = engine.submit

        def noted(message: Submit) -> RequestStream:
            asked.append(message)
            return submit(message)

        monkeypatch.setattr(engine, "submit", noted)

        async def write(seconds: float = 1.0, **fields: str) -> httpx.Response:
            files = {"file": recording(seconds)}
            return await running.client.post("/v1/audio/transcriptions", data=fields, files=files)

        for model, named in (("noise", True), ("whisper-1", False), ("moonshine-tiny-en", False)):
            assert (await write(model=model)).status_code == 200
            assert asked.pop().by_speech_model is named
        for fields, seconds, status, reason in (
            (
                {"response_format": "verbose_json", "timestamp_granularities[]": "word"},
                1.0,
                400,
                "when a word was said",
            ),
            ({"language": "en"}, 1.0, 400, "language must be left out"),
            ({}, 100.0, 413, "81"),
            ({"model": "other"}, 1.0, 404, "moonshine-tiny-en"),
        ):
            refused = await write(seconds, **{"model": "noise", **fields})
            assert (refused.status_code, reason in refused.text) == (status, True), refused.text
        body = {"input": TEXT, "voice": "alloy", "response_format": "pcm"}
        for model, named in (("noise", True), ("tts-1", False)):
            assert (await running.client.post("/v1/audio/speech", json={**body, "model": model})).status_code == 200
            assert asked.pop().by_speech_model is named
        refused = await running.client.post("/v1/audio/speech", json={**body, "model": "noise", "speed": 1.2})
        assert "speed must be 1" in refused.text
        models = (await running.client.get("/v1/models")).json()["data"]
        assert {model["id"]: model["voxlane"]["task"] for model in models} == {
            "scripted": "chat",
            "moonshine-tiny-en": "asr",
            "hibari": "tts",
            "noise": "speech",
        }
        assert not asked


def speech(talking: VoiceServer, **parameters: Any) -> np.ndarray:
    asked: Any = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": "wav", **parameters}
    samples, _ = decode_wav(talking.client.audio.speech.create(**asked).content)
    return samples


def recording(seconds: float) -> tuple[str, bytes]:
    return "clip.wav", encode_wav(np.frombuffer(sound(seconds, 2), "<i2").astype(np.float32) / 32768, RATE)


def written(talking: VoiceServer, seconds: float = 1.0, **parameters: Any) -> Any:
    asked: Any = {"model": "noise", "file": recording(seconds), **parameters}
    return talking.client.audio.transcriptions.create(**asked)


@pytest.mark.soak
def test_the_voice_speaks_unless_the_model_is_named(talking: VoiceServer) -> None:
    usual, noise = speech(talking, speed=1.2), speech(talking, model="noise")
    assert len(noise) % FRAME_SAMPLES == 0
    assert len(noise) != len(usual)
    with pytest.raises(APIStatusError, match="speed must be 1"):
        speech(talking, model="noise", speed=1.2)
    assert speech(talking, model=talking.client.models.list().data[-1].id).tobytes() == speech(talking).tobytes()


@pytest.mark.soak
def test_a_clip_is_written_down(talking: VoiceServer) -> None:
    assert written(talking).text == WORD
    assert written(talking, response_format="text") == f"{WORD}\n"
    told = written(talking, response_format="verbose_json")
    (segment,) = told.segments
    assert (segment.text, segment.start, segment.end, told.duration) == (WORD, 0, 1, 1)
    assert written(talking, response_format="srt") == f"1\n00:00:00,000 --> 00:00:01,000\n{WORD}\n\n"
    *deltas, done = written(talking, stream=True)
    assert done.text == "".join(event.delta for event in deltas) == WORD
    assert talking.client.audio.transcriptions.create(model="whisper-1", file=recording(1.0)).text != WORD


@pytest.mark.soak
def test_the_models_are_told(talking: VoiceServer) -> None:
    models = {model.id: model.voxlane for model in talking.client.models.list()}
    assert {name: told["task"] for name, told in models.items()} == {
        "moonshine-tiny-en": "asr",
        "noise": "speech",
        "hibari": "tts",
    }
    assert models["noise"]["clip_seconds"] == pytest.approx(81.3, abs=0.1)

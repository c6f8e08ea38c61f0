"""POST /v1/audio/speech over real sockets, asked by the stock `openai` client."""

from __future__ import annotations

import base64
import io
import json
import socket
import wave
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from examples import examples
from stock_client import stock_client

from voxlane.codecs.container import decode_audio
from voxlane.codecs.wav import decode_wav
from voxlane.engine.api import Shutdown
from voxlane.server.audio import speaking
from voxlane.server.config import LimitsConfig

TEXT = "Good morning, everybody. This is the second sentence of them all."


async def say(server: Any, text: str = TEXT, **parameters: Any) -> bytes:
    asked: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": text, **parameters}
    async with stock_client(server) as client:
        return (await client.audio.speech.create(**asked)).content


async def counted(server: Any, line: str) -> float:
    text = (await server.client.get("/metrics")).text
    return next(float(found.split()[-1]) for found in text.splitlines() if found.startswith(line))


def slow_reader(server: Any) -> httpx.AsyncClient:
    """A client whose system holds 64 KiB for it: what it does not read stays with the server.

    Left to itself, a system may hold tens of megabytes (`net.ipv4.tcp_rmem`).
    """
    transport = httpx.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)])
    return httpx.AsyncClient(base_url=server.client.base_url, timeout=60, transport=transport)


def heard(samples: bytes) -> str:
    """Read the characters that the scripted engine speaks."""
    return samples.decode("utf-16-le")


async def test_pcm_is_what_the_engine_said(serving: Any) -> None:
    async with serving() as server:
        assert heard(await say(server, response_format="pcm")) == TEXT
        assert await counted(server, 'voxlane_audio_seconds_total{kind="spoken"}') == pytest.approx(len(TEXT) / 24_000)
        assert await counted(server, "voxlane_speech_first_audio_seconds_count") == 1


async def test_wav(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.post("/v1/audio/speech", json={"input": TEXT, "response_format": "wav"})
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["transfer-encoding"] == "chunked"
        samples, rate = decode_wav(answer.content)
        assert (len(samples), rate) == (len(TEXT), 24_000)


async def test_compressed(serving: Any) -> None:
    async with serving() as server:
        for kind, magic, content_type in (
            ("", b"\xff", "audio/mpeg"),
            ("opus", b"OggS", "audio/ogg"),
            ("aac", b"\xff\xf1", "audio/aac"),
            ("flac", b"fLaC", "audio/flac"),
        ):
            body = {"input": "flood 2", **({"response_format": kind} if kind else {})}
            answer = await server.client.post("/v1/audio/speech", json=body)
            assert answer.headers["content-type"] == content_type
            assert answer.content.startswith(magic)
            samples, rate = decode_audio(answer.content)
            assert len(samples) / rate == pytest.approx(100_000 / 24_000, abs=0.15)


async def test_the_first_bytes_leave_before_the_last_clause_is_there(serving: Any) -> None:
    async with serving() as server:
        body = {"input": "wait here, please. " * 5, "response_format": "wav"}  # one clause, then nothing
        async with server.client.stream("POST", "/v1/audio/speech", json=body) as answer:
            first = await anext(answer.aiter_bytes())
            assert first.startswith(b"RIFF")
            assert heard(first[44:]).startswith("wait here, please.")
        while not await counted(server, 'voxlane_finished_requests_total{reason="cancelled"}'):
            pass  # leaving has cancelled it


async def test_with_streaming_response(serving: Any, tmp_path: Any) -> None:
    async with serving() as server:
        async with stock_client(server) as client:
            asked: Any = {"model": "hibari", "voice": "two", "input": TEXT, "response_format": "wav"}
            async with client.audio.speech.with_streaming_response.create(**asked) as answer:
                await answer.stream_to_file(tmp_path / "a.wav")
        assert len(decode_wav((tmp_path / "a.wav").read_bytes())[0]) == len(TEXT)


async def test_events(serving: Any) -> None:
    async with serving() as server:
        body = {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}
        answer = await server.client.post("/v1/audio/speech", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *deltas, done = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
        assert {event["type"] for event in deltas} == {"speech.audio.delta"}
        assert len(deltas) > 1
        assert heard(b"".join(base64.b64decode(event["audio"]) for event in deltas)) == TEXT
        assert done["type"] == "speech.audio.done"
        assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


async def test_nothing_to_say_is_a_short_silence(serving: Any) -> None:
    async with serving() as server:
        silence = bytes(2 * 6000)  # a quarter of a second
        for text in ("🎉🎉🎉", "…", "```\ncode\n```", " "):
            answer = await say(server, text, response_format="wav")
            with wave.open(io.BytesIO(answer)) as file:
                assert file.readframes(file.getnframes()) == silence, text
            assert await say(server, text, response_format="pcm") == silence, text
        for kind in ("mp3", "opus", "flac", "aac"):
            samples, rate = decode_audio(await say(server, text, response_format=kind))
            assert len(samples) >= 0.2 * rate
            assert not np.abs(samples).max() > 1e-3


async def test_pythons_wave_reads_a_streamed_file(serving: Any) -> None:
    async with serving() as server:
        with wave.open(io.BytesIO(await say(server, "Hello.", response_format="wav"))) as file:
            assert file.getnframes() == len("Hello.")  # a clause comes whole, with its true length
        streamed = await say(server, TEXT, response_format="wav")
        with wave.open(io.BytesIO(streamed)) as file:
            assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
            # The header was sent before the end was known: it states more, but not more than fits the memory.
            assert len(TEXT) < file.getnframes() < 24_000 * 600
            assert heard(file.readframes(file.getnframes())) == TEXT
            assert file.readframes(1) == b""


async def test_parameters_reach_the_engine(serving: Any) -> None:
    async with serving() as server:
        told = heard(await say(server, "params", response_format="pcm", speed=1.5, extra_body={"seed": 9}))
        assert told.startswith(
            "SpeakParams(voice='af_alloy', speed=1.5, seed=9, language='', instructions='', live=False"
        )
        for voice, ours in (("nova", ""), ("two", "two"), ({"id": "one"}, "one")):
            told = heard(await say(server, "params", response_format="pcm", voice=voice))
            assert f"voice={ours!r}" in told


async def test_a_parameter_that_cannot_be_honoured_is_named(serving: Any) -> None:
    async with serving() as server:
        for parameters, param, says in (
            ({"voice": "nobody"}, "voice", "one of one, two, af_alloy"),
            ({"text": "x" * 100_001}, "input", "1 to 100000 characters"),
        ):
            with pytest.raises(openai.BadRequestError, match=says) as caught:
                await say(server, **parameters)
            assert caught.value.param == param


async def test_a_long_text_is_said_to_its_end(serving: Any) -> None:
    text = "This is one of very many sentences. " * examples(2700)
    async with serving() as server:
        assert heard(await say(server, text, response_format="pcm")) == text


async def test_models(serving: Any) -> None:
    async with serving(asr_model="") as server:
        assert len(await say(server, model="hibari", response_format="pcm"))
        with pytest.raises(openai.NotFoundError, match="hibari is served"):
            await say(server, model="whisper-1")
        details = (await server.client.get("/v1/models/hibari")).json()["voxlane"]
        assert details == {"task": "tts", "voices": ["one", "two", "af_alloy"], "sample_rate": 24_000}
    async with serving(tts_model="") as server:
        with pytest.raises(openai.NotFoundError, match="no model that speaks"):
            await say(server, voice="alloy")


@pytest.mark.parametrize(("text", "status"), [("fail", 500), ("crash", 503)])
async def test_errors_before_the_first_sample_are_http_errors(serving: Any, text: str, status: int) -> None:
    async with serving() as server:
        with pytest.raises(openai.APIStatusError) as caught:
            await say(server, text)
        assert caught.value.status_code == status


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_an_engine_that_dies_under_way_is_no_complete_file(serving: Any, stream_format: str) -> None:
    async with serving() as server:
        body = {"input": "wait here, please. Oh.", "response_format": "wav", "stream_format": stream_format}
        async with server.client.stream("POST", "/v1/audio/speech", json=body) as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            server.service.engine.send(Shutdown())
            if stream_format == "audio":
                with pytest.raises(httpx.RemoteProtocolError):
                    [piece async for piece in pieces]
            else:
                rest = b"".join([piece async for piece in pieces])
                assert json.loads(rest.split(b"data: ")[-1])["error"]["code"] == "engine_lost"


async def test_a_client_that_does_not_read_pauses_the_engine(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "PAUSE_BYTES", 1_000_000)
    monkeypatch.setattr(speaking, "RESUME_BYTES", 500_000)
    async with serving() as server, slow_reader(server) as client:
        body = {"input": "flood 400", "response_format": "pcm"}
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            while not await counted(server, 'voxlane_engine_requests{state="paused"}'):
                pass
            size = 0
            async for piece in answer.aiter_bytes():
                size += len(piece)
        assert size == 400 * 100_000


async def test_a_client_that_never_reads_is_given_up(serving: Any) -> None:
    cancelled = 'voxlane_finished_requests_total{reason="cancelled"}'
    async with serving(limits=LimitsConfig(write_s=0.2)) as server, slow_reader(server) as client:
        body = {"input": "flood 400", "response_format": "pcm"}
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            while not await counted(server, cancelled):
                pass
            with pytest.raises(httpx.HTTPError):
                await answer.aread()
        assert await counted(server, cancelled) == 1


async def test_samples_survive_the_way(serving: Any) -> None:
    async with serving() as server:
        samples, _ = decode_wav(await say(server, "abc def ghi jkl.", response_format="wav"))
        assert np.array_equal(samples * 32768, np.array([ord(one) for one in "abc def ghi jkl."], dtype=np.float32))

"""POST /v1/audio/transcriptions over real sockets, asked by the stock `openai` client and by worse ones."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import openai
import pytest
from stock_client import stock_client

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.server.config import LimitsConfig, ServerConfig

OLD = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # OpenAI's newer models do not translate
FOX = "The quick brown fox jumps over the lazy dog."


async def upload(server: Any, file: bytes, **parameters: Any) -> Any:
    async with stock_client(server) as asking:
        return await asking.audio.transcriptions.create(model="whisper-1", file=("a.wav", file), **parameters)


async def events_of(server: Any, file: bytes, **parameters: Any) -> list[Any]:
    async with stock_client(server) as asking:
        asked: Any = {"model": "whisper-1", "file": ("a.wav", file), "stream": True, **parameters}
        return [event async for event in await asking.audio.transcriptions.create(**asked)]


async def all_given_back(server: Any) -> None:
    """Wait until nothing of any request is held: the last bytes of an answer arrive a moment before its end."""
    while server.service.audio.held or server.service.request_limit.inside or server.service.engine.open_streams:
        await server.client.get("/healthz")


async def counted(server: Any, line: str) -> float:
    text = (await server.client.get("/metrics")).text
    return next(float(found.split()[-1]) for found in text.splitlines() if found.startswith(line))


async def test_json_is_the_default(serving: Any, recording: Any) -> None:
    async with serving() as server:
        answer = await upload(server, recording(FOX, 2.5))
        assert answer.text == FOX
        assert (answer.usage.type, answer.usage.seconds) == ("duration", 2.5)
        assert await counted(server, 'voxlane_audio_seconds_total{kind="heard"}') == 2.5
        route = 'voxlane_http_requests_total{route="/v1/audio/transcriptions",status="200"}'
        assert await counted(server, route) == 1


async def test_the_other_formats(serving: Any, recording: Any) -> None:
    async with serving() as server:
        file = recording(FOX)
        assert await upload(server, file, response_format="text") == f"{FOX}\n"
        assert (await upload(server, file, response_format="srt")).startswith("1\n00:00:00,000 --> 00:00:04,400\nThe ")
        assert (await upload(server, file, response_format="vtt")).startswith("WEBVTT\n\n00:00:00.000 --> ")
        verbose = await upload(server, file, response_format="verbose_json")
        assert (verbose.text, verbose.language, verbose.duration) == (FOX, "english", 1.0)
        assert [segment.text for segment in verbose.segments] == [FOX]
        assert verbose.words is None
        asked = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
        timed = await upload(server, file, language="de", **asked)
        assert timed.language == "german"
        assert [word.word for word in timed.words] == FOX.split()
        assert timed.words[1].start == 0.5


async def test_a_stream_is_deltas_then_the_whole(serving: Any, recording: Any) -> None:
    async with serving() as server:
        *deltas, done = await events_of(server, recording(FOX, 3))
        assert {event.type for event in deltas} == {"transcript.text.delta"}
        assert len(deltas) > 1
        assert done.type == "transcript.text.done"
        assert "".join(event.delta for event in deltas) == done.text == FOX
        assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens


async def test_silence_is_an_empty_text(serving: Any, recording: Any) -> None:
    async with serving() as server:
        assert (await upload(server, recording(""))).text == ""
        assert await upload(server, recording(""), response_format="srt") == ""
        (done,) = await events_of(server, recording(""))
        assert (done.type, done.text) == ("transcript.text.done", "")


async def test_parameters_reach_the_engine(serving: Any, recording: Any) -> None:
    async with serving() as server:
        answer = await upload(server, recording("params"), language="de", response_format="srt")
        assert "ListenParams(language='de'," in " ".join(answer.split())
        assert "word_times=True" in answer
        streamed = await events_of(server, recording("params"))
        assert "partials=True" in streamed[-1].text


async def test_other_rates_and_kinds_are_heard(serving: Any) -> None:
    async with serving() as server:
        tone = encode_wav(decode_pcm16(bytes(2 * 44_100)), 44_100)
        assert (await upload(server, tone)).usage.seconds == 1.0


async def test_a_parameter_that_cannot_be_honoured_is_named(serving: Any, recording: Any) -> None:
    async with serving() as server:
        for parameters, param in (({"language": "fr"}, "language"), ({"include": ["logprobs"]}, "include")):
            with pytest.raises(openai.BadRequestError) as caught:
                await upload(server, recording(FOX), **parameters)
            assert caught.value.param == param


async def test_models_by_name(serving: Any, recording: Any) -> None:
    async with serving() as server, stock_client(server) as asking:
        for name in ("whisper-1", "gpt-4o-mini-transcribe-2025-12-15", "moonshine-tiny-en"):
            answer = await asking.audio.transcriptions.create(model=name, file=("a", recording(FOX)))
            assert answer.text == FOX
        with pytest.raises(openai.NotFoundError, match="moonshine-tiny-en is served"):
            await asking.audio.transcriptions.create(model="scripted", file=("a", recording(FOX)))
        details = (await server.client.get("/v1/models/moonshine-tiny-en")).json()["voxlane"]
        assert details == {"task": "asr", "languages": ["en", "de"]}


async def test_a_server_that_does_not_listen(serving: Any, recording: Any) -> None:
    async with serving(asr_model="") as server:
        with pytest.raises(openai.NotFoundError, match="no model that listens"):
            await upload(server, recording(FOX))
        assert (await server.chat("hello")).status_code == 200


async def test_a_server_that_does_not_chat(serving: Any, recording: Any) -> None:
    async with serving(model="") as server:
        assert (await upload(server, recording(FOX))).text == FOX
        refused = await server.chat("hello")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["moonshine-tiny-en", "hibari"]


ENGINE_ERRORS = [
    ("fail", 500, "model_failed"),
    ("refuse overloaded", 429, "overloaded"),
    ("refuse no_model", 404, "model_not_found"),
    ("crash", 503, "engine_lost"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors_are_http_errors(serving: Any, recording: Any, stream: bool) -> None:
    async with serving() as server:
        for said, status, code in ENGINE_ERRORS:
            # Partials would start the stream, and an error after that is an event: see below.
            form = {"stream": str(stream and " " not in said).lower()}
            answer = await server.client.post("/v1/audio/transcriptions", files={"file": recording(said)}, data=form)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), said


async def test_an_error_after_the_first_words_is_an_event(serving: Any, recording: Any) -> None:
    async with serving() as server:
        with pytest.raises(openai.APIError, match="model failed"):
            await events_of(server, recording("fail after some words"))


async def test_leaving_cancels_in_the_engine(serving: Any, recording: Any) -> None:
    async with serving() as server:
        task = asyncio.create_task(upload(server, recording("wait")))
        while not await counted(server, 'voxlane_engine_requests{state="running"}'):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not await counted(server, 'voxlane_finished_requests_total{reason="cancelled"}'):
            pass
        await all_given_back(server)
        assert (await upload(server, recording(FOX))).text == FOX


async def test_an_upload_that_is_too_large_is_refused_before_it_is_read(serving: Any, recording: Any) -> None:
    async with serving(limits=LimitsConfig(audio_body_bytes=20_000)) as server:
        with pytest.raises(openai.APIStatusError) as caught:
            await upload(server, recording(FOX, 60))
        assert (caught.value.status_code, caught.value.code) == (413, "too_large")

        async def unknown_length() -> Any:
            for _ in range(100):
                yield bytes(1000)

        headers = {"content-type": "multipart/form-data; boundary=b"}
        answer = await server.client.post("/v1/audio/transcriptions", content=unknown_length(), headers=headers)
        assert answer.status_code == 413
        await all_given_back(server)


async def test_uploads_together_are_bounded(serving: Any, recording: Any) -> None:
    async with serving(limits=LimitsConfig(audio_held_bytes=1 << 20)) as server:
        with pytest.raises(openai.RateLimitError):
            await upload(server, recording(FOX, 60))
        assert (await upload(server, recording(FOX, 2))).text == FOX
        await all_given_back(server)


async def test_a_recording_that_is_too_long(serving: Any, recording: Any) -> None:
    async with serving(limits=LimitsConfig(audio_s=2)) as server:
        with pytest.raises(openai.APIStatusError, match="longer than 2 s") as caught:
            await upload(server, recording(FOX, 3))
        assert caught.value.status_code == 413


async def test_files_that_are_no_audio(serving: Any) -> None:
    async with serving() as server:
        for file, says in ((b"", "audio is empty"), (b"hello", "none of WAV"), (b"fLaC" + bytes(100), "broken")):
            with pytest.raises(openai.BadRequestError, match=says) as caught:
                await upload(server, file)
            assert (caught.value.code, caught.value.param) == ("invalid_audio", "file")


async def test_no_file_and_no_form(serving: Any) -> None:
    async with serving() as server:
        missing = await server.client.post("/v1/audio/transcriptions", files={"model": (None, "whisper-1")})
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
        wrong = await server.client.post("/v1/audio/transcriptions", json={"file": "a.wav"})
        assert "multipart/form-data" in wrong.json()["error"]["message"]
        assert (await server.client.get("/v1/audio/transcriptions")).status_code == 405


async def test_priorities_are_capped(serving: Any, recording: Any) -> None:
    async with serving(server=ServerConfig(highest_priority="high")) as server:
        assert (await upload(server, recording(FOX), extra_body={"priority": "high"})).text == FOX
        with pytest.raises(openai.PermissionDeniedError):
            await upload(server, recording(FOX), extra_body={"priority": "critical"})


async def test_content_never_reaches_the_log(serving: Any, recording: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "voxlane")
    async with serving() as server:
        await upload(server, recording("Zanzibar"), prompt="Timbuktu")
        with pytest.raises(openai.APIError):
            await upload(server, recording("fail Zanzibar"))
        with pytest.raises(openai.BadRequestError):
            await upload(server, b"Zanzibar")
    assert "/v1/audio/transcriptions" in caplog.text
    assert "Zanzibar" not in caplog.text
    assert "Timbuktu" not in caplog.text


async def test_health_names_the_models(serving: Any) -> None:
    async with serving() as server:
        health = (await server.client.get("/healthz")).json()
        assert (health["asr_model"], health["tts_model"]) == ("moonshine-tiny-en", "hibari")
        assert "POST /v1/audio/speech" in json.dumps((await server.client.get("/")).json())


@OLD
async def test_a_translation_is_asked_of_the_engine(serving: Any, recording: Any) -> None:
    async with serving() as server, stock_client(server) as asking:
        made = await asking.audio.translations.create(model="whisper-1", file=("a.wav", recording("params")))
        assert "translate=True" in made.text
        assert "language=''" in made.text
        asked: Any = {"model": "whisper-1", "file": ("a.wav", recording(FOX)), "prompt": "Fox, Dog"}
        verbose: Any = await asking.audio.translations.create(**asked, response_format="verbose_json")
        assert (verbose.text, verbose.language, verbose.to_dict()["task"]) == (FOX, "english", "translate")
        assert [segment.text for segment in verbose.segments] == [FOX]
        srt: Any = await asking.audio.translations.create(**asked, response_format="srt")
        assert srt.startswith("1\n00:00:00,000 --> ")
        heard = await upload(server, recording("params"))
        assert "translate=False" in heard.text
        for wrong in ({"language": "de"}, {"stream": "true"}):
            with pytest.raises(openai.BadRequestError) as refused:
                await asking.audio.translations.create(**asked, extra_body=wrong)
            assert refused.value.param in wrong
        await all_given_back(server)


@OLD
async def test_a_model_that_cannot_translate_is_named(serving: Any, recording: Any) -> None:
    async with serving(asr_model="english-only") as server, stock_client(server) as asking:
        with pytest.raises(
            openai.NotFoundError, match=r"english-only\W* writes only what is said.*multilingual Whisper"
        ):
            await asking.audio.translations.create(model="whisper-1", file=("a.wav", recording(FOX)))
    async with serving(asr_model="") as server, stock_client(server) as asking:
        with pytest.raises(openai.NotFoundError, match=r"not served|does not listen"):
            await asking.audio.translations.create(model="whisper-1", file=("a.wav", recording(FOX)))

"""Listening and speaking through the real server: the stock `openai` client, real models, real recordings."""

from __future__ import annotations

import base64
import json
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from voxlane.codecs.container import decode_audio
from voxlane.codecs.encode import SpeechFormat, encoder
from voxlane.codecs.pcm import encode_pcm16, quantise
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav, encode_wav
from voxlane.engine.weights.store import resolve

pytestmark = pytest.mark.weights

SENTENCE = "The quick brown fox jumps over the lazy dog."
COMPRESSED: tuple[SpeechFormat, ...] = ("mp3", "opus", "aac", "flac")


def plain(text: str) -> list[str]:
    """Return the words alone."""
    return re.findall(r"[a-z0-9']+", text.lower())


@pytest.fixture(scope="module")
def beckett() -> bytes:
    """Ten seconds of a man who has tried and failed."""
    return (resolve("speech-samples") / "beckett.wav").read_bytes()


def transcribe(server: Any, file: bytes, **parameters: Any) -> Any:
    return server.client.audio.transcriptions.create(model="whisper-1", file=("speech", file), **parameters)


def say(server: Any, text: str = SENTENCE, **parameters: Any) -> bytes:
    asked: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "wav", **parameters}
    content: bytes = server.client.audio.speech.create(**asked).content
    return content


def test_a_recording_in_every_format(server: Any, beckett: bytes) -> None:
    text = transcribe(server, beckett).text
    assert "try again" in text.lower()
    assert "fail better" in text.lower()
    assert transcribe(server, beckett, response_format="text") == f"{text}\n"
    timed: Any = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
    verbose = transcribe(server, beckett, **timed)
    assert (verbose.text, verbose.language) == (text, "english")
    assert 9.9 < verbose.duration < 10
    assert [plain(word.word) for word in verbose.words] == [[word] for word in plain(text)]
    starts = [word.start for word in verbose.words]
    assert starts == sorted(starts)
    assert 0 <= starts[0] < starts[-1] < 10
    assert " ".join(segment.text.strip() for segment in verbose.segments) == text
    srt = transcribe(server, beckett, response_format="srt")
    vtt = transcribe(server, beckett, response_format="vtt")
    assert srt.startswith("1\n00:00:0")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    for subtitles in (srt, vtt):
        shown = [line for line in subtitles.splitlines()[1:] if "-->" not in line and not line.isdigit()]
        assert plain(" ".join(shown)) == plain(text)


def test_a_stream_ends_with_the_text_of_the_whole(server: Any) -> None:
    samples, rate = decode_wav((resolve("speech-samples") / "two_cities.wav").read_bytes())
    file = encode_wav(samples[: 40 * rate], rate)
    whole = transcribe(server, file).text
    *deltas, done = transcribe(server, file, stream=True)
    assert len(deltas) > 1
    assert "".join(event.delta for event in deltas) == done.text == whole


@pytest.mark.parametrize("kind", COMPRESSED)
def test_compressed_recordings_are_understood(server: Any, beckett: bytes, kind: SpeechFormat) -> None:
    one = encoder(kind, 16_000)
    data = one.push(decode_wav(beckett)[0]) + one.finish()
    assert "fail better" in transcribe(server, data).text.lower()


def test_silence_and_noise_are_empty(server: Any) -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, 3 * 16_000).astype(np.float32)
    for samples in (np.zeros(0, np.float32), np.zeros(100, np.float32), np.zeros(3 * 16_000, np.float32), noise):
        assert transcribe(server, encode_wav(samples, 16_000)).text == ""


def test_what_is_said_is_heard(server: Any) -> None:
    assert plain(transcribe(server, say(server)).text) == plain(SENTENCE)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_speech_in_every_format(server: Any, kind: SpeechFormat) -> None:
    wav, rate = decode_wav(say(server))
    samples, other = decode_audio(say(server, response_format=kind))
    assert len(samples) / other == pytest.approx(len(wav) / rate, abs=0.15)
    pcm = say(server, response_format="pcm")
    assert len(pcm) / 2 / 24_000 == pytest.approx(len(wav) / rate, abs=0.01)


def test_speech_streams_clause_by_clause(server: Any, tmp_path: Path) -> None:
    text = f"{SENTENCE} " * 6
    whole = say(server, text)
    asked: Any = {"model": "hibari", "voice": "alloy", "input": text, "response_format": "wav"}
    with server.client.audio.speech.with_streaming_response.create(**asked) as answer:
        pieces = list(answer.iter_bytes())
    assert len(pieces) > 3
    assert b"".join(pieces) == whole
    body = {"input": text, "stream_format": "sse", "response_format": "wav"}
    lines = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60).text.split("\n\n")
    *deltas, done = [json.loads(line[6:]) for line in lines if line]
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == whole
    assert done["type"] == "speech.audio.done"


def test_speed_and_seed(server: Any) -> None:
    usual, fast = say(server), say(server, speed=1.5)
    assert len(fast) < 0.85 * len(usual)
    assert say(server) == usual
    assert say(server, extra_body={"seed": 3}) == say(server, extra_body={"seed": 3})


def test_only_emoji_is_a_short_silence(server: Any) -> None:
    samples, rate = decode_wav(say(server, "🎉👍🏽✨"))
    assert (len(samples), np.abs(samples).max()) == (rate // 4, 0.0)
    for kind in (*COMPRESSED, "pcm"):
        assert say(server, "🎉", response_format=kind)


def wav(tag: int, channels: int, bits: int, data: bytes, declared: int | None = None) -> bytes:
    width, size = channels * bits // 8, len(data) if declared is None else declared
    layout = struct.pack("<IHHIIHH", 16, tag, channels, 16_000, 16_000 * width, width, bits)
    return b"RIFF" + struct.pack("<I", size + 36) + b"WAVEfmt " + layout + b"data" + struct.pack("<I", size) + data


def test_bad_input_is_a_clear_error_or_a_result_and_nothing_leaks(server: Any, beckett: bytes) -> None:
    nan = np.full(16_000, np.nan, "<f4").tobytes()
    eight_bits = bytes((np.clip(decode_wav(beckett)[0], -1, 0.99) * 128 + 128).astype(np.uint8))
    seven = np.repeat(quantise(decode_wav(beckett)[0]), 7).tobytes()
    assert "try again" in transcribe(server, beckett[: len(beckett) * 9 // 10]).text.lower()
    assert transcribe(server, wav(1, 1, 16, bytes(1024), 100 * 1024 * 1024)).text == ""
    assert "fail better" in transcribe(server, wav(1, 1, 8, eight_bits)).text.lower()
    assert "fail better" in transcribe(server, wav(1, 7, 16, seven)).text.lower()
    refused: Sequence[tuple[bytes, str]] = [
        (b"", "empty"),
        (wav(3, 1, 32, nan), "not finite"),
        (beckett[:20], "WAV"),
        (b"\xff\xfb" + bytes(5000), "broken"),
    ]
    for file, says in refused:
        with pytest.raises(openai.BadRequestError, match=says):
            transcribe(server, file)
    with pytest.raises(openai.APIStatusError) as large:
        transcribe(server, bytes(26 * 1024 * 1024))
    assert large.value.status_code == 413
    with pytest.raises(openai.BadRequestError, match="100000 characters"):
        say(server, "x" * 100 * 1024)
    server.wait_metric(0, "voxlane_engine_requests", state="running")
    assert server.metric("voxlane_kv_blocks", state="used") == 0
    assert httpx.get(f"{server.url}/healthz").json()["open_requests"] == 0


@pytest.mark.parametrize("what", ["say", "transcribe"])
def test_leaving_cancels_in_the_engine(server: Any, what: str) -> None:
    before = server.metric("voxlane_finished_requests_total", reason="cancelled")
    if what == "say":
        asked: Any = {"model": "hibari", "voice": "alloy", "input": f"{SENTENCE} " * 500, "response_format": "wav"}
        with server.client.audio.speech.with_streaming_response.create(**asked) as answer:
            next(answer.iter_bytes())
    else:
        samples, rate = decode_wav((resolve("speech-samples") / "two_cities.wav").read_bytes())
        long = encode_wav(np.tile(resample(samples, rate, 16_000), 6), 16_000)  # not over before one can leave
        stream = transcribe(server, long, stream=True)
        next(iter(stream))
        stream.close()
    server.wait_metric(before + 1, "voxlane_finished_requests_total", reason="cancelled")
    server.wait_metric(0, "voxlane_engine_requests", state="running")
    assert server.metric("voxlane_finished_requests_total", reason="cancelled") == before + 1
    assert server.metric("voxlane_kv_blocks", state="used") == 0


def test_seconds_are_counted(server: Any, beckett: bytes) -> None:
    heard = server.metric("voxlane_audio_seconds_total", kind="heard")
    spoken = server.metric("voxlane_audio_seconds_total", kind="spoken")
    transcribe(server, beckett)
    samples, rate = decode_wav(say(server))
    assert server.metric("voxlane_audio_seconds_total", kind="heard") - heard == pytest.approx(9.963, abs=0.1)
    assert server.metric("voxlane_audio_seconds_total", kind="spoken") - spoken == pytest.approx(len(samples) / rate)


def voxlane(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "voxlane.server.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=300)


@pytest.mark.usefixtures("no_leaks")
def test_the_commands_say_and_transcribe(tmp_path: Path, beckett: bytes) -> None:
    path = tmp_path / "fox.wav"
    done = voxlane("say", SENTENCE, "-o", str(path))
    assert (done.returncode, done.stderr) == (0, b"")
    beckett_path = tmp_path / "beckett.wav"
    beckett_path.write_bytes(beckett)
    done = voxlane("transcribe", str(path), str(beckett_path))
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = done.stdout.decode().splitlines()
    assert plain(first.partition(": ")[2]) == plain(SENTENCE)
    assert "fail better" in second.lower()


@pytest.mark.usefixtures("no_leaks")
def test_live_audio_gives_the_text_of_the_file(beckett: bytes) -> None:
    live = voxlane("transcribe", "--raw", "16000", "--stream", stdin=encode_pcm16(decode_wav(beckett)[0]))
    whole = voxlane("transcribe", stdin=beckett)
    assert live.returncode == whole.returncode == 0
    assert live.stdout == whole.stdout
    assert b"fail better" in whole.stdout.lower()

"""`voxlane talk` against the real server: a spoken question gets a spoken answer, and what is heard is the caption."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxlane.codecs.wav import decode_wav, encode_wav

pytestmark = pytest.mark.weights

QUESTION = "What color is the sky on a clear day?"
"""Its answer is made of plain English words, which are spelt as they are heard."""


def plain(text: str) -> list[str]:
    """Return the words alone."""
    return re.findall(r"[a-z0-9']+", text.lower())


def say(server: Any, text: str) -> bytes:
    content: bytes = server.client.audio.speech.create(
        model="tts-1", voice="alloy", input=text, response_format="wav"
    ).content
    return content


def talk(server: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"{server.url.replace('http', 'ws', 1)}/v1/voice"
    command = [sys.executable, "-m", "voxlane.server.cli", "talk", "--url", url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_spoken_question_gets_a_spoken_answer(server: Any, tmp_path: Path) -> None:
    question, answer = tmp_path / "question.wav", tmp_path / "answer.wav"
    question.write_bytes(say(server, QUESTION))
    done = talk(server, "--in", str(question), "--out", str(answer), "--temperature", "0")
    assert done.returncode == 0, done.stderr
    asked, told = done.stdout.splitlines()
    assert plain(asked) == ["you", *plain(QUESTION)]
    assert "blue" in plain(told)
    assert re.search(r"turn end \d+, .*first frame \d+", done.stderr)
    assert re.findall(r"\[(\w+)\]", done.stderr) == [
        "hearing", "thinking", "speaking", "listening",
    ]  # fmt: skip
    heard = server.client.audio.transcriptions.create(model="whisper-1", file=("heard.wav", answer.read_bytes()))
    assert plain(heard.text) == plain(told.removeprefix("assistant: "))
    server.wait_metric(0, "voxlane_engine_requests", state="running")
    assert server.metric("voxlane_sessions") == 0


def test_a_recording_of_silence_is_no_conversation(server: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in.wav", tmp_path / "out.wav"
    source.write_bytes(encode_wav(np.zeros(8_000, np.float32), 16_000))
    done = talk(server, "--in", str(source), "--out", str(target))
    assert (done.returncode, done.stdout) == (0, "")
    assert not decode_wav(target.read_bytes())[0].any()

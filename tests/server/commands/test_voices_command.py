"""`voxlane voices`, and `voxlane say --url`, against a server of the scripted engine, as a person uses them."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.server import cli
from voxlane.server.commands import voices
from voxlane.server.config import API_KEY_VARIABLE
from voxlane.server.errors import ServerFailed

Run = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    path.write_bytes(encode_wav(decode_pcm16(array("h", [99] * 40_000).tobytes()), 16_000))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in a thread; return its exit code and what it wrote."""
    monkeypatch.setattr(cli.log, "set_up", lambda level: None)

    async def ran(*arguments: str | Path, key: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv(API_KEY_VARIABLE, key)
        code = await asyncio.to_thread(cli.main, list(map(str, arguments)))
        return code, *capsys.readouterr()

    return ran


async def test_a_voice_is_made_listed_heard_and_forgotten(run: Run, serving: Any, clip: Path, tmp_path: Path) -> None:
    async with serving(api_key="secret") as server:
        asked = ("--url", server.url)
        made = await run(
            "voices",
            "add",
            "Ada L.",
            "--from",
            clip,
            "--consent",
            "--transcript",
            "Hello?",
            "--language",
            "en",
            *asked,
            key="secret",
        )
        assert made == (0, "Ada L. can be asked for by its name as long as the server runs.\n", "")
        code, out, _ = await run("voices", "list", *asked, key="secret")
        assert (code, out.splitlines()[:3]) == (0, ["one (default)", "two", "af_alloy"])
        assert re.fullmatch(r"Ada L\. \(from a recording, \d{4}-\d\d-\d\d \d\d:\d\d\)", out.splitlines()[3])
        target = tmp_path / "said.pcm"
        assert await run("say", "Hello.", "--voice", "Ada L.", "-o", target, *asked, key="secret") == (0, "", "")
        body = {"input": "Hello.", "voice": "Ada L.", "response_format": "pcm"}
        answer = await server.client.post("/v1/audio/speech", json=body, headers={"authorization": "Bearer secret"})
        assert target.read_bytes() == answer.content != b""
        assert await run("voices", "rm", "Ada L.", *asked, key="secret") == (0, "", "")
        code, _, err = await run("voices", "rm", "Ada L.", *asked, key="secret")
        assert (code, "Ada L." in err) == (1, True)
        assert (await run("voices", "list", *asked))[0] == 1, "without the key"


async def test_what_cannot_be_is_one_line(run: Run, serving: Any, clip: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.wav"
    short.write_bytes(encode_wav(decode_pcm16(array("h", [99] * 400).tobytes()), 16_000))
    add = ["add", "ada", "--from", clip, "--consent"]
    long, foreign = [*add, "--transcript", "x" * 1001], [*add, "--language", "klingon"]
    async with (
        serving(tts_model="fixed-voices") as fixed,
        serving(tts_model="instructed") as many,
        serving() as server,
    ):
        for arguments, code, words in (
            (["add", "ada", "--from", clip, "--url", server.url], 2, r"--consent is needed: .* has agreed"),
            (["add", "ada", "--from", "none.wav", "--consent", "--url", server.url], 2, "none.wav: No such file"),
            (["add", "ada", "--from", short, "--consent", "--url", server.url], 1, "at least 1 s of sound"),
            (["add", "?", "--from", clip, "--consent", "--url", server.url], 1, "letters, digits"),
            (["add", "ada", "--from", clip, "--consent", "--url", fixed.url], 1, "Qwen3-TTS Base checkpoint"),
            ([*long, "--url", server.url], 2, "--transcript has 1001 characters: give at most 1000"),
            ([*foreign, "--url", many.url], 1, "language must be one of english, german"),
            (["list", "--url", "http://127.0.0.1:1"], 1, "is `voxlane serve` running there"),
            (["list", "--url", "127.0.0.1"], 2, "begins with http"),
        ):
            done = await run("voices", *arguments)
            assert done[:2] == (code, "")
            assert re.fullmatch(rf"voxlane: .*{words}.*\n", done[2]), done
        assert (await run("say", "Hello.", "--voice", "nobody", "-o", "-", "--url", server.url))[0] == 1


@asynccontextmanager
async def stranger(status: str, kind: str, body: bytes) -> AsyncIterator[str]:
    """Give the address of a server of another kind, which has one answer for everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        writer.write(f"{head}location: https://example.org/\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "kind", "body", "says"),
    [
        ("301 Moved", "text/html", b"<html>moved</html>", "HTTP 301: see https://example.org/"),
        ("200 OK", "text/html", b"<html>I am a router</html>", "it is no voxlane server"),
        ("200 OK", "audio/wav", b"", "it is no voxlane server"),
    ],
)
async def test_what_is_no_sound_leaves_a_file_as_it_is_or_none(
    run: Run, tmp_path: Path, status: str, kind: str, body: bytes, says: str
) -> None:
    target = tmp_path / "said.wav"
    target.write_bytes(b"before")
    async with stranger(status, kind, body) as url:
        code, _, err = await run("say", "Hello.", "--url", url, "-o", target)
    assert (code, says in err, err.count("\n")) == (1, True, 1)
    assert target.read_bytes() == b"before" if kind == "text/html" else not target.exists()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": None},
        {"data": [1]},
        {"models": [{"name": "another"}]},
        {"data": [{"id": "another"}]},
        {"data": [{"voxlane": {"task": "tts"}}]},
        {"data": [{"voxlane": {"task": "tts", "voices": ["a"]}}]},
        {"data": [{"voxlane": {"task": "tts", "voices": ["a"]}, "name": "a", "created_at": 1e30}]},
    ],
)
async def test_a_server_of_another_kind_has_no_voices(run: Run, answer: object) -> None:
    async with stranger("200 OK", "application/json", json.dumps(answer).encode()) as url:
        code, out, err = await run("voices", "list", "--url", url)
    assert (code, out) == (1, "")
    assert err == f"voxlane: The server did not do it. {url} answers, but it is no voxlane server.\n"


async def test_the_address_may_stand_before_the_action_or_behind_it(run: Run, serving: Any) -> None:
    async with serving() as server:
        asked = ("--url", server.url)
        listed = await run("voices", *asked)
        assert listed == (0, "one (default)\ntwo\naf_alloy\n", "")
        assert listed == await run("voices", *asked, "list") == await run("voices", "list", *asked)


async def test_what_is_for_an_engine_of_ones_own_is_refused_with_a_server(run: Run) -> None:
    for flag in ("--config", "--model", "--device", "--threads"):
        code, _, err = await run("say", "Hello.", flag, "1", "--url", "http://127.0.0.1:1", "-o", "said.wav")
        assert (code, err.startswith(f"voxlane: {flag} is for an engine of one's own")) == (2, True)
    assert (await run("voices", "rm", "", "--url", "http://127.0.0.1:1"))[0] == 2


def test_a_terminal_does_not_obey_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def refused(*_: object) -> int:
        raise ServerFailed("no\x1b]0;mine\x07 voice")

    monkeypatch.setattr(sys, "stderr", written := Terminal())
    monkeypatch.setattr(voices, "run_list", refused)
    assert cli.main(["voices"]) == 1
    assert written.getvalue() == "voxlane: The server did not do it. no]0;mine voice.\n"

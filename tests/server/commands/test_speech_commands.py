"""`voxlane transcribe` and `voxlane say` as a shell uses them, on the scripted engine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from voxlane.codecs.container import decode_audio
from voxlane.codecs.encode import SpeechFormat
from voxlane.codecs.wav import decode_wav
from voxlane.server.commands.arguments import SPEECH_FORMATS

FOX = "The quick brown fox jumps over the lazy dog."
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def code(engine_command: tuple[str, ...]) -> str:
    """Python that runs the command line with the scripted engine."""
    return (
        "import sys\n"
        "from voxlane.server import cli\n"
        "from voxlane.server.engine_client import engine_process\n"
        f"engine_process.ENGINE_COMMAND = {engine_command!r}\n"
        "sys.exit(cli.main())"
    )


@pytest.fixture
def voxlane(code: str, tmp_path: Path) -> Run:
    """Run a command in an empty folder and return what it did."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, cwd=tmp_path, env={**os.environ, **environment}, timeout=120
        )

    return run


@pytest.fixture
def fox(tmp_path: Path, recording: Any) -> Path:
    """A file in which the fox is heard."""
    path = tmp_path / "fox.wav"
    path.write_bytes(recording(FOX, 3))
    return path


def test_a_file(voxlane: Run, fox: Path) -> None:
    done = voxlane("transcribe", "fox.wav")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"{FOX}\n", b"")
    assert voxlane("transcribe", "--stream", "fox.wav").stdout == done.stdout


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_file_through_stdin(voxlane: Run, fox: Path, arguments: list[str]) -> None:
    assert voxlane("transcribe", *arguments, stdin=fox.read_bytes()).stdout.decode() == f"{FOX}\n"


def test_json(voxlane: Run, fox: Path) -> None:
    found = json.loads(voxlane("transcribe", "fox.wav", "--json", "--language", "de").stdout)
    assert (found["text"], found["language"], found["duration"]) == (FOX, "german", 3.0)
    assert [word["word"] for word in found["words"]] == FOX.split()
    (line,) = voxlane("transcribe", "fox.wav", "--json", "--stream").stdout.splitlines()
    assert json.loads(line)["text"] == FOX


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_subtitles(voxlane: Run, fox: Path, stream: list[str]) -> None:
    srt = voxlane("transcribe", "fox.wav", "--srt", *stream).stdout.decode()
    assert srt == f"1\n00:00:00,000 --> 00:00:04,400\n{FOX}\n\n"
    vtt = voxlane("transcribe", "fox.wav", "--vtt", *stream).stdout.decode()
    assert vtt == f"WEBVTT\n\n00:00:00.000 --> 00:00:04.400\n{FOX}\n\n"


def test_several_files_and_one_that_is_broken(voxlane: Run, fox: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF")
    done = voxlane("transcribe", "fox.wav", "broken.wav", "fox.wav")
    assert done.returncode == 1
    assert done.stdout.decode() == f"fox.wav: {FOX}\n" * 2
    assert done.stderr.decode().startswith("voxlane: broken.wav: The audio cannot be used.")
    assert done.stderr.count(b"\n") == 1
    lines = voxlane("transcribe", "--json", "fox.wav", "fox.wav").stdout.splitlines()
    assert [json.loads(line)["file"] for line in lines] == ["fox.wav", "fox.wav"]


def test_bare_pcm_is_heard_while_it_comes(code: str, recording: Any) -> None:
    """The first word is printed although the pipe stays open; Ctrl-C ends the audio, and the rest is printed."""
    command = [sys.executable, "-c", code, "transcribe", "--raw", "16000", "--stream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(recording("first second third", 1)[44:] + b"\x00")  # half a sample waits for its other half
        process.stdin.flush()
        assert process.stdout.read(5) == b"first"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b" second third\n"
        assert process.wait() == 0


def test_bare_pcm_from_a_file_and_at_another_rate(voxlane: Run, code: str, fox: Path) -> None:
    raw = fox.read_bytes()[44:]
    assert voxlane("transcribe", "--raw", "16000", stdin=raw).stdout.decode() == f"{FOX}\n"
    (fox.parent / "raw").write_bytes(raw)
    with (fox.parent / "raw").open() as file:
        command = [sys.executable, "-c", code, "transcribe", "--raw", "16000", "--json"]
        found = json.loads(subprocess.run(command, stdin=file, capture_output=True).stdout)
    assert (found["text"], found["duration"]) == (FOX, 3.0)
    resampled = json.loads(voxlane("transcribe", "--raw", "8000", "--json", stdin=bytes(16_000)).stdout)
    assert resampled["duration"] == 1.0


def test_a_long_file_shows_how_far_it_is(terminal: Any, code: str, fox: Path, recording: Any) -> None:
    path = fox.parent / "long.wav"
    path.write_bytes(recording(FOX, 90))
    shown = terminal("transcribe", str(path), code=code)
    assert "of 1:30  long.wav" in shown.until(FOX)
    assert shown.exit_status() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.wav"], "none.wav: no such file"),
        (["--srt", "fox.wav", "fox.wav"], "--srt takes one FILE"),
        (["--raw", "16000", "fox.wav"], "--raw reads from stdin"),
        (["--raw", "1"], "--raw must be a sample rate"),
        (["-", "-"], "stdin can be read only once"),
        (["--language", "fr", "fox.wav"], "--language must be one of en, de"),
        (["--model", "", "fox.wav"], "engine.asr_model is empty"),
    ],
)
def test_mistakes_are_one_line(voxlane: Run, fox: Path, arguments: list[str], says: str) -> None:
    done = voxlane("transcribe", *arguments)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"voxlane: {says}")
    assert done.stderr.count(b"\n") == 1


def test_in_a_terminal_without_a_file_there_is_nothing_to_hear_or_say(terminal: Any, code: str) -> None:
    for command in ("transcribe", "say"):
        asked = terminal(command, code=code)
        asked.until("voxlane: there is nothing to ")
        assert asked.exit_status() == 2


def spoken(wav: bytes) -> str:
    samples, _ = decode_wav(wav)
    return "".join(chr(round(float(sample) * 32768)) for sample in samples)


def test_say_to_a_file(voxlane: Run, tmp_path: Path) -> None:
    done = voxlane("say", "Good", "morning,", "everybody.", "-o", "a.wav")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    data = (tmp_path / "a.wav").read_bytes()
    assert spoken(data) == "Good morning, everybody."
    assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert int.from_bytes(data[40:44], "little") == len(data) - 44


def test_say_to_stdout_from_stdin(voxlane: Run) -> None:
    done = voxlane("say", "-o", "-", stdin="Größe: two metres.".encode())
    assert spoken(done.stdout) == "Größe: two metres."


@pytest.mark.parametrize("suffix", ["mp3", "opus", "flac", "aac", "pcm"])
def test_say_in_the_format_of_the_name(voxlane: Run, tmp_path: Path, suffix: str) -> None:
    assert voxlane("say", "flood 3", "-o", f"a.{suffix}").returncode == 0
    data = (tmp_path / f"a.{suffix}").read_bytes()
    if suffix == "pcm":
        assert len(data) == 300_000
    else:
        samples, rate = decode_audio(data)
        assert len(samples) / rate == pytest.approx(150_000 / 24_000, abs=0.15)


def test_say_parameters(voxlane: Run) -> None:
    arguments = ["--voice", "two", "--speed", "1.5", "--seed", "7", "--format", "wav"]
    done = voxlane("say", "params", "-o", "-", *arguments, "--pronounce", "Ada = ay-da")
    told = (
        "SpeakParams(voice='two', speed=1.5, seed=7, language='', instructions='', live=False,"
        " pronunciations=('Ada = ay-da',))"
    )
    assert spoken(done.stdout) == told


def test_only_emoji_is_a_file_of_silence(voxlane: Run, tmp_path: Path) -> None:
    assert voxlane("say", "🎉🎉", "-o", "a.wav").returncode == 0
    assert spoken((tmp_path / "a.wav").read_bytes()) == "\0" * 6000


def test_list_voices(voxlane: Run) -> None:
    assert voxlane("say", "--list-voices").stdout == b"one (default)\ntwo\naf_alloy\n"


def player(folder: Path, name: str, script: str) -> str:
    """Put a program into a folder that is all of PATH, and return that folder."""
    path = folder / "bin" / name
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.parent)


def test_say_plays_while_it_comes(voxlane: Run, tmp_path: Path) -> None:
    path = player(tmp_path, "aplay", f"/bin/cat > {tmp_path}/played.wav")
    assert voxlane("say", "Hello there, you.", PATH=path).returncode == 0
    assert spoken((tmp_path / "played.wav").read_bytes()) == "Hello there, you."


def test_say_plays_a_file_and_removes_it(voxlane: Run, tmp_path: Path) -> None:
    path = player(tmp_path, "afplay", f"/bin/cp $1 {tmp_path}/played.wav; echo $1 > {tmp_path}/name")
    assert voxlane("say", "Hello there, you.", PATH=path).returncode == 0
    assert spoken((tmp_path / "played.wav").read_bytes()) == "Hello there, you."
    assert not Path((tmp_path / "name").read_text().strip()).exists()


@pytest.mark.parametrize("script", ["exit 1", "/bin/cat > /dev/null; exit 1"])
def test_a_player_that_fails(voxlane: Run, tmp_path: Path, script: str) -> None:
    done = voxlane("say", "flood 30", PATH=player(tmp_path, "aplay", script))
    assert done.returncode == 1
    assert b"aplay failed: use -o FILE" in done.stderr


def test_no_player(voxlane: Run, tmp_path: Path) -> None:
    done = voxlane("say", "Hello.", PATH=str(tmp_path))
    assert done.returncode == 2
    assert b"no player was found (aplay, ffplay, play, afplay, paplay): use -o FILE" in done.stderr


def test_a_file_that_could_not_be_completed_is_removed(voxlane: Run, tmp_path: Path) -> None:
    done = voxlane("say", "fail", "-o", "a.wav")
    assert done.returncode == 1
    assert b"The model failed" in done.stderr
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([" "], "there is nothing to say: the text is empty"),
        (["Hi.", "-o", "a.xyz"], "a.xyz: which format? Use --format or one of .wav"),
        (["Hi.", "--format", "mp3"], "--format is for files"),
        (["Hi.", "-o", "a.wav", "--speed", "3"], "--speed must be between 0.5 and 2"),
        (["Hi.", "-o", "a.wav", "--speed", "nan"], "--speed must be between 0.5 and 2"),
        (["Hi.", "-o", "a.wav", "--seed", "-1"], "--seed must be between"),
        (["Hi.", "-o", "a.wav", "--pronounce", "Ada"], "--pronounce: entry 1: write it as"),
        (["Hi.", "-o", "a.wav", "--voice", "nobody"], "--voice must be one of one, two, af_alloy"),
        (["Hi.", "-o", "none/a.wav"], "none/a.wav: No such file or directory"),
        (["Hi.", "-o", "a.wav", "--model", ""], "engine.tts_model is empty"),
    ],
)
def test_mistakes_in_saying_are_one_line(voxlane: Run, arguments: list[str], says: str) -> None:
    done = voxlane("say", *arguments)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"voxlane: {says}")
    assert done.stderr.count(b"\n") == 1


def test_text_that_is_no_text_or_too_long(voxlane: Run) -> None:
    assert b"stdin: not UTF-8 text" in voxlane("say", "-o", "-", stdin=b"\xff\xfe").stderr
    assert b"longer than 100000 characters" in voxlane("say", "-o", "-", stdin=b"word " * 20_001).stderr


def test_the_formats_are_those_that_can_be_written() -> None:
    assert sorted(get_args(SpeechFormat)) == sorted(SPEECH_FORMATS)

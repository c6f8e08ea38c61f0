"""The command line: help that teaches, errors in one line, exit codes."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from voxlane.server import cli

COMMANDS = ("serve", "chat", "transcribe", "say", "voices", "talk", "models", "perplexity", "check-config")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def exits(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = exits(capsys, "--help")
    assert status == 0
    assert all(command in text for command in COMMANDS)
    assert "voxlane serve" in text


def test_each_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        status, text, _ = exits(capsys, command, "--help")
        assert (status, "examples:" in text) == (0, True), command


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys)
    assert status == 2
    assert "usage: voxlane" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits(capsys, "--version")[1].startswith("voxlane ")


def test_check_config_prints_what_is_in_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "v.toml"
    path.write_text("[server]\nport = 9\n")
    status, text, _ = run(capsys, "check-config", str(path))
    assert status == 0
    assert "port = 9  # default: 8000" in text
    assert run(capsys, "check-config", "--config", str(path)) == (0, text, "")


def test_check_config_teaches_the_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--keys" in exits(capsys, "check-config", "--help")[1]
    status, text, _ = run(capsys, "check-config", "--keys")
    assert status == 0
    assert "any free one, which the banner tells.\nport = 8000  # a whole number from 0 to 65535\n" in text
    path = tmp_path / "v.toml"
    path.write_text(text.replace("port = 8000", "port = 9"))
    assert "port = 9  # default: 8000; a whole" in run(capsys, "check-config", "--keys", str(path))[1]


def test_mistakes_in_the_file_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "v.toml"
    path.write_text("[server]\nprot = 9\n")
    for command in ("check-config", "serve", "chat"):
        arguments = [str(path)] if command == "check-config" else ["--config", str(path)]
        status, text, error = run(capsys, command, *arguments, *(["hello"] if command == "chat" else []))
        assert (status, text) == (2, "")
        assert error == f"voxlane: {path}: unknown key server.prot (did you mean port?)\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["serve", "--policy", "lifo"],
            "command line: engine.policy must be one of deadline, fcfs, priority, not lifo",
        ),
        (["serve", "--port", "70000"], "command line: server.port must be a whole number from 0 to 65535, not 70000"),
        (["check-config", "a.toml", "--config", "b.toml"], "one file at a time: leave out a.toml or --config b.toml"),
        (["chat", "hello", "--temperature", "nan"], "--temperature must be between 0 and 2"),
        (["chat", " "], "there is nothing to ask: the message is empty"),
        (["perplexity", "/nonexistent/file"], "/nonexistent/file: No such file or directory"),
    ],
)
def test_mistakes_on_the_line_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    status, _, error = run(capsys, *arguments)
    assert (status, error) == (2, f"voxlane: {says}\n")


def test_a_port_in_use_is_found_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, _, error = run(capsys, "serve", "--port", str(port))
    assert status == 2
    assert error == (
        f"voxlane: cannot listen on 127.0.0.1 port {port}: the port is in use; choose another with --port\n"
    )


def test_a_key_with_spaces_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXLANE_API_KEY", " key")
    status, _, error = run(capsys, "serve")
    assert status == 2
    assert error.startswith("voxlane: VOXLANE_API_KEY: ")


def test_others_are_not_served_without_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOXLANE_API_KEY", raising=False)
    assert cli.main(["serve", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "server.host: 0.0.0.0 can be reached by others: set VOXLANE_API_KEY" in capsys.readouterr().err


def test_talking_needs_both_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["talk", "--in", "question.wav"]) == 2
    assert "--in and --out go together" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_traceback() -> None:
    command = f"{sys.executable} -m voxlane.server.cli check-config | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_a_terminal_without_a_character_gets_an_escape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "voxlane.toml"
    path.write_text('[engine]\nmodel = "./größe→.gguf"\n', encoding="utf-8")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1", write_through=True))
    assert cli.main(["check-config", "--config", str(path)]) == 0
    assert "größe\\u2192.gguf" in shown.getvalue().decode("latin-1")


def test_perplexity_of_a_file(command: Any, tmp_path: Path) -> None:
    path, config = tmp_path / "text", tmp_path / "v.toml"
    path.write_text("one two three")
    # The window is what the command line asks for, what is configured, or 512.
    for configured, asked, window in (
        ("", (), 512),
        ("context_tokens = 256", (), 256),
        ("context_tokens = 256", ("--context", "64"), 64),
    ):
        config.write_text(f'[engine]\nmodel = "scripted"\n{configured}\n')
        code, out, err = command("perplexity", str(path), "--config", str(config), *asked)
        assert (code, err) == (0, "")
        # The scripted engine gives every word a log-probability of -2, and e squared is 7.389.
        assert out.startswith(f"perplexity 7.3891  tokens 3  window {window}  ")
    for said in ("fail", "fail later"):
        path.write_text(said)
        code, out, err = command("perplexity", str(path), "--model", "scripted")
        assert (code, out, "not finite" in err) == (1, "", True)

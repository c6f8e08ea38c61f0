"""The commands as a person uses them, with the real engine and weights."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_qwen3 import write_adapter, write_qwen3

pytestmark = [pytest.mark.weights, pytest.mark.usefixtures("no_leaks")]

FRANCE = "What is the capital city of France? Answer in English."
TEXT = """The sun rises in the east and sets in the west. In the morning people get up, wash, eat their breakfast and
go to work. Children go to school, where they learn to read and write. In the evening the family comes home, cooks
dinner together and talks about the day. Then everybody goes to bed, and the next morning it begins again. """


SMALL = ("--model", "smollm2-135m-instruct")
QUIET = (*SMALL, "--asr-model", "", "--tts-model", "", "--kv-memory-mib", "128")
"""A server that neither hears nor speaks is started in half the time."""


def voxlane(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "voxlane.server.cli", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)


def test_one_question() -> None:
    done = voxlane("chat", FRANCE, *SMALL, "--temperature", "0", "--max-tokens", "40", "--stats")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert re.search(r"\[\d+ tokens, first after \d+ ms, [\d.]+ tokens/s", done.stderr)


def test_a_folder_of_hugging_face_with_an_adapter(tmp_path: Path) -> None:
    model, adapter = write_qwen3(tmp_path / "Qwen3-0.6B"), tmp_path / "my-lora"
    write_adapter(model, adapter)
    chat = ("chat", "Hello!", "--model", str(model), "--temperature", "0", "--max-tokens", "10")
    plain, adapted = voxlane(*chat), voxlane(*chat, "--adapter", str(adapter))
    assert (plain.returncode, adapted.returncode) == (0, 0), plain.stderr + adapted.stderr
    assert plain.stdout.strip()
    assert adapted.stdout != plain.stdout


def test_a_conversation_with_an_interruption(terminal: Any) -> None:
    chat = terminal("chat", *SMALL, "--temperature", "0", "--max-tokens", "2000", "--kv-memory-mib", "128")
    chat.until("Ctrl-D leaves.")
    chat.until("> ")
    chat.type("Tell me a very long story about a dragon and a princess.\r")
    chat.until("princess.\r\n")
    chat.until(" ")  # the reply has begun
    chat.type("\x03")
    chat.until("(interrupted)")
    chat.type("/reset\r")
    chat.until("(forgotten)")
    chat.type("/stats\r")
    chat.until("(stats on)")
    chat.type(f"{FRANCE}\r")
    chat.until("Paris")
    chat.until("tokens/s")
    chat.until("> ")  # a Ctrl-D before the prompt would be lost
    chat.type("\x04")
    assert chat.exit_status() == 0


def test_perplexity_is_that_of_a_model_that_works(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(TEXT * 3)
    done = voxlane("perplexity", str(path), *SMALL, "--context", "128")
    assert done.returncode == 0, done.stderr
    found = re.match(r"perplexity ([\d.]+)  tokens (\d+)  window 128", done.stdout)
    assert found
    # A model that guesses blindly has its vocabulary's size, 49152; a broken one is in the hundreds at least.
    assert 1 < float(found[1]) < 40
    assert int(found[2]) > 150


def test_a_model_that_is_not_there_is_one_line() -> None:
    done = voxlane("chat", "hello", "--model", "no-such-model")
    assert done.returncode == 1
    assert done.stderr.startswith("voxlane: the engine could not start: ")
    assert done.stderr.count("\n") == 1


def test_a_running_reply_outlives_sigterm(start_server: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[server]\ndrain_s = 120\n")
    server = start_server("--config", str(config), *QUIET)
    # So many that they are not all there before the signal is, on a machine that stands still for a moment.
    parameters: Any = {"max_tokens": 300, "stream": True, "extra_body": {"ignore_eos": True}}
    messages = [{"role": "user", "content": "Tell me a story."}]
    stream = server.client.chat.completions.create(model="smollm2-135m-instruct", messages=messages, **parameters)
    pieces = iter(stream)
    next(pieces)
    server.process.send_signal(signal.SIGTERM)
    rest = list(pieces)
    assert rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(60) == 0
    assert "drained running=1 finished=1 ended=0" in server.log.read_text()


def test_ctrl_c_in_the_terminal_drains_too(terminal: Any) -> None:
    serve = terminal("serve", "--port", "0", *QUIET)
    serve.until("stop it: Ctrl-C")
    serve.type("\x03")
    serve.until("stopping signal=SIGINT")
    serve.until("drained running=0")
    assert serve.exit_status() == 0


def test_the_engine_goes_with_a_server_that_is_killed(start_server: Any) -> None:
    server = start_server(*QUIET)
    engine = os.pidfd_open(server.engine_pid())
    parameters: Any = {"max_tokens": 4000, "stream": True, "extra_body": {"ignore_eos": True}}
    messages = [{"role": "user", "content": "Tell me a story."}]
    stream = server.client.chat.completions.create(model="smollm2-135m-instruct", messages=messages, **parameters)
    next(iter(stream))
    server.process.kill()
    try:
        ended, _, _ = select.select([engine], [], [], 60)  # readable when the process has ended
        assert ended
    finally:
        os.close(engine)
        stream.close()

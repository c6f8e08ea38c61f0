"""`voxlane chat` in a real terminal and in a pipe, around the scripted engine."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import HEAR_CTRL_C

from voxlane.server.commands.chat import ChatOptions
from voxlane.server.errors import ConfigError, ModelFailed


@pytest.fixture
def code(engine_command: Sequence[str]) -> Callable[..., str]:
    """Python that runs a chat around the scripted engine."""

    def make(message: str | None = None, options: str = "", model: str = "scripted", adapter: str = "") -> str:
        return (
            "from voxlane.engine.api import EngineConfig\n"
            "from voxlane.server.commands.chat import ChatOptions, run_chat\n"
            f"sys.exit(run_chat(EngineConfig({model!r}, adapter={adapter!r}), ChatOptions({options}), {message!r}, "
            f"engine_command={tuple(engine_command)!r}))"
        )

    return make


def test_one_question_one_answer(command: Any) -> None:
    assert command("chat", "hello you", "--model", "scripted") == (0, "hello you\n", "")


def test_a_piped_question_with_stats(command: Any) -> None:
    _, out, err = command("chat", "--model", "scripted", "--stats", stdin="what is\nthis?")
    assert out == "what is\nthis?\n"
    assert err == "[3 tokens, first after 2 ms, 333.3 tokens/s, prompt 7 (3 cached)]\n"
    _, _, err = command("chat", "lookup", "--model", "scripted", "--stats")
    assert err.endswith("prompt 7 (3 cached), lookup 5 of 8 accepted]\n")


def test_options_reach_the_engine(command: Any) -> None:
    options = ("--temperature", "0", "--seed", "5", "--max-tokens", "9")
    _, out, _ = command("chat", "sampling", "--model", "scripted", *options)
    assert "temperature=0.0," in out
    assert "seed=5" in out
    assert "max_tokens=9" in out
    assert "unset=('temperature', 'top_k'," in command("chat", "sampling", "--model", "scripted")[1]


def test_a_reply_that_fails_is_an_error(command: Any) -> None:
    for said in ("fail", "fail later"):
        code, _, err = command("chat", said, "--model", "scripted")
        assert (code, err) == (1, f"voxlane: {ModelFailed.text}\n")
    assert "not finite" in ModelFailed.text


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": float("nan")}, {"max_tokens": 0}, {"seed": 1 << 63}]
)
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name.replace("_", "-")):
        ChatOptions(**options)


def test_a_conversation(code: Any, terminal: Any, tmp_path: Path) -> None:
    chat = terminal(code=code(adapter="peter"))
    chat.until("scripted and adapter peter (")
    chat.until("Ctrl-D leaves.")
    chat.until("> ")
    chat.type("hello you\r")
    chat.until("hello you\r\n")
    chat.until("hello you\r\n")  # what was typed, and the answer
    chat.type("size\r")
    chat.until("\r\n22\r\n")  # hello you, twice, and size: the history is sent
    chat.type("/reset\r")
    chat.until("(forgotten)")
    chat.type("/system be brief\r")
    chat.until("(a new conversation)")
    chat.type("size\r")
    chat.until("\r\n12\r\n")
    chat.type("/stats\r")
    chat.until("(stats on)")
    chat.type("again\r")
    chat.until("tokens/s")
    chat.type("/nonsense\r")
    chat.until("no such command")
    chat.type("/help\r")
    chat.until("stop the reply")
    chat.until("\n> ")  # a Ctrl-D before the prompt would be lost
    chat.type("\x04")
    assert chat.exit_status() == 0
    history = tmp_path / "voxlane" / "chat_history"
    assert "hello you" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_the_reply_and_not_the_program(code: Any, terminal: Any) -> None:
    chat = terminal(code=code())
    chat.until("> ")
    chat.type("wait\r")
    chat.until("one ")
    chat.type("\x03")
    chat.until("(interrupted)")
    chat.until("> ")
    chat.until("/quit leaves", pressing="\x03")  # at the prompt: a hint
    chat.type("size\r")
    chat.until("\r\n12\r\n")  # wait, what was shown of its answer (one and a space), size
    chat.type("/quit\r")
    assert chat.exit_status() == 0


PRESSING = """
import builtins, os, signal
from voxlane.server.commands import chat

def pressing(*said, **how):
    os.kill(os.getpid(), signal.SIGINT)
    builtins.print(*said, **how)

chat.print = pressing
"""
"""A Ctrl-C before everything that the chat itself prints: neither at the prompt nor within a reply."""


def test_a_ctrl_c_in_between_is_nobodys(code: Any, terminal: Any) -> None:
    chat = terminal(code=PRESSING + code())
    chat.until("> ")
    chat.type("hello\r")
    chat.until("\r\nhello\r\n")
    chat.type("/stats\r")
    chat.until("(stats on)")
    chat.until("\n> ")
    chat.until("/quit leaves", pressing="\x03")
    chat.type("size\r")
    chat.until("\r\n14\r\n")  # hello, twice, and size: nothing of it was taken for interrupted
    chat.type("/quit\r")
    assert chat.exit_status() == 0


def test_a_reply_that_cannot_be_is_told_and_the_conversation_goes_on(code: Any, terminal: Any) -> None:
    chat = terminal(code=code())
    for said, told in (
        ("crash", ("The engine was lost",)),
        ("refuse too_long", ("does not fit the model's context. the prompt has 9 tokens.\r\n", "/reset starts again")),
        ("fail later", ("one \r\nvoxlane: The model failed: its output is not finite",)),
    ):
        chat.until("> ")
        chat.type(f"{said}\r")
        for line in told:
            chat.until(line)
        chat.until("> ")
        chat.type("size\r")
        chat.until("\r\n4\r\n")  # the failed exchange is not in the history
        chat.type("/reset\r")
        chat.until("(forgotten)")
    chat.type("/quit\r")
    assert chat.exit_status() == 0


BEGUN = """
from voxlane.server.commands import chat

stream = chat.Chat._stream

async def begun(*given):
    print("begun", file=sys.stderr, flush=True)
    return await stream(*given)

chat.Chat._stream = begun
"""
"""A sign that a reply is awaited, and so that Ctrl-C is the chat's."""


def test_ctrl_c_ends_a_chat_that_nobody_reads(engine_command: Sequence[str]) -> None:
    code = (
        f"{HEAR_CTRL_C}"
        "import sys\n"
        "from voxlane.server import cli\n"
        "from voxlane.server.engine_client import engine_process\n"
        f"engine_process.ENGINE_COMMAND = {tuple(engine_command)!r}\n"
        f"{BEGUN}\n"
        "sys.exit(cli.main(['chat', 'hello you', '--model', 'scripted']))"
    )
    nobody, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(full, bytes(4096)):
            pass
    os.set_blocking(full, True)
    with subprocess.Popen([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1] == ""
            assert process.returncode == 130
        finally:
            process.kill()
            os.close(full)
            os.close(nobody)

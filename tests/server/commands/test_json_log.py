"""`--log-json`: whatever a server writes, from its start to its end, is one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from voxlane.server.cli import main
from voxlane.server.log import FORMAT_VARIABLE


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_all_that_a_server_writes_is_json(engine_command: Sequence[str]) -> None:
    code = (
        "import asyncio, uvloop\n"
        "from voxlane.engine.api import EngineConfig\n"
        "from voxlane.server import log\n"
        "from voxlane.server.config import Config, LogConfig, ServerConfig\n"
        "from voxlane.server.commands.serve import serve\n"
        "log.set_up('info', as_json=True)\n"
        "config = Config(ServerConfig(port=0), EngineConfig('scripted'), log=LogConfig('json'))\n"
        "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
        f"    runner.run(serve(config, '', engine_command={tuple(engine_command)!r}))\n"
    )
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **both) as process:
        try:
            assert process.stdout is not None
            written = []
            while not written or written[-1]["message"] != "ready":
                written.append(json.loads(process.stdout.readline()))
            url = f"http://127.0.0.1:{written[-1]['fields']['port']}"
            assert httpx.post(f"{url}/v1/chat/completions", content=b"{", timeout=60).status_code == 400
            process.send_signal(signal.SIGTERM)
            written += objects(process.communicate(timeout=60)[0])
        finally:
            process.kill()
    assert process.returncode == 0
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(one) for one in written))
    assert {"ready", "stopping", "drained"} <= {one["message"] for one in written}


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a log as JSON does to its process."""
    for place, name in ((sys, "excepthook"), (threading, "excepthook")):
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setenv(FORMAT_VARIABLE, "text")
    yield
    logging.captureWarnings(False)
    logging.getLogger().handlers[:] = []


@pytest.mark.usefixtures("_restored")
def test_a_start_that_fails_says_so_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOXLANE_API_KEY", "k")
    assert main(["serve", "--log-json", "--host", "no.such.host.invalid"]) == 2
    done = capsys.readouterr()
    (told,) = objects(done.out + done.err)
    assert (told["level"], told["message"]) == ("CRITICAL", "failed")
    assert "no.such.host.invalid" in told["fields"]["reason"]


def test_the_engine_writes_json_where_the_server_does() -> None:
    code = (
        "from voxlane.engine import process\n"
        "process._set_up_log()\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    process.log.exception('step=%d', 3)\n"
        "raise KeyError('lost')\n"
    )
    for wanted in ("json", "text"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "VOXLANE_LOG_FORMAT": wanted},
        )
        if wanted == "json":
            told, last = objects(done.stderr)
            assert "KeyError: 'lost'" in last["trace"]
            assert (told["level"], told["message"]) == ("ERROR", "step=3")
            assert "ZeroDivisionError" in told["trace"]
        else:
            assert done.stderr.startswith("ERROR engine step=3\n")


def test_the_flag_is_a_key_of_the_configuration(capsys: Any) -> None:
    assert main(["check-config"]) == 0
    assert 'format = "text"' in capsys.readouterr().out

"""The lab measures voice servers that we did not write: pipecat and OpenAI's Agents SDK.

The bots are in tests/foreign_agents, and our server has their models. pipecat is in an environment of foreign clients,
which `make soak` sets up.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from voice_server import VoiceServer
from waiting import until

from voxlane_lab import call as lab_call
from voxlane_lab.runner import RunOptions, run_scenarios
from voxlane_lab.scenario_library import load

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
BOTS = ROOT / "tests" / "foreign_agents"
PIPECAT = ROOT / ".venv-clients" / "openai_2_54"
START_S, STOP_S = 120.0, 30


def pipecat() -> Path:
    """Return the Python of pipecat's environment; skip where it was not installed."""
    if not (PIPECAT / ".ready").exists():
        pytest.skip("pipecat is not installed: make clients")
    return PIPECAT / "bin" / "python"


@contextlib.contextmanager
def bot(python: Path | str, name: str, server: VoiceServer, log: Path) -> Iterator[str]:
    """Run a bot whose models are a server's; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("w") as output:
        chat_model = next(iter(server.client.models.list())).id
        command = [python, BOTS / name, str(port), f"{server.url}/v1", chat_model]
        environment = {**os.environ, "LOGURU_LEVEL": "WARNING"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        until(lambda: process.poll() is not None or answers(port), f"{name} listens", START_S)
        assert process.poll() is None, log.read_text()
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.kill()  # it holds nothing that must be put away
        process.wait(STOP_S)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Call a server, interrupt it, and return what became of the steps; the lab must have figures, of any value."""
    monkeypatch.setattr(lab_call, "LATE_MS", math.inf)  # no figure is judged here, so that the tester may be late

    def measure(url: str, dialect: str, mapping: str = "") -> list[str]:
        out, options = tmp_path / "lab", RunOptions(repeat=1, mapping=mapping)
        result = run_scenarios(load(["stop_and_ask"]), url=url, dialect=dialect, options=options, out=out)
        (call,) = result.scenarios[0].calls
        assert call.failure == ""
        assert call.steps[0].values["unanswered"] is not None
        assert call.steps[1].values["talk_over_ms"] is not None
        assert (out / "report.html").exists()
        return [step.result for step in call.steps]

    return measure


def test_pipecat(server: VoiceServer, tmp_path: Path, measured: Callable[..., list[str]]) -> None:
    with bot(pipecat(), "pipecat_bot.py", server, tmp_path / "log") as url:
        assert measured(f"{url}/twilio", "twilio") == ["done", "done"]


def test_the_agents_sdk(server: VoiceServer, tmp_path: Path, measured: Callable[..., list[str]]) -> None:
    with bot(sys.executable, "agents_sdk_bot.py", server, tmp_path / "log") as url:
        assert measured(url, "pcm", (BOTS / "agents_sdk_bot.toml").read_text()) == ["done", "done"]

"""The heavier clients that we did not write, each in an environment of its own: `make test-clients` sets them up.

Each holds the conversation of realtime_scenario with a real server. `make test` does not collect this file: its name is
no test's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from realtime_scenario import check, listener, record, steady_key
from small_model import with_small_model
from wiretap import Wiretap

HERE = Path(__file__).parent
VENVS = HERE.parent.parent / ".venv-clients"
COMMANDS = {
    "pipecat": [VENVS / "pipecat" / "bin" / "python", HERE / "pipecat_client.py"],
    "livekit": [VENVS / "livekit" / "bin" / "python", HERE / "livekit_client.py"],
    "node": ["node", HERE / "node" / "client.mjs"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-m", "voxlane.server.cli", "serve", "--port", "0", *with_small_model(())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("voxlane "), log.read_text()
    yield first.split()[-1]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def clips(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, pcm in record(client).items():
        (folder / f"{name}.pcm").write_bytes(pcm)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_conversation(name: str, server: str, client: OpenAI, clips: Path) -> None:
    with Wiretap(server) as tap:
        done = subprocess.run(
            [*COMMANDS[name], tap.url, steady_key(client), clips],
            env={**os.environ, "PYTHONPATH": str(HERE.parent / "support"), "LOGURU_LEVEL": "WARNING"},
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    check(tap.wire, listener(client))

"""A real server: its own process, the real engine, the real weights."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from small_model import with_small_model
from waiting import until

START_S = 300.0
ANSWER_S = 60.0


class Server:
    """`voxlane serve` with arguments, and what a test wants to know about it."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "voxlane.server.cli", "serve", "--port", "0", *with_small_model(arguments)]
        with log.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("voxlane "), f"the server did not start: {log.read_text()}"
        self.url = first.split()[-1]
        # The openai client repeats what is retryable; a test of errors wants to see each of them.
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def metric(self, name: str, **labels: str) -> float:
        """Return one metric's value now."""
        text = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        raise AssertionError(f"no metric {name} {labels}")

    def wait_metric(self, value: float, name: str, **labels: str) -> None:
        """Ask until one metric has a value."""
        until(lambda: self.metric(name, **labels) == value, f"{name} {labels} is {value:g}")

    def is_ready(self) -> bool:
        """Return whether the server is healthy now."""
        return httpx.get(f"{self.url}/healthz", timeout=ANSWER_S).status_code == httpx.codes.OK

    def wait_ready(self) -> None:
        """Ask until the server is healthy."""
        until(self.is_ready, "the engine is ready", START_S)

    def engine_pid(self) -> int:
        """Return the engine's process number."""
        (line,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(line)

    def stop(self) -> int:
        """End the server as an operator would, and return its exit status."""
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def start_server(tmp_path: Path, no_leaks: None) -> Iterator[Callable[..., Server]]:
    """Start a server of the test's own."""
    started: list[Server] = []

    def start(*arguments: str) -> Server:
        started.append(Server(tmp_path / f"server-{len(started)}.log", *arguments))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that most tests share."""
    shared = Server(tmp_path_factory.mktemp("server") / "log", "--kv-memory-mib", "256")
    yield shared
    assert shared.stop() == 0
    assert "Traceback" not in shared.log.read_text()

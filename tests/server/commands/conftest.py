"""Commands in this process, around the scripted engine in a thread."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO, TypeVar

import pytest
from engine_thread import EngineThread

from voxlane.server import cli
from voxlane.server.engine_client.engine_process import EngineProcess

T = TypeVar("T")
R = TypeVar("R")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command start the scripted engine."""
    defaults = EngineProcess.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "start_child", EngineThread.start)


@pytest.fixture
def command(
    scripted: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return its exit code and what it wrote."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = cli.main(arguments)
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def beside(scripted: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, object]]:
    """Serve in this thread, where signals arrive, with a client in another; return the results of both.

    The client is given the server's stdout and ends the server. If the client fails, that ends the server, too.
    """

    def run(serve: Callable[[], R], client: Callable[[TextIO], T]) -> tuple[R, T]:
        reader, writer = os.pipe()
        serving = True

        def live() -> T:
            try:
                return client(told)
            except BaseException:
                if serving:
                    os.kill(os.getpid(), signal.SIGTERM)
                raise

        with os.fdopen(reader) as told, ThreadPoolExecutor(1) as pool:
            with os.fdopen(writer, "w") as shown:
                monkeypatch.setattr(sys, "stdout", shown)
                asked = pool.submit(live)
                try:
                    result = serve()
                finally:
                    serving = False
                    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
            return result, asked.result()

    return run

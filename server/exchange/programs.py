"""Runs an installed program for as long as it is needed."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from voxlane.server.exchange.errors import ExchangeError

START_S, ANSWER_S = 60.0, 15.0
"""How long a program may take to start, and to answer."""


def bundled(tree: Path, program: str) -> list[str]:
    """Return the start of a command line that runs a program of `installed` with its own libraries."""
    (loader,) = tree.glob("usr/lib/*/ld-linux*.so.*")
    return [str(loader), "--library-path", str(loader.parent), str(tree / program)]


def free_ports(count: int) -> tuple[int, int]:
    """Return the first and last of adjacent free UDP ports, outside the range from which the kernel gives ports."""
    for _ in range(100):
        first = random.randrange(20_000, 32_000 - count, 2)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("0.0.0.0", port))
            return first, first + count - 1
    raise ExchangeError("this machine has no free ports for telephone calls")


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program as long as the context lasts."""
    # The program ends with this process, also where this process is killed.
    guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    process = subprocess.Popen([*guard, *command], stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(path: Path) -> str:
    """Return the last line of a program's messages."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"

"""A package as a reference, in its own environment: its requirements quarrel with ours.

Its packages lie in a folder of build/ that only the peer's processes see, before those of our environment, which
supplies torch. The first test that needs them installs them; they stay until the pins change or `make clean`.
Scripts go in as files of tests/support, arrays come out as .safetensors; nothing is pickled.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PEERS = Path(__file__).parents[3] / "build" / "peers"
DEADLINE_SECONDS = 300
"""A script that takes longer than this hangs."""


class PackagePeer:
    """An installed package."""

    def __init__(self, name: str, pins: Sequence[str]) -> None:
        """Install `pins` without their dependencies, unless they are there."""
        self._folder = PEERS / name
        with _lock(self._folder):
            ready = self._folder / ".ready"
            if not ready.exists() or ready.read_text().split() != list(pins):
                _install(self._folder, pins)

    def run(self, script: str, *arguments: str | os.PathLike[str]) -> None:
        """Run tests/support/`script` with arguments inside the peer; an error fails the test."""
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(os.fspath, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, f"{script} failed in the peer:\n{done.stderr[-4000:]}"


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let only one process install at a time: tests run in several processes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(folder: Path, pins: Sequence[str]) -> None:
    fresh = folder.with_suffix(".new")
    for old in (fresh, folder):
        shutil.rmtree(old, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(fresh), *pins],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"the peer {folder.name} cannot be installed:\n{done.stderr[-4000:]}"
    (fresh / ".ready").write_text("\n".join(pins))
    fresh.rename(folder)

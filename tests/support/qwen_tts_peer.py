"""The package qwen-tts as a reference, in its own environment: it needs an older transformers than ours.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PINS = ("qwen-tts==0.1.1", "transformers==4.57.3", "tokenizers==0.22.2", "huggingface-hub==0.36.0")
"""What the modelling code needs, without dependencies; qwen_tts_peer_imports replaces the rest."""

FOLDER = Path(__file__).parents[2] / "build" / "peers" / "qwen-tts"
DEADLINE_SECONDS = 300
"""A script that takes longer than this hangs."""


class QwenTtsPeer:
    """The installed peer."""

    def __init__(self) -> None:
        with _lock():
            ready = FOLDER / ".ready"
            if not ready.exists() or ready.read_text().split() != list(PINS):
                _install()

    def run(self, script: str, *arguments: str | os.PathLike[str]) -> None:
        """Run tests/support/`script` with arguments inside the peer; an error fails the test."""
        environment = {**os.environ, "PYTHONPATH": str(FOLDER), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(os.fspath, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, f"{script} failed in the peer:\n{done.stderr[-4000:]}"


@contextmanager
def _lock() -> Iterator[None]:
    """Let only one process install at a time: tests run in several processes."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with open(FOLDER.with_suffix(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install() -> None:
    fresh = FOLDER.with_suffix(".new")
    for folder in (fresh, FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(fresh), *PINS],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"the peer qwen-tts cannot be installed:\n{done.stderr[-4000:]}"
    (fresh / ".ready").write_text("\n".join(PINS))
    fresh.rename(FOLDER)

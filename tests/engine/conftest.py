"""Models for engine tests: small random checkpoints of every family, and the default model's real file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from voxlane.engine.weights.store import resolve

from .checkpoints import CONFIGS, write_checkpoint

MakeCheckpoint = Callable[[str], Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Return a function that writes the checkpoint named in CONFIGS once and returns its directory."""
    root = tmp_path_factory.mktemp("checkpoints")
    written: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in written:
            written[name] = write_checkpoint(root / name, CONFIGS[name])
        return written[name]

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Return the default chat model's GGUF file; tests that use it carry the marker `weights`."""
    return resolve("smollm2-135m-instruct")

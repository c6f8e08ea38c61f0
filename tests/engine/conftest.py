"""Models for engine tests: small random checkpoints of every family, and the default model's real file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CONFIGS, write_checkpoint

from voxlane.engine.audio import torchaudio_import as torchaudio_import  # before transformers, which imports torchaudio
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.store import resolve

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


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    """Return the default chat model's tokenizer; no test changes it."""
    return Tokenizer.open(smollm2_path)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[None]:
    """Triton's interpreter with numbers as the bounds of loops: before 3.9 it asks NumPy for what 2.4 refuses."""
    module = importlib.import_module("triton.runtime.interpreter")
    original = module._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_patch_lang_tensor", patched)
        yield

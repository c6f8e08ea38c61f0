"""What the kernel tests share: the native library, random inputs, and pages filled through scrambled block tables."""

from __future__ import annotations

import ctypes
import importlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from voxlane.engine.kernels import native


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The native library: where there is a compiler, it must build and pass its own check."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler on this machine")
    loaded = native.load()
    assert loaded is not None
    return loaded


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[int]:
    """Run the test with so many native threads."""
    library.vox_set_threads(request.param)
    yield request.param
    native.set_threads(0)


@pytest.fixture
def random() -> torch.Generator:
    """A generator that gives the same numbers in every run."""
    return torch.Generator().manual_seed(11)


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

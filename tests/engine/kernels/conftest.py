"""What the kernel tests share: the native library, random inputs, and pages filled through scrambled block tables."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator

import pytest
import torch
from examples import sweep

from voxlane.engine.kernels import native


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The native library: where there is a compiler, it must build and pass its own check."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler on this machine")
    loaded = native.load()
    assert loaded is not None
    return loaded


@pytest.fixture(params=sweep([3, 1, 2]))
def threads(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[int]:
    """Run the test with so many native threads."""
    library.vox_set_threads(request.param)
    yield request.param
    native.set_threads(0)


@pytest.fixture
def random() -> torch.Generator:
    """A generator that gives the same numbers in every run."""
    return torch.Generator().manual_seed(11)

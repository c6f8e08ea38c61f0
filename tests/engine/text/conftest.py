"""The real chat model, as the tests of text want it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from drive import chat_config

from voxlane.engine.build.assemble import Assembly, assemble


@pytest.fixture(scope="module")
def engine() -> Iterator[Assembly]:
    """Serve the default model; its memory is free again after the file."""
    built = assemble(chat_config(kv_memory_mib=64, swap_memory_mib=48, policy="fcfs"))
    yield built
    built.close()
    del built
    gc.collect()

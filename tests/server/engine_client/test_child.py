"""The processes of an engine, when this process has no descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress

import pytest

from voxlane.server.engine_client.child import SpareDescriptor


@pytest.fixture
def exhausted() -> Iterator[list[int]]:
    """Give a list; what is opened into it until nothing can be opened any more is closed afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, before[1]))
    opened: list[int] = []
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_engine_is_watched_though_no_descriptor_is_left(exhausted: list[int]) -> None:
    spare = SpareDescriptor()
    with suppress(OSError):
        while True:
            exhausted.append(os.open(os.devnull, os.O_RDONLY))
    with pytest.raises(OSError, match="Too many open files"):
        os.pidfd_open(os.getpid())
    first = spare.open_process(os.getpid())
    with pytest.raises(OSError, match="Too many open files"):
        spare.open_process(os.getpid())  # the spare one is used
    os.close(first)
    os.close(exhausted.pop())
    os.close(spare.open_process(os.getpid()))  # and was filled again behind it
    spare.close()

"""Wait for another process by polling, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.02
"""Time between two polls: the other process needs the processor more."""


def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Poll until the condition holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(PAUSE_S)

"""Waiting for another process, which has no event to offer: asking again and again, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.02
"""Between two questions: whoever is waited for needs the processor more."""


def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(PAUSE_S)

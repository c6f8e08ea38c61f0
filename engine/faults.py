"""What may go wrong with one request's own work, and how that is told without its content. It knows no work."""

from __future__ import annotations

import traceback

from voxlane.engine.weights.errors import ModelError

FAULTS: tuple[type[Exception], ...] = (
    ValueError, RuntimeError, LookupError, ArithmeticError, TypeError, AttributeError, AssertionError, OSError,
    MemoryError, ModelError,
)  # fmt: skip
"""Reading a text and hearing a recording is libraries' work: what they meet ends the request it belongs to, no more."""

_FRAMES = 3


def told(fault: Exception) -> str:
    """Return what a fault is and where it was, for the log: its own words may hold what somebody said."""
    frames = traceback.extract_tb(fault.__traceback__)[-_FRAMES:]
    places = "<".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"fault={type(fault).__name__} at={places}"

"""Ends a process with the one that has started it."""

from __future__ import annotations

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that has started it dies, even if this one hangs then."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the socket's end is enough
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

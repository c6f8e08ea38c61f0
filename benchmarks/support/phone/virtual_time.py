"""An event loop whose clock skips the time in which nothing happens, so that a call of a minute takes seconds.

Code that asks the loop for the time and waits with asyncio runs unchanged. Threads and real sockets are not for it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _SkippingSelector(selectors.SelectSelector):
    """Waits for nothing: it adds the time that it was to wait to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now."""
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("every task waits for something that never happens")
        if not found and timeout is not None:
            self.now_s += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop."""

    def __init__(self) -> None:
        self._clock = _SkippingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the time of the simulation in seconds."""
        return self._clock.now_s


def run_virtually(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

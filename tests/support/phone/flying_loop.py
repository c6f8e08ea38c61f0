"""An event loop with a virtual clock: when all tasks wait for timers, the clock jumps to the next timer at once."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Hourglass(selectors.DefaultSelector):
    """Waits normally, unless it has a virtual time: then waiting only advances that time."""

    now_s: float | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.now_s is None or timeout is None:  # without a timer there is no time to jump to
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.now_s += max(0.0, timeout)
        return events


class FlyingLoop(asyncio.SelectorEventLoop):
    """For tests that wait for a timeout. A task that is only slow sees the timeout, too."""

    def __init__(self) -> None:
        self._hourglass = _Hourglass()
        self._ahead_s = 0.0
        super().__init__(self._hourglass)

    def time(self) -> float:
        """Return the time of the loop's clock in seconds."""
        return super().time() + self._ahead_s if self._hourglass.now_s is None else self._hourglass.now_s

    def fly(self) -> float:
        """Start virtual time: only waiting advances the clock; return its time."""
        self._hourglass.now_s = self.time()
        return self._hourglass.now_s

    def land(self) -> float:
        """Return to real time; return the clock's time."""
        now_s = self.time()
        self._ahead_s, self._hourglass.now_s = now_s - super().time(), None
        return now_s

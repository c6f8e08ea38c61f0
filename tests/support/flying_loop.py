"""An event loop whose clock can fly: whenever everybody waits for it, it is already later, and nobody has waited."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _Hourglass(selectors.DefaultSelector):
    """Waits as others do unless it has a time of its own, which waiting alone brings forward."""

    now_s: float | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.now_s is None or timeout is None:  # without a timer there is nothing to fly to
            return super().select(timeout)
        events = super().select(0)
        if not events:
            self.now_s += max(0.0, timeout)
        return events


class FlyingLoop(asyncio.SelectorEventLoop):
    """For those who wait for what never comes: whoever is only slow finds that the time is over."""

    def __init__(self) -> None:
        self._hourglass = _Hourglass()
        self._ahead_s = 0.0
        super().__init__(self._hourglass)

    def time(self) -> float:
        """Return the seconds of its own clock."""
        return super().time() + self._ahead_s if self._hourglass.now_s is None else self._hourglass.now_s

    def fly(self) -> float:
        """Let the clock go by what is waited for and nothing else; return what it shows."""
        self._hourglass.now_s = self.time()
        return self._hourglass.now_s

    def land(self) -> float:
        """Let the clock go as others do; return what it shows."""
        now_s = self.time()
        self._ahead_s, self._hourglass.now_s = now_s - super().time(), None
        return now_s

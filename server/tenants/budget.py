"""A budget per minute that may be overdrawn once. Pure: the clock is an argument.

Unlike a Bucket of http/, it is asked before the price is known: a recording's length, or the sound of an answer. What
is spent is always taken; the next question is answered with the time that it takes to earn it back.
"""

from __future__ import annotations

MINUTE_S = 60.0


class MinuteBudget:
    """Earns `per_minute` a minute and keeps at most that much."""

    __slots__ = ("_content", "_filled_s", "_per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_minute = per_minute
        self._content = per_minute
        self._filled_s = now

    def wait_s(self, now: float, count: float = 0.0) -> float:
        """Return how long it takes until there is more than nothing, and at least `count`; 0: not at all."""
        self._fill(now)
        if self._content >= count and self._content > 0:
            return 0.0
        rate = self._per_minute / MINUTE_S
        return max((count - self._content) / rate, 1e-9)

    def spend(self, count: float, now: float) -> None:
        """Take `count` out, even if there is less."""
        self._fill(now)
        self._content -= count

    def follow(self, count: float, now: float) -> None:
        """Take out what other processes have spent since the last look, which should be short ago.

        After a late look some of it may have been earned back meanwhile: at most a minute has to be earned again.
        """
        self._fill(now)
        self._content = max(self._content - count, min(self._content, -self._per_minute))

    def change(self, per_minute: float, now: float) -> None:
        """Earn another amount from now on; what was spent stays spent."""
        self._fill(now)
        self._content = min(per_minute, self._content + per_minute - self._per_minute)
        self._per_minute = per_minute

    def _fill(self, now: float) -> None:
        earned = (now - self._filled_s) * self._per_minute / MINUTE_S
        self._content = min(self._per_minute, self._content + earned)
        self._filled_s = now

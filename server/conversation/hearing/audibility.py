"""Decide, at most once in a conversation, to tell the person to speak up. Pure: the clock is an argument."""

from __future__ import annotations

from collections import deque

FAINT_DB = -50.0
"""dB of full scale: a voice below this level that was not understood was probably too faint."""


class Audibility:
    """Counts what was said too faintly to be understood."""

    TIMES = 3
    WITHIN_S = 30.0

    def __init__(self) -> None:
        self._missed_s: deque[float] = deque(maxlen=self.TIMES)
        self._told = False

    def miss(self, now: float) -> bool:
        """Note that a faint voice was not understood; return whether to tell the person now."""
        self._missed_s.append(now)
        often = len(self._missed_s) == self.TIMES and now - self._missed_s[0] <= self.WITHIN_S
        if self._told or not often:
            return False
        self._told = True
        return True

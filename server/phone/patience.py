"""Decides what to say to a caller who says nothing: ask a few times, then say good-bye. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Advice = Literal["ask", "leave"]


@dataclass(slots=True)
class Patience:
    """The silence of one caller."""

    silence_s: float  # 0: wait for ever
    most_asked: int
    _asked: int = 0
    _since_s: float | None = None  # when it became quiet; None: it is not

    def listening(self, now: float) -> None:
        """Note that neither side speaks."""
        if self._since_s is None:
            self._since_s = now

    def busy(self) -> None:
        """Note that the caller speaks, or the assistant does."""
        self._since_s = None

    def spoke(self) -> None:
        """Note that the caller has said something."""
        self._asked = 0
        self._since_s = None

    def advise(self, now: float) -> Advice | None:
        """Return what to do now, None if there is nothing to do."""
        due_s = self.due_at()
        if due_s is None or now < due_s:
            return None
        self._since_s = now
        self._asked += 1
        return "ask" if self._asked <= self.most_asked else "leave"

    def due_at(self) -> float | None:
        """Return when the silence is too long, None if it is not quiet."""
        return None if self._since_s is None or not self.silence_s else self._since_s + self.silence_s

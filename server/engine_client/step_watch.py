"""Decides from a few facts, looked at every LOOK_S, whether the engine's step thread hangs. Pure.

Silence is the time in which the thread could have counted on and did not. A thread that waits for the processor or for
the disk could not; a stopped process could not either, but never goes on by itself. Looks are counted, not seconds on a
clock: after the machine was suspended, or while this process is late, the engine had no more time than the looks show.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_S = 0.25
"""Seconds between two looks."""

LEAST_S = 1.0
"""Shortest silence that is taken for a hang: an idle engine counts twice a second, and a look may just miss a count."""


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """What the kernel tells about a thread, as in /proc/PID/stat."""

    state: str  # R runs or waits for the processor, S sleeps, D waits for the disk, T and t are stopped
    cpu_s: float  # seconds on the processor so far


class StepWatch:
    """Watches one engine."""

    def __init__(self, hang_s: float) -> None:
        """Take a silence of `hang_s` for a hang; 0: none."""
        self._hang_s = max(hang_s, LEAST_S) if hang_s else float("inf")
        self._count = -1
        self._cpu_s: float | None = None
        self._silent_s = self._stopped_s = 0.0

    def check(self, count: int, allowed_s: float, facts: ThreadFacts | None, *, loading: bool = False) -> str:
        """Return why the engine hangs, "" if it does not.

        `facts` is None if the thread cannot be looked at. While the engine loads, its count need not grow.
        """
        if count != self._count:
            self._count, self._cpu_s = count, facts.cpu_s if facts is not None else None
            self._silent_s = self._stopped_s = 0.0
            return ""
        spent_s = self._spent_s(facts)
        stopped = facts is not None and facts.state in ("T", "t")
        self._stopped_s = self._stopped_s + LOOK_S if stopped else 0.0
        if self._stopped_s >= self._hang_s:
            return "it was stopped"
        if loading:
            return ""
        self._silent_s += spent_s
        if self._silent_s >= max(self._hang_s, allowed_s):
            return f"no progress for {self._silent_s:g} s"
        return ""

    def _spent_s(self, facts: ThreadFacts | None) -> float:
        """Return how much of the time since the last look the thread could have used."""
        if facts is None:
            return LOOK_S
        before, self._cpu_s = self._cpu_s, facts.cpu_s
        if facts.state == "D":
            return 0.0
        if facts.state == "R":  # it may have waited for the processor
            return 0.0 if before is None else min(LOOK_S, max(0.0, facts.cpu_s - before))
        return LOOK_S

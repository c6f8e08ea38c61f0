"""Decides when the server ends a call, and whether it says good-bye first. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["hang_up", "transfer", "silence", "time_limit", "shutdown"]
Step = Literal["wait", "say_good_bye", "end"]

LAST_WORDS_S = 15.0
"""Time to say what is to be said before a call that must end is cut."""

LAST_SOUND_S = 0.2
"""Silence before the end: a line begins to play a little late, and what it plays is still on its way to the caller."""

_FINAL: tuple[Reason, ...] = ("time_limit", "shutdown")


@dataclass(slots=True)
class Departure:
    """How one call ends. A call that the model or a silence ends goes on if the caller speaks."""

    reason: Reason | None = None
    epoch: int = 0  # the reply after which the model ends the call
    _at_s: float = 0.0  # the call ends then at the latest
    _unsaid: bool = False  # good-bye is still to be said
    _quiet_s: float | None = None  # since when it is quiet

    @property
    def final(self) -> bool:
        """Whether the call ends even if the caller speaks."""
        return self.reason in _FINAL

    def begin(self, reason: Reason, now: float, *, epoch: int = 0, within_s: float = LAST_WORDS_S) -> None:
        """Begin to leave. A final reason replaces another one."""
        if self.reason is not None and (self.final or reason not in _FINAL):
            return
        self.reason, self.epoch = reason, epoch
        self._at_s = now + min(within_s, LAST_WORDS_S)
        self._unsaid = reason in ("silence", *_FINAL)

    def stay(self) -> bool:
        """Go on with the call, since the caller speaks; return whether that changes anything."""
        if self.reason is None or self.final:
            return False
        self.reason, self._unsaid = None, False
        return True

    def step(self, now: float, *, quiet: bool, wordless: bool) -> Step:
        """Return what to do now. `quiet`: nothing is said or expected; `wordless`: the model left without a word."""
        if self.reason is None:
            return "wait"
        if quiet and (self._unsaid or (wordless and self.reason == "hang_up")):
            self._unsaid, self.epoch, self._quiet_s = False, -1, None
            self._at_s = max(self._at_s, now + LAST_WORDS_S) if self.reason != "shutdown" else self._at_s
            return "say_good_bye"
        self._quiet_s = (now if self._quiet_s is None else self._quiet_s) if quiet else None
        faded = self._quiet_s is not None and now >= self._quiet_s + LAST_SOUND_S
        return "end" if faded or now >= self._at_s else "wait"

"""Collects the keys that a caller presses into numbers. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass

MOST_KEYS = 64
"""Keys of one number: a longer one is cut into several."""


class Keypad:
    """The keys of one call. A number ends with the end key, or with a pause."""

    def __init__(self, pause_s: float, end_key: str) -> None:
        self._pause_s = pause_s
        self._end_key = end_key
        self._keys = ""
        self._due_s = 0.0

    def press(self, key: str, now: float) -> str:
        """Add a key; return the number if it ends here, else ""."""
        if key == self._end_key and self._keys:
            return self._take()
        self._keys += key
        self._due_s = now + self._pause_s
        return self._take() if len(self._keys) >= MOST_KEYS or key == self._end_key else ""

    def wait(self, now: float) -> str:
        """Return the number if the pause after it is over, else ""."""
        return self._take() if self._keys and now >= self._due_s else ""

    def due_at(self) -> float | None:
        """Return when the number ends if no key comes, None if there is none."""
        return self._due_s if self._keys else None

    def _take(self) -> str:
        keys, self._keys = self._keys, ""
        return keys


@dataclass(slots=True)
class KeyRequest:
    """A tool that waits for the caller's keys."""

    call_id: str
    cut: bool = False  # the reply that asked for keys was interrupted
    due_s: float | None = None  # the caller presses no key any more; None: not while the reply asks or a number grows

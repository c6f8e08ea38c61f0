"""What can go wrong with model files, as one-line errors a person can act on.

ModelError
├── WeightsError    a file is damaged, hostile, or not a model we can run
└── StoreError      a model cannot be found, fetched or removed
    └── FetchError  an origin of a file cannot serve it; another may
"""

from __future__ import annotations

import os
import re

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


def one_line(text: str, limit: int = 300) -> str:
    """Return `text` on one line and not longer than `limit`, fit for a terminal."""
    line = _UNPRINTABLE.sub(" ", text).strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


class ModelError(Exception):
    """A model cannot be used; str() is one line."""


class WeightsError(ModelError):
    """A model file cannot be used: str() is "file: reason"."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        self.reason = one_line(reason)
        super().__init__(f"{one_line(self.path)}: {self.reason}")


class StoreError(ModelError):
    """A model cannot be found, fetched or removed: str() is one line that says what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason, 600))


class FetchError(StoreError):
    """An origin of a file cannot serve it: str() is the reason and, if there is any, what to do about it."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = one_line(reason)
        super().__init__(f"{self.reason}; {advice}" if advice else self.reason)

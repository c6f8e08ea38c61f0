"""The errors of the engine. Each text is one line that a person can act on, and holds nothing that a person said.

ModelError
├── WeightsError        a file is damaged, hostile, or not a model that the engine can run
├── StoreError          a model cannot be found, fetched or removed
│   └── FetchError      one source of a file cannot serve it; another source may
├── ModelConfigError    a model's configuration asks for something that the engine does not do
├── TensorError         a tensor is missing, unknown or misshapen
└── EngineConfigError   the engine's settings cannot work together or on this machine
Refusal                 a request cannot be admitted
"""

from __future__ import annotations

import os
import re
import traceback

from voxlane.engine.api import RefusalCode

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]+")


def one_line(text: str, limit: int = 300) -> str:
    """Return `text` on one line, at most `limit` characters long, safe for a terminal."""
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
    """One source of a file cannot serve it: str() is the reason and, if there is any, advice."""

    def __init__(self, reason: str, advice: str = "") -> None:
        self.reason = one_line(reason)
        super().__init__(f"{self.reason}; {advice}" if advice else self.reason)


class ModelConfigError(ModelError):
    """A model's configuration asks for something that the engine does not do; the text names the key."""


class TensorError(ModelError):
    """A tensor is missing, unknown or misshapen; the text names it."""


class EngineConfigError(ModelError):
    """The settings cannot work together or on this machine; str() is one line that names the setting."""


class Refusal(Exception):
    """A request cannot be admitted; `detail` holds numbers and names, never the sender's text."""

    def __init__(self, code: RefusalCode, detail: str) -> None:
        super().__init__(detail)
        self.code: RefusalCode = code
        self.detail = detail


REQUEST_FAULTS: tuple[type[Exception], ...] = (
    ValueError, RuntimeError, LookupError, ArithmeticError, TypeError, AttributeError, AssertionError, OSError,
    MemoryError, ModelError,
)  # fmt: skip
"""The exceptions of code that handles a client's text or recording. Such an exception ends its request, no other."""

_FRAMES = 3


def describe_fault(fault: Exception) -> str:
    """Return a fault's type and place for the log. Its message is left out, because it may hold a person's words."""
    frames = traceback.extract_tb(fault.__traceback__)[-_FRAMES:]
    places = "<".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"fault={type(fault).__name__} at={places}"

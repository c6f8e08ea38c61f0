"""Reads a model's configuration: typed lookups whose errors name the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping

from voxlane.engine.errors import ModelConfigError


class Settings:
    """A configuration whose values are checked as they are read. null counts as absent, as in Hugging Face's."""

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self._values = values
        self.prefix = prefix  # "rope_scaling." inside that dictionary, so that messages name the whole key

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def names(self) -> list[str]:
        """Return the keys that have a value."""
        return [key for key in self._values if key in self]

    def value(self, key: str) -> object:
        """Return the value as it is, None if there is none."""
        return self._values.get(key)

    def refuse(self, key: str, reason: str) -> ModelConfigError:
        """Return the error that names `key`."""
        return ModelConfigError(f"config key {self.prefix}{key}: {reason}")

    def known_only(
        self, used: Collection[str], unused: Collection[str] = (), only: Mapping[str, tuple[object, ...]] | None = None
    ) -> None:
        """Raise ModelConfigError for an unknown key, or for a key of `only` with a value that is not listed there."""
        for key in self.names():
            if key in used or key in unused:
                continue
            if only is None or key not in only:
                close = difflib.get_close_matches(key, used, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise self.refuse(key, f"unknown, and it may change the result{hint}")
            if self.value(key) not in only[key]:
                wanted = " or ".join(map(repr, only[key])) or "null"
                raise self.refuse(key, f"{self.value(key)!r:.60} is not supported, only {wanted}")

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = 2**31 - 1) -> int:
        """Return an integer within bounds; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.refuse(key, f"{value!r:.60} is not an integer between {minimum} and {maximum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.refuse(key, f"{value!r:.60} is not a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r:.60} is neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the key is required."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, f"{value!r:.60} is not a string")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings; the key is required."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, f"{value!r:.60} is not a list of strings")
        return value

    def integers(self, key: str) -> list[int]:
        """Return a list of integers, none negative; the key is required."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.refuse(key, f"{value!r:.60} is not a list of integers")
        return value

    def section(self, key: str) -> Settings:
        """Return the dictionary under `key`, empty if there is none."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refuse(key, f"{value!r:.60} is not an object")
        return Settings(value, f"{self.prefix}{key}.")

    def _value(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(key, "missing")
        return value

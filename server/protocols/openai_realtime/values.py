"""Checks of single values in OpenAI Realtime's client events: types and ranges."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

NAME_CHARACTERS = 256
"""Length of an id or a name."""

MOST_DEPTH = 64
"""Nesting of an event: a tool's schema is the deepest thing in one, and few go beyond ten."""

MOST_VALUES = 20_000
"""Values in an event: those of 64 tools, 300 each. Two megabytes of small ones would take the event loop a second."""

ARGUMENTS_DEPTH = 32
"""Nesting of a call's arguments: the engine takes a little more."""

METADATA_PAIRS, METADATA_KEY_CHARACTERS, METADATA_CHARACTERS = 16, 64, 512
"""As OpenAI has it."""


class Wrong(Exception):
    """A client event breaks a rule; the text holds our own words and numbers only."""

    def __init__(self, param: str, rule: str, code: str = "invalid_value") -> None:
        super().__init__(f"{param} {rule}." if param else f"{rule}.")
        self.code = code
        self.param = param or None


def parse(message: str) -> dict[str, Any]:
    """Return an event as a JSON object; refuse what the json module lets through: NaN, infinity, half characters."""
    # Counted before parsing. Marks inside strings count too; audio is base64 and has none.
    if message.count(",") + message.count("[") + message.count("{") > MOST_VALUES:
        raise Wrong("", f"An event has at most {MOST_VALUES} values", "invalid_json")
    try:
        value = json.loads(message, parse_constant=_no_constant, parse_float=_finite)
        # Half a surrogate pair survives json.loads and would break every encoder after us.
        if "\\u" in message:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeEncodeError are ValueErrors
        raise Wrong("", "The event is not JSON, or over its limits", "invalid_json") from error
    if not isinstance(value, dict):
        raise Wrong("", "An event is a JSON object", "invalid_json")
    if not _shallow(value, MOST_DEPTH):
        raise Wrong("", f"An event is nested at most {MOST_DEPTH} deep", "invalid_json")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _shallow(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_shallow(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_shallow(item, levels - 1) for item in value)
    return True


def mapping(param: str, value: object, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """Return an object, or raise; with `known`, raise for any other key."""
    if not isinstance(value, dict):
        raise Wrong(param, "must be an object", "invalid_type")
    for key in value if known is not None else ():
        if known is not None and key not in known:
            raise Wrong(f"{param}.{key[:64]}" if key.isidentifier() else param, "is not known", "unknown_parameter")
    return value


def listing(param: str, value: object, most: int) -> list[Any]:
    """Return a list of at most `most` entries, or raise."""
    if not isinstance(value, list):
        raise Wrong(param, "must be a list", "invalid_type")
    if len(value) > most:
        raise Wrong(param, f"must have at most {most} entries")
    return value


def text(param: str, value: object, most: int = NAME_CHARACTERS, *, least: int = 0) -> str:
    """Return a string of that length, or raise."""
    if value is None:
        raise Wrong(param, "is missing", "missing_required_parameter")
    if not isinstance(value, str):
        raise Wrong(param, "must be a string", "invalid_type")
    if not least <= len(value) <= most:
        raise Wrong(param, f"must have {least} to {most} characters")
    return value


def object_text(param: str, value: object, most: int) -> str:
    """Return a string that holds a JSON object, or raise; an empty one holds an empty object."""
    given = text(param, value, most)
    try:
        shallow = _shallow(parse(given or "{}"), ARGUMENTS_DEPTH)
    except Wrong as wrong:
        raise Wrong(param, "must be a JSON object") from wrong
    if not shallow:
        raise Wrong(param, f"must be nested at most {ARGUMENTS_DEPTH} deep")
    return given or "{}"


def flag(param: str, value: object) -> bool:
    """Return true or false, or raise."""
    if not isinstance(value, bool):
        raise Wrong(param, "must be true or false", "invalid_type")
    return value


def choice(param: str, value: object, choices: Collection[str]) -> Any:
    """Return one of the choices, or raise."""
    if not isinstance(value, str) or value not in choices:
        raise Wrong(param, f"must be one of {', '.join(sorted(choices))}")
    return value


def number(param: str, value: object, least: float, most: float) -> float:
    """Return a number of that range, or raise."""
    if value is None:
        raise Wrong(param, "is missing", "missing_required_parameter")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(param, "must be a number", "invalid_type")
    if not least <= value <= most:
        raise Wrong(param, f"must be from {least:g} to {most:g}")
    return value


def whole(param: str, value: object, least: int, most: int) -> int:
    """Return a whole number of that range, or raise; some clients write 300 as 300.0."""
    given = number(param, value, least, most)
    if given != int(given):
        raise Wrong(param, "must be a whole number", "invalid_type")
    return int(given)


def sound(param: str, value: object) -> bytes:
    """Return the bytes of a base64 string, or raise."""
    if value is None:
        raise Wrong(param, "is missing", "missing_required_parameter")
    if not isinstance(value, str):
        raise Wrong(param, "must be a string", "invalid_type")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Wrong(param, "must be base64") from error


def metadata(param: str, value: object) -> dict[str, str] | None:
    """Return a response's metadata, or raise."""
    if value is None:
        return None
    pairs = mapping(param, value)
    if len(pairs) > METADATA_PAIRS:
        raise Wrong(param, f"must have at most {METADATA_PAIRS} pairs")
    return {
        text(param, key, METADATA_KEY_CHARACTERS): text(param, worth, METADATA_CHARACTERS)
        for key, worth in pairs.items()
    }

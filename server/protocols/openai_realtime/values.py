"""OpenAI Realtime's client events as JSON, the values in them, and the errors about them."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Annotated, Any, NoReturn, TypeVar, overload

from msgspec import Meta

from voxlane.server.validation import InvalidValue, checked

T = TypeVar("T")

MOST_DEPTH = 64
"""Nesting of an event: a tool's schema is the deepest thing in one, and few go beyond ten."""

MOST_VALUES = 20_000
"""Values in an event: those of 64 tools, 300 each. Two megabytes of small ones would take the event loop a second."""

ARGUMENTS_DEPTH = 32
"""Nesting of a call's arguments: the engine takes a little more."""

Name = Annotated[str, Meta(max_length=256)]
ItemName = Annotated[str, Meta(min_length=1, max_length=256)]
FunctionName = Annotated[str, Meta(min_length=1, max_length=64)]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(
        max_length=16,
        extra={"rule": "must be an object of up to 16 entries: names of up to 64 characters, strings of up to 512"},
    ),
]
"""As OpenAI has it."""

_CODES = {
    "value": "invalid_value",
    "type": "invalid_type",
    "missing": "missing_required_parameter",
    "unknown": "unknown_parameter",
    "unsupported": "unsupported_parameter",
}


class Wrong(Exception):
    """A client event breaks a rule; of the event, the text holds unknown keys only, quoted."""

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


@overload
def read(kind: type[T], value: object, param: str) -> T: ...


@overload
def read(kind: object, value: object, param: str) -> Any: ...  # an annotated type


def read(kind: Any, value: object, param: str) -> Any:
    """Return a value as a `kind`, or raise."""
    try:
        return checked(kind, value, at=param)
    except InvalidValue as error:
        rule = f"is missing: it {error.rule}" if error.kind == "missing" else error.rule
        raise Wrong(error.path, rule, _CODES[error.kind]) from error


def object_text(param: str, value: str) -> str:
    """Return a string that holds a JSON object, or raise; an empty one holds an empty object."""
    given = value or "{}"
    try:
        shallow = _shallow(parse(given), ARGUMENTS_DEPTH)
    except Wrong as wrong:
        raise Wrong(param, "must be a JSON object") from wrong
    if not shallow:
        raise Wrong(param, f"must be nested at most {ARGUMENTS_DEPTH} deep")
    return given


def sound(param: str, value: str) -> bytes:
    """Return the bytes of a base64 string, or raise."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Wrong(param, "must be base64") from error

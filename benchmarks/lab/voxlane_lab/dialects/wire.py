"""How both sides of a dialect read and write messages; what nobody can understand raises NotUnderstood. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

import msgpack
import msgspec

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.values import Message

T = TypeVar("T")


class NotUnderstood(ValueError):
    """The other side sent what cannot be understood. The text says what it is, in our words alone."""


def json_body(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object."""
    if isinstance(message, bytes):
        raise NotUnderstood("a binary message where this dialect has only text")
    try:
        value = msgspec.json.decode(message)
    except (ValueError, RecursionError):  # errors of msgspec and of Unicode are ValueErrors
        raise NotUnderstood("a text that is not JSON") from None
    if not isinstance(value, dict):
        raise NotUnderstood("JSON that is not an object")
    return value


def json_text(value: Mapping[str, Any]) -> str:
    """Return a JSON object as text."""
    return msgspec.json.encode(value).decode()


def native_message(message: Message) -> list[Any]:
    """Return a message of the native dialect, whose first value is its name."""
    if isinstance(message, str):
        raise NotUnderstood("a text where this dialect has only binary messages")
    try:
        parts = msgpack.unpackb(message)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        raise NotUnderstood("a message that is not msgpack") from None
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise NotUnderstood("a message that is not an array that begins with its name")
    return parts


def base64_bytes(payload: object) -> bytes:
    """Return the bytes of a base64 text."""
    if not isinstance(payload, str):
        raise NotUnderstood("sound that is not a text in base64")
    try:
        data = base64.b64decode(payload, validate=True)
    except ValueError:  # binascii.Error is a ValueError
        raise NotUnderstood("sound that is not base64") from None
    if len(payload) % 4:  # a padding too many is not seen above
        raise NotUnderstood("sound that is not base64")
    return data


def base64_text(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode()


def fields_as(kind: type[T], value: object, message: str) -> T:
    """Return a message's fields as a struct; `message` is the type of the message, a word of ours."""
    try:
        return checked(kind, value, text=True)
    except WrongShape as wrong:
        raise NotUnderstood(f"a broken {message}: {wrong}") from None

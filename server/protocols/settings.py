"""A conversation's configuration as a map of plain values, and back, with every value checked.

Voices and tool schemas are checked elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from voxlane.engine.api import Tool
from voxlane.server import limits
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols.dialect import BadMessage

TEXT_CHARACTERS = 16_000
"""A typed turn, or the instructions: a sixth of what the engine takes, and longer than any spoken turn."""

TOOLS, TOOL_CHARACTERS = 64, 16_000
PHRASES, PHRASE_CHARACTERS = 64, 100

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_RANGES: Mapping[str, tuple[float, float]] = {
    "speed": limits.SPEEDS,
    "temperature": limits.TEMPERATURES,
    "max_tokens": (1, 4096),
    "seed": (0, limits.LARGEST_SEED),
    "buffer_s": (0.1, 10.0),
    "turns.max_wait_s": (0.1, 30.0),
    "turns.max_turn_s": (1.0, 600.0),
    "turns.pre_roll_s": (0.0, 2.0),
    "turns.threshold": (0.0, 1.0),
    "turns.idle_s": (1.0, 600.0),
}
"""Least and most of every number that is not a wait of up to _LONGEST_WAIT_S."""

_LONGEST_WAIT_S = 10.0

_LENGTHS: Mapping[str, int] = {
    "instructions": TEXT_CHARACTERS,
    "greeting": 2000,
    "voice": 256,
    "voice_instructions": limits.INSTRUCTION_CHARACTERS,
}
_USUAL_LENGTH = 64


def configured(base: SessionConfig, values: object) -> SessionConfig:
    """Return `base` with the given values; raise BadMessage for one that is not allowed."""
    merged: SessionConfig = _merged("", base, values)
    if merged.turns.max_wait_s < merged.turns.min_wait_s:
        raise BadMessage("turns.max_wait_s is below turns.min_wait_s")
    names = [tool.name for tool in merged.tools]
    if len(set(names)) != len(names):
        raise BadMessage("tools: two have the same name")
    if merged.tool_choice not in ("auto", "none", "required", *names):
        raise BadMessage("tool_choice: auto, none, required or the name of a tool")
    return merged


def as_map(config: Any) -> dict[str, object]:
    """Return the configuration as plain values, complete."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple):
            value = [as_map(item) if dataclasses.is_dataclass(item) else item for item in value]
        elif dataclasses.is_dataclass(value):
            value = as_map(value)
        values[field.name] = value
    return values


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _merged(prefix: str, base: Any, values: object) -> Any:
    if not isinstance(values, dict):
        raise BadMessage(f"{prefix.rstrip('.') or 'config'}: not a map")
    hints = _hints(base.__class__)
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise BadMessage(f"{prefix or 'config.'}…: unknown key; known are {', '.join(hints)}")
        changes[name] = _value(prefix + name, hints[name], getattr(base, name), value)
    return dataclasses.replace(base, **changes)


def _value(key: str, hint: Any, before: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(before):
        return _merged(f"{key}.", before, value)
    if key == "tools":
        return _tools(value)
    if key == "barge_in.stop_phrases":
        return value if value is None else _phrases(value)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if not isinstance(value, str) or value not in choices:
            raise BadMessage(f"{key}: one of {', '.join(choices)}")
        return value
    if value is None and type(None) in typing.get_args(hint):
        return None
    if hint is str:
        return text(key, value, _LENGTHS.get(key, _USUAL_LENGTH))
    if hint is bool:
        if not isinstance(value, bool):
            raise BadMessage(f"{key}: true or false")
        return value
    least, most = (0.0, _LONGEST_WAIT_S) if key.endswith("_s") and key not in _RANGES else _RANGES[key]
    return number(key, value, least, most, whole=float not in (hint, *typing.get_args(hint)))


def number(key: str, value: object, least: float, most: float, *, whole: bool = True) -> Any:
    """Return a number in range, or raise BadMessage."""
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise BadMessage(f"{key}: not a {'whole ' if whole else ''}number")
    if not (math.isfinite(value) and least <= value <= most):
        raise BadMessage(f"{key}: from {least:g} to {most:.10g}")
    return value if whole else float(value)


def text(key: str, value: object, most: int) -> str:
    """Return a text of at most `most` characters, or raise BadMessage."""
    if not isinstance(value, str):
        raise BadMessage(f"{key}: not a text")
    if len(value) > most:
        raise BadMessage(f"{key}: longer than {most} characters")
    return value


def _phrases(value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple) or len(value) > PHRASES:
        raise BadMessage(f"barge_in.stop_phrases: a list of at most {PHRASES}")
    return tuple(text("barge_in.stop_phrases", item, PHRASE_CHARACTERS) for item in value)


def _tools(value: object) -> tuple[Tool, ...]:
    if not isinstance(value, tuple) or len(value) > TOOLS:
        raise BadMessage(f"tools: a list of at most {TOOLS}")
    return tuple(_tool(item) for item in value)


def _tool(item: object) -> Tool:
    if not isinstance(item, dict) or not item.keys() <= {"name", "description", "parameters"}:
        raise BadMessage("tools: maps of name, description and parameters")
    name = text("tools.name", item.get("name"), 64)
    if not _TOOL_NAME.fullmatch(name):
        raise BadMessage('tools.name: letters, digits, "_", "-" and "."')
    description = text("tools.description", item.get("description", ""), TOOL_CHARACTERS)
    return Tool(name, description, text("tools.parameters", item.get("parameters", ""), TOOL_CHARACTERS))

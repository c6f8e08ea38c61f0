"""A client's changes to a conversation's configuration, checked against the types of its fields.

Voices and tool schemas are checked elsewhere.
"""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from voxlane.engine.api import BadPronunciation, Tool, read_pronunciations
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.validation import InvalidValue, checked

TOOLS, TOOL_CHARACTERS = 64, 16_000

ToolName = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z", extra={"rule": 'must be 1 to 64 letters, digits, "_", "-" and "."'}),
]
ToolText = Annotated[str, Meta(max_length=TOOL_CHARACTERS)]


class _Tool(Struct, forbid_unknown_fields=True):
    name: ToolName
    description: ToolText = ""
    parameters: ToolText = ""


def configured(base: SessionConfig, values: object, at: str = "config") -> SessionConfig:
    """Return `base` with the given values, which the client has put at `at`; raise InvalidValue for a wrong one."""
    merged: SessionConfig = _merged(base, checked(_changes(SessionConfig), values, at=at))
    if merged.turns.max_wait_s < merged.turns.min_wait_s:
        raise InvalidValue(f"{at}.turns.max_wait_s", "is below turns.min_wait_s")
    names = [tool.name for tool in merged.tools]
    if len(set(names)) != len(names):
        raise InvalidValue(f"{at}.tools", "must have different names")
    if merged.tool_choice not in ("auto", "none", "required", *names):
        raise InvalidValue(f"{at}.tool_choice", "must be auto, none, required or the name of a tool")
    try:
        read_pronunciations(merged.pronunciations)
    except BadPronunciation as error:
        raise InvalidValue(f"{at}.pronunciations", str(error)) from error
    return merged


def as_map(value: Any) -> dict[str, object]:
    """Return a dataclass or a struct as plain values, complete."""
    fields = (structs if isinstance(value, Struct) else dataclasses).fields(value)
    return {field.name: _plain(getattr(value, field.name)) for field in fields}


def _plain(value: Any) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return as_map(value) if isinstance(value, Struct) or dataclasses.is_dataclass(value) else value


@cache
def _changes(kind: type) -> type[Struct]:
    """Return the struct of what may be changed in a dataclass: any of its fields, and nothing else."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if kind is SessionConfig:
        hints["tools"] = Annotated[tuple[_Tool, ...], Meta(max_length=TOOLS)]
    for name, hint in hints.items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            hints[name] = _changes(hint)
    fields = [(name, hint | UnsetType, UNSET) for name, hint in hints.items()]
    return defstruct(kind.__name__, fields, forbid_unknown_fields=True)


def _merged(base: Any, given: Struct) -> Any:
    changes = {name: value for name, value in structs.asdict(given).items() if value is not UNSET}
    for name, value in changes.items():
        if isinstance(value, Struct):
            changes[name] = _merged(getattr(base, name), value)
        elif name == "tools":
            changes[name] = tuple(Tool(*structs.astuple(tool)) for tool in value)
    return dataclasses.replace(base, **changes)

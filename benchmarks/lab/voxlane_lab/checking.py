"""Values from outside, checked against msgspec types. An error names the place and what is allowed there. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from voxlane_lab.errors import quote

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key in `)?\$([^`]*)`+\Z")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`\Z", re.DOTALL)


class WrongShape(ValueError):
    """A value does not fit its type. The text holds nothing of the sender's but an unknown key, quoted."""


def checked(kind: type[T], value: object, *, text: bool = False) -> T:
    """Return `value` as a `kind`, or raise WrongShape. With `text`, numbers and flags may come as text."""
    try:
        return msgspec.convert(value, kind, strict=not text)
    except msgspec.ValidationError as error:
        wrong = _explained(kind, str(error))
    raise WrongShape(wrong)


def _explained(kind: type, message: str) -> str:
    """Return msgspec's message in words that say what is allowed."""
    place = _PLACE.search(message)
    here, path = inspect.type_info(kind), ""
    for name, index in _STEP.findall(place[1] if place else ""):
        here, step = _inside(here, name, index)
        path += step
    path = path.lstrip(".")
    if wrong := _FIELD.match(message[: place.start()] if place else message):
        fields = {field.encode_name: field for one in _options(here) for field in getattr(one, "fields", ())}
        path = f"{path}.{quote(wrong[2])}".lstrip(".")
        if wrong[1] == "contains unknown":
            return f"{path} is not known; known are {', '.join(fields)}"
        here = fields[wrong[2]].type
    return f"{path} must be {_rule(here)}".lstrip()


def _inside(kind: inspect.Type, name: str, index: str) -> tuple[inspect.Type, str]:
    """Return the type of a field or an item, and how the step to it is shown."""
    for one in _options(kind):
        match one:
            case inspect.StructType() | inspect.DataclassType():
                for number, field in enumerate(one.fields):
                    if name == field.encode_name or index == str(number):
                        return field.type, f".{field.encode_name}"
            case inspect.ListType() | inspect.VarTupleType() if index:
                return one.item_type, f"[{index}]"
            case inspect.TupleType() if index:
                return one.item_types[int(index)], f"[{index}]"
            case inspect.DictType():
                return one.value_type, ""
    return kind, ""


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that a value may have, except null."""
    if isinstance(kind, inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _options(one)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _rule(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata) and kind.extra and "rule" in kind.extra:
        return str(kind.extra["rule"])
    return " or ".join(map(_noun, _options(kind)))


def _noun(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(kind)}"
        case inspect.FloatType():
            return f"a number{_range(kind)}"
        case inspect.StrType():
            return f"a string{_length(kind, 'characters')}"
        case inspect.LiteralType():
            return f"{'one of ' * (len(kind.values) > 1)}{', '.join(map(str, kind.values))}"
        case inspect.ListType() | inspect.VarTupleType():
            structs = any(isinstance(one, inspect.StructType) for one in _options(kind.item_type))
            return f"a list{_length(kind, 'objects' if structs else 'items')}"
        case inspect.TupleType():
            return f"a list of {len(kind.item_types)} items"
        case inspect.StructType() | inspect.DataclassType():
            needed = [field.encode_name for field in kind.fields if field.required]
            return f"an object with {' and '.join(needed)}" if needed else "an object"
    return "an object" if isinstance(kind, inspect.DictType) else "there"


def _range(kind: Any) -> str:
    return "" if kind.ge is None or kind.le is None else f" from {kind.ge:.15g} to {kind.le:.15g}"


def _length(kind: Any, noun: str) -> str:
    return "" if kind.max_length is None else f" of {kind.min_length or 0} to {kind.max_length} {noun}"

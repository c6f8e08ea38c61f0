"""Values from outside, checked against msgspec types. An error names the place and says what is allowed there. Pure.

A type is the one description of a value: msgspec checks it and writes its JSON schema, `rule_of` puts it into words.
Two keys of `Meta(extra=…)` change the words: `rule` replaces them, `unsupported` says why nothing else is done here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from voxlane.server.log import quote

T = TypeVar("T")

_PLACE = re.compile(r" - at `(?:key` in `)?\$([^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `([^`]*)`\Z")
_GOT = re.compile(r"Expected `[^`]*`, got `([^`]*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)

Mistake = Literal["value", "type", "missing", "unknown", "unsupported"]
"""Why a value is refused; "missing": a text or a number is absent or null."""


class InvalidValue(Exception):
    """A value does not fit its type. The text holds nothing of the sender's but an unknown key, through quote()."""

    def __init__(self, path: str, rule: str, kind: Mistake = "value") -> None:
        super().__init__(f"{path} {rule}".strip())
        self.path = path  # as messages[3].role; "": the whole value
        self.rule = rule
        self.kind = kind


def checked(kind: type[T], value: object, *, at: str = "", text: bool = False) -> T:
    """Return `value` as a `kind`, or raise InvalidValue, whose path begins with `at`.

    With `text`, numbers and flags may come as text.
    """
    try:
        return msgspec.convert(value, kind, strict=not text)
    except msgspec.ValidationError as error:
        # msgspec's own message may hold the sender's text: it is no part of ours.
        wrong = _explained(kind, str(error))
    raise InvalidValue(_joined(at, wrong.path), wrong.rule, wrong.kind)


@cache
def fields_of(kind: type) -> dict[str, inspect.Field]:
    """Return the fields of a struct or a dataclass, by the names outside."""
    info: Any = _info(kind)
    return {field.encode_name: field for field in info.fields}


def description_of(kind: inspect.Type) -> str:
    """Return what a type is for, as its Meta says."""
    return str((kind.extra_json_schema or {}).get("description", "")) if isinstance(kind, inspect.Metadata) else ""


def is_list(field: inspect.Field) -> bool:
    """Return whether a field holds a list."""
    return any(isinstance(one, inspect.ListType | inspect.VarTupleType) for one in _options(field.type))


def rule_of(kind: inspect.Type) -> str:
    """Return what a type allows, as the rest of a sentence that begins with a name."""
    extra = _extra(kind)
    if "rule" in extra:
        return str(extra["rule"])
    return f"must be {' or '.join(_nouns(kind))}"


@cache
def _info(kind: type) -> inspect.Type:
    """Return what msgspec knows of a type; it takes milliseconds to find out."""
    return inspect.type_info(kind)


def _explained(kind: type, message: str) -> InvalidValue:
    at = _PLACE.search(message)
    what = message[: at.start()] if at else message
    path, here, inner = _named_place(_info(kind), at[1] if at else "")
    if (missing := _MISSING.match(what)) is not None:
        inside = _field(here, missing[1])
        if inside is None:  # the field that tells structs apart
            return InvalidValue(path, rule_of(here))
        return InvalidValue(_joined(path, missing[1]), rule_of(inside.type), _mistake(inside.type, absent=True))
    if (unknown := _UNKNOWN.match(what)) is not None:
        known = ", ".join(field.encode_name for field in _fields(here))
        return InvalidValue(_joined(path, quote(unknown[1])), f"is not known; known are {known}", "unknown")
    if (unsupported := _extra(here).get("unsupported")) is not None:
        return InvalidValue(path, unsupported, "unsupported")
    if what.endswith("multiple of 1.0"):
        return InvalidValue(path, rule_of(here), "type")
    got = _GOT.match(what)
    absent = got is not None and got[1] == "null" and inner is here
    return InvalidValue(path, rule_of(here), _mistake(inner, absent=absent) if got else "value")


def _mistake(kind: inspect.Type, *, absent: bool) -> Mistake:
    """Return what is wrong with a value of another type."""
    options = list(_options(kind))
    if all(isinstance(one, inspect.LiteralType) for one in options):
        return "value"
    plain = all(isinstance(one, inspect.StrType | inspect.IntType | inspect.FloatType) for one in options)
    return "missing" if plain and absent else "type"


def _named_place(here: inspect.Type, path: str) -> tuple[str, inspect.Type, inspect.Type]:
    """Return the last field or object on a path of msgspec's, its type, and the type at the path's end.

    An item of a plain list goes by the list's name.
    """
    walked, name, named = "", "", here
    while path and (step := _step(here, path)) is not None:
        taken, shown, here = step
        walked, path = walked + shown, path[len(taken) :]
        if shown.startswith(".") or any(isinstance(one, inspect.StructType) for one in _options(here)):
            name, named = walked, here
    return name.lstrip("."), named, here


def _step(here: inspect.Type, path: str) -> tuple[str, str, inspect.Type] | None:
    """Return the first step of a path of msgspec's, how it is shown, and the type there."""
    if path.startswith("."):
        found = _field(here, path[1:])
        return None if found is None else (f".{found.encode_name}", f".{found.encode_name}", found.type)
    step = path[: path.index("]") + 1]
    for one in _options(here):
        match one:
            case inspect.ListType() | inspect.VarTupleType():
                return step, step, one.item_type
            case inspect.DictType():
                return step, step, one.value_type
            case inspect.StructType(array_like=True):
                inside = one.fields[int(step[1:-1])]
                return step, f".{inside.encode_name}", inside.type
    return None


def _field(kind: inspect.Type, path: str) -> inspect.Field | None:
    """Return the field with which a path begins; the longest name wins."""
    fields = [field for field in _fields(kind) if _begins(path, field.encode_name)]
    return max(fields, key=lambda field: len(field.encode_name), default=None)


def _fields(kind: inspect.Type) -> list[inspect.Field]:
    structs = [one for one in _options(kind) if isinstance(one, inspect.StructType | inspect.DataclassType)]
    return [field for one in structs for field in one.fields]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _begins(path: str, name: str) -> bool:
    return path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "[")


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that a value may have, except null."""
    if isinstance(kind, inspect.Metadata):
        yield from _options(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _options(one)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _extra(kind: inspect.Type) -> dict[str, Any]:
    if isinstance(kind, inspect.Metadata):
        return (kind.extra or {}) | _extra(kind.type)
    if isinstance(kind, inspect.UnionType):
        return {key: value for one in kind.types for key, value in _extra(one).items()}
    return {}


def _nouns(kind: inspect.Type) -> list[str]:
    options = list(_options(kind))
    tagged = [one for one in options if isinstance(one, inspect.StructType) and one.tag is not None]
    nouns = [_noun(one) for one in options if one not in tagged]
    if tagged:
        nouns.append(f"an object whose {tagged[0].tag_field} is {' or '.join(str(one.tag) for one in tagged)}")
    return nouns


def _noun(kind: inspect.Type) -> str:
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_range(kind.ge, kind.le)}"
        case inspect.FloatType(multiple_of=1):
            return f"a whole number{_range(kind.ge, kind.le)}"
        case inspect.FloatType():
            return f"a number{_range(kind.ge, kind.le)}"
        case inspect.StrType():
            return f"a string{_length(kind.min_length, kind.max_length, 'characters')}"
        case inspect.LiteralType():
            return f"{'one of ' if len(kind.values) > 1 else ''}{', '.join(map(str, kind.values))}"
        case inspect.ListType() | inspect.VarTupleType():
            items = _plural(kind.item_type)
            return f"a list{_length(kind.min_length, kind.max_length, items) or f' of {items}'}"
        case inspect.DictType():
            return f"an object{_length(kind.min_length, kind.max_length, 'entries')}"
        case inspect.StructType(array_like=True):
            return f"a list of {' and '.join(field.encode_name for field in kind.fields)}"
        case inspect.StructType() | inspect.DataclassType():
            needed = [field.encode_name for field in kind.fields if field.required]
            return f"an object with {' and '.join(needed)}" if needed else "an object"
    return "there"


def _plural(kind: inspect.Type) -> str:
    for one in _options(kind):
        match one:
            case inspect.StrType():
                return f"strings{_length(one.min_length, one.max_length, 'characters')}"
            case inspect.LiteralType():
                return " or ".join(map(str, one.values))
    return "objects"


def _range(least: float | None, most: float | None) -> str:
    return "" if least is None or most is None else f" from {_figure(least)} to {_figure(most)}"


def _figure(number: float) -> str:
    return f"{number:.15g}" if isinstance(number, float) else str(number)


def _length(least: int | None, most: int | None, noun: str) -> str:
    if most is None:
        return ""
    return f" of {least} to {most} {noun}" if least else f" of up to {most} {noun}"

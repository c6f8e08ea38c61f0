"""Frozen dataclasses to plain lists and back, checked by their type hints. The messages are defined in messages.py."""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Literal


class UndecodableMessage(ValueError):
    """The bytes are not a message of this set."""


def flatten(value: Any) -> tuple[Any, ...]:
    """Return a dataclass's fields in order; msgpack calls this again for each dataclass among them."""
    cls = type(value)
    found = _FIELDS.get(cls)
    if found is None:
        names = [field.name for field in dataclasses.fields(cls)]  # raises TypeError for another class
        found = _FIELDS[cls] = operator.attrgetter(*names) if len(names) > 1 else _few(names)
    flat: tuple[Any, ...] = found(value)
    return flat


_FIELDS: dict[type, Callable[[Any], Any]] = {}  # kept, because a step of 256 rows needs it 256 times


def _few(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(getattr(value, name) for name in names)


def build(cls: Any, values: Any) -> Any:
    """Return a `cls` from its fields in order, or raise UndecodableMessage."""
    builders = _builders(cls)
    if not isinstance(values, tuple) or len(values) != len(builders):
        raise UndecodableMessage(f"{cls.__name__} has {len(builders)} fields")
    # Thousands of messages arrive in a second: types of plain fields that were right once are not checked again.
    lean = _LEAN[cls]
    if lean is None or (lean.lists is not None and lean.lists(values) != lean.empty):
        return cls(*[make(value) for make, value in zip(builders, values, strict=True)])
    kinds = tuple(map(type, values))
    if kinds not in lean.known:
        for make, value in zip(builders, values, strict=True):
            make(value)
        lean.known.add(kinds)
    return cls(*values)


@dataclasses.dataclass(frozen=True, slots=True)
class _Lean:
    """How to check a class that has only plain fields, and lists that are mostly empty."""

    lists: operator.itemgetter[Any] | None  # takes the lists from the values
    empty: Any  # its result if all lists are empty
    known: set[tuple[type, ...]] = dataclasses.field(default_factory=set)  # the types that have passed the check


_BUILDERS: dict[Any, tuple[Any, ...]] = {}
_LEAN: dict[Any, _Lean | None] = {}


def _builders(cls: Any) -> tuple[Any, ...]:
    if cls not in _BUILDERS:
        hints = typing.get_type_hints(cls)
        named = [(hints[field.name], field.name) for field in dataclasses.fields(cls)]
        lists = tuple(place for place, (hint, _) in enumerate(named) if _is_list(hint))
        lean = all(_is_plain(hint) for place, (hint, _) in enumerate(named) if place not in lists)
        picked = operator.itemgetter(*lists) if lists else None
        _LEAN[cls] = _Lean(picked, picked(((),) * len(named)) if picked else None) if lean else None
        _BUILDERS[cls] = tuple(_builder(hint, name) for hint, name in named)
    return _BUILDERS[cls]


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (Ellipsis,)


def _is_plain(hint: Any) -> bool:
    """Return whether checking a value's type is enough."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    return all(member in (str, bytes, int, float, bool, types.NoneType) for member in members)


def _builder(hint: Any, name: str) -> Any:
    """Return a function that turns a plain msgpack value into a `hint`, or raises UndecodableMessage."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return lambda value: build(hint, value)
    if origin is tuple:
        return _tuple_builder(arguments, name)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return lambda value: _enum(hint, value, name)
    allowed = _allowed(hint, origin, arguments)

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise UndecodableMessage(f"{name}: {type(value).__name__} is not allowed")
        return value

    if origin is Literal:
        return lambda value: _literal(arguments, value, name)
    return check


def _allowed(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> set[type]:
    members = arguments if origin in (types.UnionType, typing.Union) else (hint,)
    allowed = set(members)
    if float in allowed:
        allowed.add(int)
    return allowed


def _tuple_builder(arguments: tuple[Any, ...], name: str) -> Any:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        make = _builder(arguments[0], name)

        def many(value: Any) -> Any:
            if not isinstance(value, tuple):
                raise UndecodableMessage(f"{name}: not a list")
            return tuple(make(item) for item in value)

        return many
    makers = [_builder(argument, name) for argument in arguments]

    def fixed(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(makers):
            raise UndecodableMessage(f"{name}: not a list of {len(makers)}")
        return tuple(make(item) for make, item in zip(makers, value, strict=True))

    return fixed


def _enum(cls: type[IntEnum], value: Any, name: str) -> IntEnum:
    try:
        return cls(value)
    except ValueError as error:
        raise UndecodableMessage(f"{name}: {value!r} is not a {cls.__name__}") from error


def _literal(choices: tuple[Any, ...], value: Any, name: str) -> Any:
    if value not in choices:
        raise UndecodableMessage(f"{name}: not one of {', '.join(map(str, choices))}")
    return value

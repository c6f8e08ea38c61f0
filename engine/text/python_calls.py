"""Calls written as Python, as LFM2 writes them: [get_weather(city="Paris"), hang_up()]. Pure; nothing is run.

A call has keyword arguments whose values are literals. Anything else is no call.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CHARACTERS = 1 << 16
"""A longer text is no call: the compiler would take long over it."""

_NAME = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*\(")
_NEXT = re.compile(r"\s*,|\s*\Z")
_ARGUMENT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)\s*=")
_CLOSED = re.compile(r"\s*\)")
_WORDS = {"true": True, "false": False, "null": None}  # JSON's names, which models write as well


class NotCallsError(ValueError):
    """A text is no list of calls."""


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the arguments of each call in a list, or raise NotCallsError."""
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise NotCallsError("the text is too long")
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].rstrip()
    try:
        with warnings.catch_warnings():  # a warning about a string would show a character of it
            warnings.simplefilter("ignore")
            return list(_calls(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotCallsError("the text is no list of calls") from error


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as the model writes it."""
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _calls(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    place = 0
    while place < len(text):
        if (found := _NAME.match(text, place)) is None:
            raise NotCallsError("a call begins with a name")
        arguments, place = _arguments(text, found.end())
        yield found[1], arguments
        if (after := _NEXT.match(text, place)) is None:
            raise NotCallsError("a comma separates calls")
        place = after.end()


def _arguments(text: str, place: int) -> tuple[dict[str, Any], int]:
    """Return the arguments that begin at `place`, behind an opening bracket, and the place behind the closing one.

    Each value is parsed by itself: a name may be a word that Python keeps for itself, like "from".
    """
    arguments: dict[str, Any] = {}
    while (closed := _CLOSED.match(text, place)) is None:
        if (named := _ARGUMENT.match(text, place)) is None or named[1] in arguments:
            raise NotCallsError("an argument has a name of its own")
        end = _end_of_value(text, named.end())
        arguments[named[1]] = _value(ast.parse(_one_line(text[named.end() : end]).strip(), mode="eval").body)
        place = end + (text[end] == ",")
    return arguments, closed.end()


def _end_of_value(text: str, place: int) -> int:
    """Return where a value ends: at a comma or a closing bracket, unless that is inside a string or brackets."""
    depth, quote = 0, ""
    while place < len(text):
        character = text[place]
        if quote:
            if character == "\\":
                place += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif depth == 0 and character in ",)":
            return place
        else:
            depth += (character in "([{") - (character in ")]}")
        place += 1
    raise NotCallsError("a bracket is not closed")


def _one_line(text: str) -> str:
    """Return `text` with the line ends inside its strings written as escapes."""
    return re.sub(
        r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'",
        lambda found: found[0].replace("\r", "\\r").replace("\n", "\\n"),
        text,
        flags=re.DOTALL,
    )


def _value(node: ast.expr) -> Any:
    """Return the JSON value of a literal."""
    match node:
        case ast.Constant(value=None | bool() | int() | str() as value):
            return value
        case ast.Constant(value=float() as number):
            return max(-sys.float_info.max, min(sys.float_info.max, number))
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            if not isinstance(number, bool):
                return -_value(node.operand)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise NotCallsError("an argument is a literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NotCallsError("a key is a string")


def _literal(value: Any) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case dict():
            return "{" + ", ".join(f"{_literal(key)}: {_literal(part)}" for key, part in value.items()) + "}"
    return repr(value)

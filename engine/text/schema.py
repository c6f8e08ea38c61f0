"""JSON schemas from clients: checked for size and depth, and adapted for a decoder. Pure; it knows no grammar or token.

The grammar compiler follows references and nesting by recursion, and a stack overflow would end the process. So both
are limited here. Measured: a chain of 1,000 references fits 64 MiB of stack and not 8 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

MAX_SCHEMA_BYTES = 64 * 1024
"""Of one schema, or of all tools of a request together. No real function has more; it also bounds compile time."""
MAX_DEPTH = 48
"""Nesting of objects and lists in a schema's text. The compiler's own parser refuses 128."""
MAX_REFERENCES = 256
"""Uses of $ref: each can be one level of recursion."""

MAX_OPTIONAL = 240
"""Optional properties that may come next in one place: each takes four of the 1,000 items of a row of the compiler."""
REFERENCE_HOPS = 4
"""How far properties are counted through references to references."""

# Formats that can be enforced. Others are left out: in the JSON Schema specification they are annotations.
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})

# The text between the parts of an object or a list is fixed, as Python writes it. A small model that may choose the
# white space sometimes writes white space until it reaches its limit.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": False}

_BRANCHES = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties", "$ref", *_BRANCHES)


class SchemaError(ValueError):
    """A schema cannot be used. str() completes a sentence whose subject is the schema, and quotes nothing of it."""


def read(text: str) -> dict[str, Any]:
    """Return the schema in a text, or raise SchemaError."""
    if len(text.encode("utf-8", "replace")) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    schema = json_object(text)
    if sum(1 for _, key, _ in _everything(schema) if key == "$ref") > MAX_REFERENCES:
        raise SchemaError(f"has more than {MAX_REFERENCES} references")
    if _optional(schema) > MAX_OPTIONAL:
        raise SchemaError(f"has more than {MAX_OPTIONAL} optional properties in one place")
    return schema


def json_object(text: str) -> dict[str, Any]:
    """Return the object in a text, or raise SchemaError. Its depth is safe for recursion."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaError("is not JSON") from error
    if not isinstance(value, dict):
        raise SchemaError("is not an object")
    if any(depth > MAX_DEPTH for depth, _, _ in _everything(value)):
        raise SchemaError(f"is nested deeper than {MAX_DEPTH}")
    return value


def steering(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a stricter schema that guides a small model well; its values all satisfy `schema`.

    An object that lists its properties and does not mention others allows no others. White space is fixed. It raises
    SchemaError if a part that is changed here is of a wrong type; the compiler finds the others.
    """
    # An object that is merged from several places stays open, or the places would exclude each other.
    merged = any(key == "allOf" or (key == "properties" and "$ref" in owner) for _, key, owner in _everything(schema))
    return {**_tidied(schema, close=not merged), "x-guidance": _LAYOUT}


def _tidied(schema: Any, *, close: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    result.pop("x-guidance", None)  # the client may not change the compiler's settings
    if not isinstance(result.get("format", ""), str):
        raise SchemaError("has a format that is not a text")
    if "format" in result and result["format"] not in FORMATS:
        del result["format"]
    for key in _NAMED:
        if isinstance(named := result.get(key), dict):
            result[key] = {name: _tidied(part, close=close) for name, part in named.items()}
    for key in _BRANCHES:
        if isinstance(parts := result.get(key), list):
            result[key] = [_tidied(part, close=close) for part in parts]
    for key in ("items", "additionalProperties"):
        result |= {key: _tidied(result[key], close=close)} if key in result else {}
    properties, required = result.get("properties"), result.get("required", [])
    if close and isinstance(properties, dict) and isinstance(required, list) and not any(k in result for k in _OPEN):
        # A property that is required but not declared needs an open object.
        result |= {"additionalProperties": False} if all(name in list(properties) for name in required) else {}
    return result


def _optional(schema: dict[str, Any]) -> int:
    """Return the most optional properties that may come next in one place: of an object and all its alternatives."""

    @cache
    def behind(reference: str, hops: int) -> int:
        target: Any = schema
        for name in reference.removeprefix("#").split("/")[1:]:
            target = target.get(name) if isinstance(target, dict) else None
        return count(target, hops)

    def count(part: Any, hops: int) -> int:
        if not isinstance(part, dict):
            return 0
        properties, required, reference = part.get("properties"), part.get("required"), part.get("$ref")
        named = properties if isinstance(properties, dict) else {}
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        here = len(named.keys() - needed)
        if isinstance(reference, str) and hops:
            here += behind(reference, hops - 1)
        lists = {key: value for key, value in part.items() if isinstance(value, list)}
        for key in ("anyOf", "oneOf", "allOf"):
            here += sum([count(branch, hops) for branch in lists.get(key, ())])
        inside = [*named.values(), *lists.get("prefixItems", ()), part.get("items"), part.get("additionalProperties")]
        return max([here, *[count(inner, hops) for inner in inside]])

    return count(schema, REFERENCE_HOPS)


def _everything(value: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield each item of a JSON value's objects and lists: its depth, and in an object its key and the object."""
    stack = [(value, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, dict):
            for key, part in value.items():
                yield depth, key, value
                stack.append((part, depth + 1))
        elif isinstance(value, list):
            yield depth, "", {}
            stack.extend((part, depth + 1) for part in value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

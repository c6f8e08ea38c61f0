"""JSON schemas as people send them: bounded, and made fit to steer a decoder. Pure; it knows no grammar and no token.

What is checked here is what would be dangerous to hand on: the compiler behind it follows references and nesting by
recursion, and overflowing its stack ends the process. Measured: a chain of 1,000 references fits 64 MiB of stack and
not 8 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_SCHEMA_BYTES = 64 * 1024
"""Of one schema, or of all of a request's tools together. Nobody's function has more; it bounds compile time too."""
MAX_DEPTH = 48
"""Nesting of objects and lists in a schema's text. The compiler's own parser refuses 128."""
MAX_REFERENCES = 256
"""Uses of $ref: each can be one level of recursion."""

# Formats that can be enforced. Others are annotations, as the JSON Schema specification has it, and left out.
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})

# Text between the parts of an object or a list is fixed, as Python writes it: a small model that may choose white
# space sometimes writes nothing else until it is cut.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "coerce_one_of": False}

_BRANCHES = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties", "$ref", *_BRANCHES)


class SchemaError(ValueError):
    """A schema cannot be used; str() ends a sentence that begins with what it is the schema of, and quotes nothing."""


def read(text: str) -> dict[str, Any]:
    """Return the schema in a text, or raise SchemaError."""
    if len(text.encode("utf-8", "replace")) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    schema = json_object(text)
    if sum(1 for _, key, _ in _everything(schema) if key == "$ref") > MAX_REFERENCES:
        raise SchemaError(f"has more than {MAX_REFERENCES} references")
    return schema


def json_object(text: str) -> dict[str, Any]:
    """Return the object in a text, or raise SchemaError: it is not so deep that recursion over it could fail."""
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
    """Return a schema whose values all satisfy `schema`, and that leads a small model well.

    Objects that list their properties and do not mention others get no others, and white space is fixed.
    """
    # What is merged from several places must stay open, or the places would exclude each other.
    merged = any(key == "allOf" or (key == "properties" and "$ref" in owner) for _, key, owner in _everything(schema))
    return {**_tidied(schema, close=not merged), "x-guidance": _LAYOUT}


def _tidied(schema: Any, *, close: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    result.pop("x-guidance", None)  # the compiler's own settings are not the sender's to make
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
        # A property that is required but not declared is one of those others.
        result |= {"additionalProperties": False} if all(name in list(properties) for name in required) else {}
    return result


def _everything(value: Any) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield each part of a JSON value's objects and lists: its depth, and for an object's its key and the object."""
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

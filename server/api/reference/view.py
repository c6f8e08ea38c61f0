"""An OpenAPI document as the page shows it: sections of endpoints, fields in words, curl commands to try. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from voxlane.server.api.endpoint import EVENTS, FORM, JSON, Schema

LINE_CHARACTERS = 64
"""Width of a command: what a page shows without scrolling."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an object."""

    name: str
    kind: str
    note: str  # range and default
    description: str
    required: bool
    inside: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """One kind of answer."""

    kind: str
    description: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class ShownEndpoint:
    """One address and method."""

    anchor: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[Field, ...]
    commands: tuple[tuple[str, str], ...]  # summary and text of each
    answer: str
    contents: tuple[Content, ...]
    errors: tuple[tuple[str, str], ...]  # status and what it may mean


@dataclass(frozen=True, slots=True)
class Section:
    """The endpoints of one tag."""

    name: str
    description: str
    endpoints: tuple[ShownEndpoint, ...]


def sections(document: Schema, origin: str) -> list[Section]:
    """Return the document in the order of its tags; commands go to the server at `origin`."""
    found: dict[str, list[ShownEndpoint]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found[operation["tags"][0]].append(_endpoint(document, origin, path, method, operation))
    return [Section(tag["name"], tag["description"], tuple(found[tag["name"]])) for tag in document["tags"]]


def _endpoint(document: Schema, origin: str, path: str, method: str, operation: Schema) -> ShownEndpoint:
    parameters = tuple(
        _field(document, one["name"], one["schema"], required=one["required"])
        for one in operation.get("parameters", ())
    )
    for content in operation.get("requestBody", {}).get("content", {}).values():
        parameters += _inside(document, content["schema"])
    answer, *others = operation["responses"].items()
    return ShownEndpoint(
        operation["operationId"],
        method.upper(),
        path,
        operation["summary"],
        operation["description"],
        parameters,
        tuple(_commands(document, origin, path, method, operation)),
        answer[1]["description"],
        tuple(_content(document, kind, media) for kind, media in answer[1]["content"].items()),
        tuple((status, one["description"]) for status, one in others),
    )


def _content(document: Schema, kind: str, media: Schema) -> Content:
    schema: Schema = media["x-event-schema"] if "x-event-schema" in media else media["schema"]
    told = "Each event:" if kind == EVENTS else _resolved(document, media["schema"]).get("description", "")
    return Content(kind, told, _inside(document, schema))


# ---- fields in words


def _resolved(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _field(document: Schema, name: str, schema: Schema, *, required: bool) -> Field:
    resolved = _resolved(document, schema)
    told = schema.get("description") or resolved.get("description", "")
    return Field(name, _kind(document, schema), _note(resolved), told, required, _inside(document, schema))


def _inside(document: Schema, schema: Schema) -> tuple[Field, ...]:
    """Return the fields of an object, of a list's objects, or of each object that it may be."""
    schema = _resolved(document, schema)
    if "items" in schema:
        return _inside(document, schema["items"])
    if "anyOf" in schema:
        several = [fields for one in schema["anyOf"] if (fields := _inside(document, one))]
        if len(several) < 2:
            return several[0] if several else ()
        return tuple(Field("or" if index else "either", "", "", "", True, one) for index, one in enumerate(several))
    required = schema.get("required", ())
    properties: Mapping[str, Schema] = schema.get("properties", {})
    return tuple(_field(document, name, one, required=name in required) for name, one in properties.items())


def _kind(document: Schema, schema: Schema) -> str:
    """Return a schema's kind in words."""
    schema = _resolved(document, schema)
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(document, one) for one in schema["anyOf"]))
    if "contentMediaType" in schema:
        return "file"
    kinds = schema.get("type", "anything")
    if isinstance(kinds, str):
        kinds = [kinds]
    if "items" in schema:
        kinds = [f"list of {_kind(document, schema['items'])}" if one == "array" else one for one in kinds]
    return " or ".join(kinds)


def _note(schema: Schema) -> str:
    """Return a schema's range and default in words."""
    notes = [
        _range(schema.get("minimum"), schema.get("maximum"), ""),
        _range(schema.get("minLength"), schema.get("maxLength"), " characters"),
        _range(schema.get("minItems"), schema.get("maxItems"), " items"),
        _range(None, schema.get("maxProperties"), " entries"),
        f"default {json.dumps(schema['default'])}" if "default" in schema else "",
    ]
    return ", ".join(note for note in notes if note)


def _range(least: float | None, most: float | None, unit: str) -> str:
    if most is None:
        return "" if least is None else f"from {least}{unit}"
    # Limits that only keep machines from overflowing tell a reader nothing.
    if least is not None and most >= 1 << 24:
        return f"from {least}{unit}" if least > -(1 << 24) else ""
    return f"up to {most}{unit}" if least is None else f"{least} to {most}{unit}"


# ---- commands


def _commands(document: Schema, origin: str, path: str, method: str, operation: Schema) -> Iterator[tuple[str, str]]:
    """Yield the summary and the command of each example."""
    for parameter in (one for one in operation.get("parameters", ()) if one["in"] == "path"):
        path = path.replace(f"{{{parameter['name']}}}", quote(parameter["example"]))
    key = operation.get("security", document.get("security"))
    head = [f"curl {shlex.quote(origin + path)}", *(['-H "Authorization: Bearer $VOXLANE_API_KEY"'] if key else [])]
    contents = operation.get("requestBody", {}).get("content", {})
    if method != ("post" if contents else "get"):  # what curl does by itself
        head.append(f"-X {method.upper()}")
    if not contents:
        yield "", " \\\n  ".join(head)
    for kind, content in contents.items():
        for example in content["examples"].values():
            yield example["summary"], " \\\n  ".join([*head, *_sent(operation, kind, example["value"])])


def _sent(operation: Schema, kind: str, value: Schema | str) -> Iterator[str]:
    """Yield the options of curl that take an example's answer, and those that send its body."""
    if isinstance(value, str):  # a text of its own kind, in a file
        yield f"-H 'Content-Type: {kind}'"
        yield f"--data-binary @{kind.rpartition('/')[2]}.txt"
        return
    if value.get("stream") or value.get("stream_format") == "sse":
        yield "-N"
    elif any(media.startswith("audio/") for media in next(iter(operation["responses"].values()))["content"]):
        yield f"-o speech.{value['response_format']}"
    if kind == JSON:
        yield "-H 'Content-Type: application/json'"
        yield f"-d {shlex.quote(laid_out(value, 2))}"
        return
    option = "--data-urlencode" if kind == FORM else "-F"
    for name, given in value.items():
        for one in given if isinstance(given, list) else [given]:
            yield f"{option} {shlex.quote(f'{name}={one if isinstance(one, str) else json.dumps(one)}')}"


def laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON as a person writes it: on one line where it fits, a line for each item otherwise."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, dict | list) or indent + len(line) <= LINE_CHARACTERS:
        return line
    inner, outer = "\n" + " " * (indent + 2), "\n" + " " * indent
    if isinstance(value, list):
        return f"[{inner}{f',{inner}'.join(laid_out(item, indent + 2) for item in value)}{outer}]"
    pairs = (f"{json.dumps(key)}: {laid_out(item, indent + 2)}" for key, item in value.items())
    return f"{{{inner}{f',{inner}'.join(pairs)}{outer}}}"

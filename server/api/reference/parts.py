"""Helpers that write JSON schemas and OpenAPI operations as plain objects. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from voxlane.codecs.encode import SpeechFormat
from voxlane.server.config import LimitsConfig
from voxlane.server.errors import (
    Draining,
    EngineLost,
    EngineNotReady,
    Forbidden,
    InternalError,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoRoom,
    Overloaded,
    RequestTimeout,
    TooLarge,
    TooManyConnections,
    Unauthorized,
    UnsupportedParameter,
    VoxlaneError,
)

Schema = dict[str, Any]
Errors = tuple[type[VoxlaneError], ...]

JSON = "application/json"
EVENTS = "text/event-stream"
FORM = "application/x-www-form-urlencoded"

READING: Errors = (InvalidRequest, UnsupportedParameter, RequestTimeout, TooLarge)
"""Errors of a request that has a body."""

WORKING: Errors = (
    Forbidden, ModelNotFound, Overloaded, NoRoom, EngineNotReady, EngineLost, Draining, ModelFailed,
)  # fmt: skip
"""Errors of a request to the engine."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a server that its description depends on."""

    limits: LimitsConfig
    with_key: bool
    model: str  # "": it does not chat
    formats: tuple[SpeechFormat, ...]


# ---- schemas


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def string(description: str = "", least: int | None = None, most: int | None = None) -> Schema:
    """Return the schema of a text; `least` and `most` limit its characters."""
    return _told({"type": "string"} | _present(minLength=least, maxLength=most), description)


def number(description: str, least: float | None = None, most: float | None = None, usual: object = None) -> Schema:
    """Return the schema of a number in that range."""
    return _told({"type": "number"} | _present(minimum=least, maximum=most, default=usual), description)


def whole(description: str, least: int | None = None, most: int | None = None, usual: object = None) -> Schema:
    """Return the schema of a whole number in that range."""
    return number(description, least, most, usual) | {"type": "integer"}


def flag(description: str, *, usual: bool | None = None) -> Schema:
    """Return the schema of true or false."""
    return _told({"type": "boolean"} | _present(default=usual), description)


def choice(description: str, choices: Iterable[str], usual: str | None = None) -> Schema:
    """Return the schema of one of several texts."""
    return _told({"type": "string", "enum": list(choices)} | _present(default=usual), description)


def fixed(value: str) -> Schema:
    """Return the schema of a text that is always the same."""
    return {"type": "string", "const": value}


def binary(description: str = "") -> Schema:
    """Return the schema of a file's bytes."""
    return _told({"type": "string", "contentMediaType": "application/octet-stream"}, description)


def listing(items: Schema, description: str = "", least: int | None = None, most: int | None = None) -> Schema:
    """Return the schema of a list; `least` and `most` limit its items."""
    return _told({"type": "array", "items": items} | _present(minItems=least, maxItems=most), description)


def record(properties: Mapping[str, Schema], optional: Collection[str] = (), description: str = "") -> Schema:
    """Return the schema of an object that we send: everything is there unless it is optional, and more may come."""
    required = [key for key in properties if key not in optional]
    return _told({"type": "object", "properties": dict(properties), "required": required}, description)


def body_schemas(name: str, kind: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schema of a request's body under `name`, and the schemas that it refers to under theirs."""
    _, found = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    whole_body = found.pop(kind.__name__)
    # The description says that null counts as absent: it is not repeated at each parameter.
    whole_body["properties"] = {key: _not_null(schema) for key, schema in whole_body["properties"].items()}
    return {one: _tidy(schema) for one, schema in {name: whole_body, **found}.items()}


def form_schemas(name: str, kind: type[msgspec.Struct], file_field: str, description: str) -> dict[str, Schema]:
    """Return the schemas of a form: that of its fields, with its file, which is required."""
    schemas = body_schemas(name, kind)
    form = schemas[name]
    form["properties"] = {file_field: binary(description), **form["properties"]}
    form["required"] = [file_field, *form.get("required", ())]
    return schemas


def _not_null(schema: Schema) -> Schema:
    """Return the schema of a value without null."""
    if "anyOf" not in schema:
        return schema
    others = [one for one in schema["anyOf"] if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}


def _tidy(schema: Schema) -> Schema:
    """Return one of msgspec's schemas without empty defaults and titles."""
    tidy: Schema = {}
    for key, value in schema.items():
        if key == "title" or (key in ("default", "required") and value in (None, [], {})):
            continue
        if key == "properties":
            value = {name: _tidy(one) for name, one in value.items()}
        elif key == "anyOf":
            value = [_tidy(one) for one in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            value = _tidy(value)
        elif key == "enum" and all(isinstance(one, str) for one in value):
            tidy["type"] = "string"
        tidy[key] = value
    return tidy


def either(description: str, *schemas: Schema) -> Schema:
    """Return the schema of a value that is one of several things."""
    return _told({"anyOf": list(schemas)}, description)


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [kind, "null"]}


def enumerated(names: Iterable[str]) -> str:
    """Return names of parameters as they stand in a sentence."""
    return ", ".join(f"`{one}`" for one in sorted(names))


# ---- operations


def answer(description: str, **content: Schema) -> Schema:
    """Return one answer; `content` maps media types to schemas, see media()."""
    return {"description": description, "content": content}


def media(schema: Schema) -> Schema:
    """Return a kind of content."""
    return {"schema": schema}


def events(schema: str) -> Schema:
    """Return a stream of events as a kind of content, each of that schema."""
    return media(string("Events of the form `data: JSON`.")) | {"x-event-schema": ref(schema)}


def operation(
    identifier: str,
    tag: str,
    summary: str,
    description: str,
    answers: Mapping[str, Schema],
    errors: Errors = (),
    *,
    public: bool = False,
    parameters: Sequence[Schema] = (),
    request: Schema | None = None,
) -> Schema:
    """Return one operation; `answers` are by status, and those of `errors` are added."""
    raised = (*errors, InternalError) if public else (*errors, Unauthorized, TooManyConnections, InternalError)
    return {
        "operationId": identifier,
        "tags": [tag],
        "summary": summary,
        "description": description,
        **({"security": []} if public else {}),
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": request} if request is not None else {}),
        "responses": {**answers, **_error_answers(raised)},
    }


def request_body(kind: str, schema: str, examples: Mapping[str, Schema | str]) -> Schema:
    """Return a request's body; `examples` maps summaries to values."""
    named = {_slug(summary): {"summary": summary, "value": value} for summary, value in examples.items()}
    return {"required": True, "content": {kind: {"schema": ref(schema), "examples": named}}}


def _error_answers(errors: Errors) -> dict[str, Schema]:
    """Return an answer for each status, which tells the codes under it and their texts."""
    by_status: dict[str, list[type[VoxlaneError]]] = {}
    for error in sorted(errors, key=lambda one: one.http_status):
        by_status.setdefault(str(error.http_status), []).append(error)
    return {
        status: answer("\n\n".join(f"`{one.code}` {one.text}" for one in several), **{JSON: media(ref("Error"))})
        for status, several in by_status.items()
    }


def _told(schema: Schema, description: str) -> Schema:
    return schema | ({"description": description} if description else {})


def _present(**values: object) -> Schema:
    return {key: value for key, value in values.items() if value is not None}


def _slug(text: str) -> str:
    return "-".join("".join(one if one.isalnum() else " " for one in text.lower()).split())

"""GET /openapi.json and /: one OpenAPI 3.1 document of every HTTP endpoint, and a short list, from the table of routes.

The tests compare the document with the readers of requests and with real answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.endpoint import (
    EVENTS,
    JSON,
    Address,
    Answer,
    Endpoint,
    Errors,
    Facts,
    RouteTable,
    Schema,
    Sent,
    endpoint,
)
from voxlane.server.api.service import Service, service_of
from voxlane.server.config import VERSION
from voxlane.server.errors import InternalError, TooManyConnections, Unauthorized, VoxlaneError
from voxlane.server.http.reply import ErrorReply, to_json

TAGS = {
    "Chat": "Text in, text out.",
    "Audio": "Speech to text and text to speech.",
    "Conversations": "Spoken ones are held over WebSockets or WebRTC; HTTP hands out keys, and takes offers.",
    "Telephone": "Telephone systems ask here what to do with a call.",
    "Models": "What is served.",
    "Health": "For the machines that look after this one.",
    "Description": "This documentation.",
}

_DESCRIPTION = """A real-time voice service: speech recognition, chat and speech synthesis. Chat and audio speak
OpenAI's protocols, so that programs written for OpenAI need only another address.

{websockets}

Errors have OpenAI's shape and a stable `code`. Answers carry an `x-request-id`, which is also in the server's log. An
answer with `retry-after` is worth another try."""

OpenApiDocument = Annotated[dict[str, Any], Meta(extra_json_schema={"required": ["openapi", "paths"]})]


@endpoint(
    "openapi",
    "Description",
    "This description",
    "OpenAPI 3.1, for programs. Needs no key.",
    {200: Answer("The document.", {JSON: OpenApiDocument})},
)
async def openapi(request: Request) -> Response:
    """Answer GET /openapi.json."""
    # In a thread: it takes a moment the first time.
    text = await asyncio.to_thread(_json, table_of(request), facts_of(service_of(request)))
    return Response(text, media_type=JSON)


def table_of(request: Request) -> RouteTable:
    """Return the table of routes that the application was made with."""
    return cast(RouteTable, request.app.state.table)


def facts_of(service: Service) -> Facts:
    """Return the facts of a server that its description depends on."""
    return Facts(service.config.limits, service.tenants.key_needed, service.chat_model)


def summaries(table: RouteTable) -> dict[str, str]:
    """Return a short summary of each endpoint."""
    found = {
        f"{method.upper()} {_plain(address.path)}": one.summary
        for address in table.addresses
        for method, one in address.endpoints().items()
    }
    return found | {f"WebSocket {one.path}": one.description for one in table.sockets}


@lru_cache(maxsize=4)
def _json(table: RouteTable, facts: Facts) -> bytes:
    return to_json(document(table, facts))


def document(table: RouteTable, facts: Facts) -> Schema:
    """Return the whole document."""
    websockets = "\n\n".join(f"WebSocket `{one.path}`: {one.description}" for one in table.sockets)
    writer = _Writer(facts, [one for address in table.addresses for one in address.endpoints().values()])
    paths: dict[str, Schema] = {}
    for address in table.addresses:
        for method, one in address.endpoints().items():
            paths.setdefault(_plain(address.path), {})[method] = writer.operation(address, one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "voxlane", "version": VERSION, "description": _DESCRIPTION.format(websockets=websockets)},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        **({"security": [{"key": []}]} if facts.with_key else {}),
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The server's API key."}},
            "schemas": writer.schemas(),
        },
    }


class _Derived:
    """The schemas of types, derived all at once: one by one would take ten times as long."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        several = [one for kind in kinds for one in (kind if isinstance(kind, tuple) else (kind,))]
        schemas, self.named = msgspec.json.schema_components(several, ref_template="#/components/schemas/{name}")
        self._found = {id(kind): schema for kind, schema in zip(several, schemas, strict=True)}

    def schema(self, kind: Any) -> Schema:
        """Return the schema of a type, or of one of several."""
        if isinstance(kind, tuple):
            return {"anyOf": [self.schema(one) for one in kind]}
        return self._found[id(kind)]


class _Writer:
    """Writes the operations of endpoints."""

    def __init__(self, facts: Facts, endpoints: Collection[Endpoint]) -> None:
        self._facts = facts
        sent = [body.kind for one in endpoints for body in one.request.values() if not isinstance(body.kind, dict)]
        told = [kind for one in endpoints for each in one.answers.values() for kind in each.content.values()]
        self._sent = _Derived([*sent, *(one.query[0] for one in endpoints if one.query is not None)])
        self._told = _Derived([ErrorReply, *(kind for kind in told if not isinstance(kind, dict))])

    def schemas(self) -> dict[str, Schema]:
        """Return the schemas that the operations refer to."""
        return {name: _tidy(one) for name, one in self._sent.named.items()} | {
            name: _tidy(one, reply=True) for name, one in self._told.named.items()
        }

    def operation(self, address: Address, one: Endpoint) -> Schema:
        """Return one operation, with the errors that the middleware raises."""
        public = one.public or address.access.key == "none"
        raised = (*one.errors, *(() if public else (Unauthorized, TooManyConnections)), InternalError)
        parameters = [*self._path(address.path, one), *self._query(one)]
        body = {"required": True, "content": {kind: self._body(sent) for kind, sent in one.request.items()}}
        return {
            "operationId": one.name,
            "tags": [one.tag],
            "summary": one.summary,
            "description": one.description,
            **({"security": []} if public else {}),
            **({"parameters": parameters} if parameters else {}),
            **({"requestBody": body} if one.request else {}),
            "responses": {str(status): self._answer(told) for status, told in one.answers.items()}
            | self._errors(raised),
        }

    def _path(self, path: str, one: Endpoint) -> list[Schema]:
        told, example = one.parameter
        described = {"in": "path", "required": True, "schema": {"type": "string", "description": told}}
        example = example.format(model=self._facts.model or "some-model")
        return [{"name": name, **described, "example": example} for name in re.findall(r"{(\w+)", path)]

    def _query(self, one: Endpoint) -> list[Schema]:
        if one.query is None:
            return []
        kind, examples = one.query
        whole = _tidy(self._sent.named.pop(kind.__name__))
        return [
            {"name": name, "in": "query", "required": name in whole.get("required", ()), "schema": _not_null(schema)}
            | {"example": examples[name]}
            for name, schema in whole["properties"].items()
        ]

    def _body(self, sent: Sent) -> Schema:
        examples = {_slug(summary): {"summary": summary, "value": value} for summary, value in sent.examples.items()}
        if isinstance(sent.kind, dict):
            return {"schema": sent.kind, "examples": examples}
        schema = self._sent.schema(sent.kind)
        if "$ref" in schema:
            whole = self._sent.named.pop(sent.kind.__name__)
            # The description says that null counts as absent: it is not repeated at each parameter.
            whole["properties"] = {key: _not_null(each) for key, each in whole["properties"].items()}
            if sent.file is not None:
                name, told = sent.file
                file = {"type": "string", "contentMediaType": "application/octet-stream", "description": told}
                whole["properties"] = {name: file, **whole["properties"]}
                whole["required"] = [name, *whole["required"]]
            if sent.adapt is not None:
                sent.adapt(whole, self._facts)
            name = re.sub("Body$", "Request", sent.kind.__name__)
            self._sent.named[name] = whole
            schema = {"$ref": f"#/components/schemas/{name}"}
        return {"schema": schema, "examples": examples}

    def _answer(self, told: Answer) -> Schema:
        content = {kind: self._media(kind, each) for kind, each in told.content.items()}
        headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in told.headers.items()}
        return {"description": told.description, "content": content} | ({"headers": headers} if headers else {})

    def _media(self, media: str, kind: Any) -> Schema:
        if isinstance(kind, dict):
            return {"schema": kind}
        schema = _tidy(self._told.schema(kind), reply=True)
        if media == EVENTS:
            told = {"type": "string", "description": "Events of the form `data: JSON`."}
            return {"schema": told, "x-event-schema": schema}
        return {"schema": schema}

    def _errors(self, errors: Errors) -> dict[str, Schema]:
        """Return an answer for each status, which tells the codes under it and their texts."""
        by_status: dict[str, list[type[VoxlaneError]]] = {}
        for error in sorted(errors, key=lambda one: one.http_status):
            by_status.setdefault(str(error.http_status), []).append(error)
        return {
            status: self._answer(Answer("\n\n".join(f"`{one.code}` {one.text}" for one in several), {JSON: ErrorReply}))
            for status, several in by_status.items()
        }


def _not_null(schema: Schema) -> Schema:
    """Return the schema of a value without null."""
    if "anyOf" not in schema:
        return schema
    others = [one for one in schema["anyOf"] if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}


def _tidy(schema: Schema, *, reply: bool = False) -> Schema:
    """Return one of msgspec's schemas without empty defaults and titles; what has a default is always in a reply."""
    tidy: Schema = {}
    for key, value in schema.items():
        match key:
            case "properties":
                value = {name: _tidy(one, reply=reply) for name, one in value.items()}
            case "required":
                fields = schema.get("properties", {}).items()
                value = [name for name, one in fields if name in value or (reply and "default" in one)] or value
            case "anyOf":
                value = [_tidy(one, reply=reply) for one in value]
            case "items" | "additionalProperties" if isinstance(value, dict):
                value = _tidy(value, reply=reply)
            case "enum" if all(isinstance(one, str) for one in value):
                tidy["type"] = "string"
            case "default" if reply or value in (None, {}):
                continue
        if key != "title" and value != []:
            tidy[key] = value
    return tidy


def _plain(path: str) -> str:
    """Return an address without the names of converters."""
    return re.sub(r":\w+}", "}", path)


def _slug(text: str) -> str:
    return "-".join("".join(one if one.isalnum() else " " for one in text.lower()).split())

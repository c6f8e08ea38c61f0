"""Descriptions of the endpoints that telephone systems ask for documents."""

from __future__ import annotations

from voxlane.server.api.reference.parts import (
    FORM,
    JSON,
    Facts,
    Schema,
    answer,
    listing,
    media,
    operation,
    record,
    request_body,
    string,
)
from voxlane.server.errors import Forbidden, InvalidRequest, RequestTimeout, TooLarge, TooManyConnections
from voxlane.server.protocols.phone.documents import XML, Documents
from voxlane.server.protocols.phone.systems import DOCUMENTS, NEXT_ADDRESS

_ERRORS = (InvalidRequest, Forbidden, RequestTimeout, TooLarge, TooManyConnections)

_CHECKED = """No API key: the request carries the system's signature, or `?token=` with the server's phone key. It is
served once. Without any key, a server that only its own machine can reach serves every request."""


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    found = {path: item for name, one in DOCUMENTS.items() for path, item in _paths(name.capitalize(), one).items()}
    return found | {NEXT_ADDRESS: {"get": _plain_follow_up()}}


def _plain_follow_up() -> Schema:
    told = "What the dialplan named the call: with `v(call=…)`, or the UUID of AudioSocket."
    parameter = {"name": "call", "in": "query", "required": True, "schema": string(told), "example": "1794927221.3"}
    return operation(
        "followCall",
        "Telephone",
        "Says what follows after a call of Asterisk",
        f"For a dialplan: the answer is the number to dial next, or nothing. {_CHECKED}",
        {"200": answer("The number, or nothing.", **{"text/plain": media({**string(), "minLength": 0})})},
        _ERRORS,
        public=True,
        parameters=[parameter],
    )


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests: the fields that are used. Others are ignored."""
    return {key: schema for name, one in DOCUMENTS.items() for key, schema in _schemas(name.capitalize(), one).items()}


def _schemas(name: str, documents: Documents) -> dict[str, Schema]:
    names = documents.fields
    announced = _record(
        {
            **{key: string(f"Of a call that comes in: {value}.") for key, value in documents.announced_by.items()},
            names.call_id: string("Which call."),
            names.caller: string("The number that calls."),
            names.called: string("The number that was called."),
        }
    )
    if documents.follow_up is None:
        return {f"{name}Call": announced}
    ended = {names.call_id: string("Which call.")}
    if documents.by_get:
        ended["status"] = string("How the connection to us is; other states than an end are answered with 204.")
    return {f"{name}Call": announced, f"{name}CallEnd": _record(ended)}


def _record(fields: dict[str, Schema]) -> Schema:
    """Return an object of these fields; a dot leads into an object."""
    inner = {name.partition(".")[0]: name.partition(".")[2] for name in fields if "." in name}
    flat = {name: one for name, one in fields.items() if "." not in name}
    flat |= {name: _record({rest: fields[f"{name}.{rest}"]}) for name, rest in inner.items()}
    return record(flat, optional=flat)


def _paths(name: str, documents: Documents) -> Schema:
    kind, names = documents.kind, documents.fields
    one: Schema = {"type": "object"}
    body = (JSON, listing(one) if documents.lists_actions else one) if documents.as_json else (XML, string())
    document = answer(f"The {kind}.", **{body[0]: media(body[1])})
    answers = {"200": document}
    if documents.announced_by:
        answers["204"] = answer("It is not about a call that comes in.")
    sent = JSON if documents.as_json else FORM
    call = dict(documents.announced_by) | _example(
        {names.call_id: "CA0123456789", names.caller: "+4917012345678", names.called: "+4930123456"}
    )
    announced = operation(
        f"answer{name}",
        "Telephone",
        f"Answers a call of {documents.title}",
        f"The {kind} connects the call to `/v1/phone`, with a pass that is valid once, for a minute. {_CHECKED}",
        answers,
        _ERRORS,
        public=True,
        request=request_body(sent, f"{name}Call", {"A call": call}),
    )
    found: Schema = {documents.path: {"post": announced}}
    if documents.by_get:
        read = {key: value for key, value in announced.items() if key != "requestBody"}
        told = f"The same, with the fields in the query, as {name} asks by default. {_CHECKED}"
        found[documents.path]["get"] = read | {"operationId": f"answer{name}ByGet", "description": told}
    if documents.follow_up is not None:
        found[f"{documents.path}/next"] = {"post": _follow_up(name, documents, document)}
    return found


def _follow_up(name: str, documents: Documents, document: Schema) -> Schema:
    end = {documents.fields.call_id: "CA0123456789"} | ({"status": "completed"} if documents.by_get else {})
    answers = {"200": document}
    if documents.by_get:
        answers["204"] = answer("Nothing to do yet.")
    return operation(
        f"follow{name}",
        "Telephone",
        f"Says what follows after a call of {documents.title}",
        f"The {documents.kind} transfers the call if the assistant has decided so, else it hangs up. {_CHECKED}",
        answers,
        _ERRORS,
        public=True,
        request=request_body(JSON if documents.as_json else FORM, f"{name}CallEnd", {"A call that is over": end}),
    )


def _example(fields: dict[str, str]) -> Schema:
    found: Schema = {}
    for name, value in fields.items():
        *path, last = name.split(".")
        place = found
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return found

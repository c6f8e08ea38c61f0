"""Descriptions of the endpoints that telephone systems ask for documents."""

from __future__ import annotations

from voxlane.server.api.phone import NEXT_ADDRESS, SYSTEMS, TelephoneSystem
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
from voxlane.server.phone.documents import XML

_ERRORS = (InvalidRequest, Forbidden, RequestTimeout, TooLarge, TooManyConnections)

_CHECKED = """No API key: the request carries the system's signature, or `?token=` with the server's phone key. It is
served once. Without any key, a server that only its own machine can reach serves every request."""

_TITLES = {"twilio": "Twilio and SignalWire", "telnyx": "Telnyx", "plivo": "Plivo", "vonage": "Vonage"}
_DOCUMENTS = {"twilio": "TwiML", "telnyx": "TeXML", "plivo": "Plivo XML", "vonage": "NCCO"}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    found = {path: item for system in SYSTEMS for path, item in _paths(system).items()}
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
    return {name: schema for system in SYSTEMS for name, schema in _schemas(system).items()}


def _schemas(system: TelephoneSystem) -> dict[str, Schema]:
    names = system.fields
    announced = {
        names.call_id: string("Which call."),
        names.caller: string("The number that calls."),
        names.called: string("The number that was called."),
    }
    ended = {names.call_id: announced[names.call_id]}
    if system.name == "vonage":
        ended["status"] = string("How the connection to us is; other states than an end are answered with 204.")
    name = system.name.capitalize()
    return {
        f"{name}Call": record(announced, optional=announced),
        f"{name}CallEnd": record(ended, optional=ended),
    }


def _paths(system: TelephoneSystem) -> Schema:
    title, kind, names = _TITLES[system.name], _DOCUMENTS[system.name], system.fields
    schema = listing({"type": "object"}) if system.name == "vonage" else string()
    sent = JSON if system.name == "vonage" else FORM
    document = answer(f"The {kind}.", **{JSON if system.name == "vonage" else XML: media(schema)})
    name = system.name.capitalize()
    call = {names.call_id: "CA0123456789", names.caller: "+4917012345678", names.called: "+4930123456"}
    announced = operation(
        f"answer{name}",
        "Telephone",
        f"Answers a call of {title}",
        f"The {kind} connects the call to `/v1/phone`, with a pass that is valid once, for a minute. {_CHECKED}",
        {"200": document},
        _ERRORS,
        public=True,
        request=request_body(sent, f"{name}Call", {"A call": call}),
    )
    end = {names.call_id: "CA0123456789"} | ({"status": "completed"} if system.name == "vonage" else {})
    answers = {"200": document}
    if system.name == "vonage":
        answers["204"] = answer("Nothing to do yet.")
    ended = operation(
        f"follow{name}",
        "Telephone",
        f"Says what follows after a call of {title}",
        f"The {kind} transfers the call if the assistant has decided so, else it hangs up. {_CHECKED}",
        answers,
        _ERRORS,
        public=True,
        request=request_body(sent, f"{name}CallEnd", {"A call that is over": end}),
    )
    found: Schema = {system.path: {"post": announced}, f"{system.path}/next": {"post": ended}}
    if system.name == "vonage":
        read = {key: value for key, value in announced.items() if key != "requestBody"}
        told = "The same, with the fields in the query, as Vonage asks by default. " + _CHECKED
        found[system.path]["get"] = read | {"operationId": "answerVonageByGet", "description": told}
    return found

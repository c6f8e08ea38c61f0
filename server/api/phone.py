"""POST /v1/phone/twiml, /texml, /plivo …: what telephone systems are told to do with a call.

A system asks when a call comes in: it is told to connect the call to /v1/phone, with a one-time pass. It asks again at
`…/next` when our part of the call is over: it is told to transfer the call or to hang up. phone/admission.py checks
that it is the system, because none of them can send an API key; each system's file in protocols/phone/ writes its
answers. A dialplan of Asterisk asks GET /v1/phone/next, whose answer is a number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast
from urllib.parse import parse_qsl

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server import limits
from voxlane.server.api.endpoint import FORM, JSON, Address, Answer, Endpoint, Schema, Sent, endpoint
from voxlane.server.config import Config
from voxlane.server.errors import (
    Forbidden,
    InvalidRequest,
    RequestTimeout,
    TooLarge,
    TooManyConnections,
    VoxlaneError,
)
from voxlane.server.http.access import SIGNED
from voxlane.server.http.body import parse_json, pieces_of
from voxlane.server.http.middleware import check_page
from voxlane.server.log import line, masked
from voxlane.server.phone.admission import PhoneAdmission, WebhookRequest
from voxlane.server.protocols.phone.documents import XML, Document, Documents, NextStep, StreamOrder
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.protocols.phone.signing import Pairs
from voxlane.server.protocols.phone.systems import DOCUMENTS, NEXT_ADDRESS

logger = logging.getLogger(__name__)

BODY_BYTES = 64 * 1024
"""Largest body: a telephone system sends some thirty short fields."""

FORM_FIELDS = 256
"""Fields of a form or a query."""


_ERRORS = (InvalidRequest, Forbidden, RequestTimeout, TooLarge, TooManyConnections)

_CHECKED = """No API key: the request carries the system's signature, or `?token=` with the server's phone key. It is
served once. Without any key, a server that only its own machine can reach serves every request."""


@dataclass(frozen=True, slots=True)
class PhoneDesk:
    """What the endpoints need of a server; `check_place` raises the error with which another call would be refused."""

    config: Config
    admission: PhoneAdmission
    check_place: Callable[[], None] = lambda: None

    def check_unread(self, system: str, request: Request) -> None:
        """Refuse a request that shows neither signature nor token, before it is read."""
        self.admission.check_unread(system, request)
        if self.admission.is_open(request):
            check_page(request.scope, self.config, with_key=False)

    def next_step(self, system: str, call_id: str) -> NextStep | None:
        """Return what follows after a call, once."""
        step = self.admission.next_steps.take(call_id)
        transferred = None if step is None else masked(step.target)
        logger.info(line("call follow-up", system=system, transferred=transferred))
        return step


def _desk(request: Request) -> PhoneDesk:
    return cast(PhoneDesk, request.app.state.phone_desk)


class FollowUpQuery(Struct):
    """Which call it is."""

    call: Annotated[
        str, Meta(description="What the dialplan named the call: with `v(call=…)`, or the UUID of AudioSocket.")
    ]


@endpoint(
    "followCall",
    "Telephone",
    "Says what follows after a call of Asterisk",
    f"For a dialplan: the answer is the number to dial next, or nothing. {_CHECKED}",
    {200: Answer("The number, or nothing.", {"text/plain": Annotated[str, Meta(min_length=0)]})},
    _ERRORS,
    query=(FollowUpQuery, {"call": "1794927221.3"}),
)
async def follow_call(request: Request) -> Response:
    """Answer an exchange whose dialplan asks with the destination as text; with nothing to hang up."""
    desk = _desk(request)
    desk.check_unread("asterisk", request)
    call_id = request.query_params.get("call", "")[: limits.NAME_CHARACTERS]
    desk.admission.check_request("asterisk", WebhookRequest(request, "GET"), call_id)
    step = desk.next_step("asterisk", call_id)
    return _response(Document("text/plain; charset=utf-8", b"" if step is None else step.target.encode()))


class _Asking:
    """The two requests of one telephone system, and their description."""

    def __init__(self, system: str, documents: Documents) -> None:
        self._system = system
        self._documents = documents

    def addresses(self) -> list[Address]:
        """Return the addresses that the system asks."""
        documents, title = self._documents, self._documents.title
        name, kind = self._system.capitalize(), f"The {documents.kind}"
        shape: Schema = {"type": "object"}
        body = (
            {JSON: {"type": "array", "items": shape} if documents.lists_actions else shape}
            if documents.as_json
            else {XML: str}
        )
        answers = {200: Answer(f"{kind}.", body)}
        call = Endpoint(
            self.answer,
            f"answer{name}",
            "Telephone",
            f"Answers a call of {title}",
            f"{kind} connects the call to `/v1/phone`, with a pass that is valid once, for a minute. {_CHECKED}",
            answers | ({204: Answer("It is not about a call that comes in.")} if documents.announced_by else {}),
            _ERRORS,
            request=self._sent("A call", self._announced()),
        )
        by_get = replace(
            call,
            name=f"answer{name}ByGet",
            description=f"The same, with the fields in the query, as {name} asks by default. {_CHECKED}",
            request={},
        )
        found = [Address(documents.path, SIGNED, post=call, get=by_get if documents.by_get else None)]
        if documents.follow_up is None:
            return found
        end = Endpoint(
            self.follow_up,
            f"follow{name}",
            "Telephone",
            f"Says what follows after a call of {title}",
            f"{kind} transfers the call if the assistant has decided so, else it hangs up. {_CHECKED}",
            answers | ({204: Answer("Nothing to do yet.")} if documents.by_get else {}),
            _ERRORS,
            request=self._sent("A call that is over", self._ended()),
        )
        return [*found, Address(f"{documents.path}/next", SIGNED, post=end)]

    def _announced(self) -> dict[str, tuple[str, str]]:
        """Return the fields of a request about a call that comes in: what each says, and an example."""
        names = self._documents.fields
        return {
            **{key: (f"Of a call that comes in: {one}.", one) for key, one in self._documents.announced_by.items()},
            names.call_id: ("Which call.", "CA0123456789"),
            names.caller: ("The number that calls.", "+4917012345678"),
            names.called: ("The number that was called.", "+4930123456"),
        }

    def _ended(self) -> dict[str, tuple[str, str]]:
        """Return the fields of a request about a call that is over."""
        told = "How the connection to us is; other states than an end are answered with 204."
        status = {"status": (told, "completed")} if self._documents.by_get else {}
        return {self._documents.fields.call_id: ("Which call.", "CA0123456789"), **status}

    def _sent(self, summary: str, fields: Mapping[str, tuple[str, str]]) -> dict[str, Sent]:
        """Return a request with these fields, of which a dot leads into an object; others are ignored."""
        schema: Schema = {}
        example: dict[str, Any] = {}
        for path, (told, value) in fields.items():
            *outer, name = path.split(".")
            shape, place = schema, example
            for one in outer:
                shape = shape.setdefault("properties", {}).setdefault(one, {"type": "object"})
                place = place.setdefault(one, {})
            shape.setdefault("properties", {})[name] = {"type": "string", "description": told}
            place[name] = value
        return {JSON if self._documents.as_json else FORM: Sent({"type": "object"} | schema, {summary: example})}

    async def answer(self, request: Request) -> Response:
        """Answer the request that a call has come in; a server that cannot take it lets the line be busy."""
        desk = _desk(request)
        webhook, values = await self._read(desk, request)
        desk.admission.check_request(self._system, webhook)
        if not self._documents.announces(values):
            return Response(status_code=204)
        facts = self._facts(values)
        try:
            desk.check_place()
        except VoxlaneError as error:
            logger.info(line("call refused", system=facts.system, code=error.code, detail=error.detail or None))
            return _response(self._documents.busy())
        order = StreamOrder(
            desk.admission.stream_url(request),
            desk.admission.passes.issue(facts),
            desk.admission.next_url(request, f"{self._documents.path}/next", facts.call_id),
            facts.called,
        )
        logger.info(line("call announced", system=facts.system, caller=masked(facts.caller) or None))
        return _response(self._documents.answer(order))

    async def follow_up(self, request: Request) -> Response:
        """Answer the request what follows after a call."""
        desk = _desk(request)
        webhook, values = await self._read(desk, request)
        facts = self._facts(values)
        desk.admission.check_request(self._system, webhook, facts.call_id)
        if not self._documents.is_over(values):
            return Response(status_code=204)
        assert self._documents.follow_up is not None
        return _response(self._documents.follow_up(desk.next_step(facts.system, facts.call_id)))

    async def _read(self, desk: PhoneDesk, request: Request) -> tuple[WebhookRequest, Mapping[str, str]]:
        """Return the request and its fields; one that shows neither signature nor token is refused unread."""
        desk.check_unread(self._system, request)
        pieces = [piece async for piece in pieces_of(request, BODY_BYTES, desk.config.limits.body_s)]
        body = b"".join(pieces)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        form = _form(body) if body and kind == FORM else ()
        if request.method == "GET":
            values = dict(request.query_params)
        else:
            values = _object(body) if self._documents.as_json else dict(form)
        return WebhookRequest(request, request.method, form, body), values

    def _facts(self, values: Mapping[str, str]) -> CallFacts:
        names = self._documents.fields
        call_id, caller, called = (
            values.get(name, "")[: limits.NAME_CHARACTERS] for name in (names.call_id, names.caller, names.called)
        )
        return CallFacts(self._system, call_id, caller, called)


def _form(body: bytes) -> Pairs:
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS, errors="strict")
    except ValueError as error:  # not UTF-8, or too many fields
        raise InvalidRequest("The body is not a form.") from error


def _object(body: bytes) -> dict[str, str]:
    """Return the texts of a JSON object, and of the objects in it under names with a dot."""
    value = parse_json(body) if body else {}
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    inner = {
        f"{name}.{key}": one for name, part in value.items() if isinstance(part, dict) for key, one in part.items()
    }
    return {name: one for name, one in (value | inner).items() if isinstance(one, str)}


def _response(document: Document) -> Response:
    # A document holds a pass: no cache may keep it.
    return Response(document.body, headers={"cache-control": "no-store", "content-type": document.kind})


ADDRESSES = (
    *(address for system, documents in DOCUMENTS.items() for address in _Asking(system, documents).addresses()),
    Address(NEXT_ADDRESS, SIGNED, get=follow_call),
)
"""What telephone systems ask, derived from their files."""

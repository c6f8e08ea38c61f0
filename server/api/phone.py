"""POST /v1/phone/twiml, /texml, /plivo …: what telephone systems are told to do with a call.

A system asks when a call comes in: it is told to connect the call to /v1/phone, with a one-time pass. It asks again at
`…/next` when our part of the call is over: it is told to transfer the call or to hang up. phone/admission.py checks
that it is the system, because none of them can send an API key; each system's file in protocols/phone/ writes its
answers. A dialplan of Asterisk asks GET /v1/phone/next, whose answer is a number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from voxlane.server import limits
from voxlane.server.config import Config
from voxlane.server.errors import InvalidRequest, VoxlaneError
from voxlane.server.http.body import parse_json, pieces_of
from voxlane.server.http.middleware import check_page
from voxlane.server.log import line, masked
from voxlane.server.phone.admission import PhoneAdmission, WebhookRequest
from voxlane.server.protocols.phone.documents import Document, Documents, StreamOrder
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.protocols.phone.signing import Pairs
from voxlane.server.protocols.phone.systems import DOCUMENTS, NEXT_ADDRESS

logger = logging.getLogger(__name__)

BODY_BYTES = 64 * 1024
"""Largest body: a telephone system sends some thirty short fields."""

FORM = "application/x-www-form-urlencoded"
FORM_FIELDS = 256
"""Fields of a form or a query."""


def phone_routes(
    config: Config, admission: PhoneAdmission, check_place: Callable[[], None] = lambda: None
) -> list[Route]:
    """Return the routes of the documents; `check_place` raises the error with which another call would be refused."""
    routes: list[Route] = []
    for system, documents in DOCUMENTS.items():
        endpoint = _Endpoint(config, admission, system, documents, check_place)
        methods = (["POST"], ["GET"]) if documents.by_get else (["POST"],)
        routes += [Route(documents.path, endpoint.answer, methods=one) for one in methods]
        if documents.follow_up is not None:
            routes.append(Route(f"{documents.path}/next", endpoint.follow_up, methods=["POST"]))
    plain = _PlainFollowUp(config, admission)
    return [*routes, Route(NEXT_ADDRESS, plain.follow_up, methods=["GET"])]


class _PlainFollowUp:
    """What follows after a call, for an exchange whose dialplan asks: Asterisk."""

    def __init__(self, config: Config, admission: PhoneAdmission) -> None:
        self._config = config
        self._admission = admission

    async def follow_up(self, request: Request) -> Response:
        """Answer with the destination as text; with nothing if the call is to be hung up."""
        self._admission.check_unread("asterisk", request)
        if self._admission.is_open(request):
            check_page(request.scope, self._config, with_key=False)
        call_id = request.query_params.get("call", "")[: limits.NAME_CHARACTERS]
        self._admission.check_request("asterisk", WebhookRequest(request, "GET"), call_id)
        step = self._admission.next_steps.take(call_id)
        transferred = None if step is None else masked(step.target)
        logger.info(line("call follow-up", system="asterisk", transferred=transferred))
        return _response(Document("text/plain; charset=utf-8", b"" if step is None else step.target.encode()))


class _Endpoint:
    """The two requests of one telephone system."""

    def __init__(
        self,
        config: Config,
        admission: PhoneAdmission,
        system: str,
        documents: Documents,
        check_place: Callable[[], None],
    ) -> None:
        self._config = config
        self._admission = admission
        self._system = system
        self._documents = documents
        self._check_place = check_place

    async def answer(self, request: Request) -> Response:
        """Answer the request that a call has come in; a server that cannot take it lets the line be busy."""
        webhook, values = await self._read(request)
        self._admission.check_request(self._system, webhook)
        if not self._documents.announces(values):
            return Response(status_code=204)
        facts = self._facts(values)
        try:
            self._check_place()
        except VoxlaneError as error:
            logger.info(line("call refused", system=facts.system, code=error.code, detail=error.detail or None))
            return _response(self._documents.busy())
        order = StreamOrder(
            self._admission.stream_url(request),
            self._admission.passes.issue(facts),
            self._admission.next_url(request, f"{self._documents.path}/next", facts.call_id),
            facts.called,
        )
        logger.info(line("call announced", system=facts.system, caller=masked(facts.caller) or None))
        return _response(self._documents.answer(order))

    async def follow_up(self, request: Request) -> Response:
        """Answer the request what follows after a call."""
        webhook, values = await self._read(request)
        facts = self._facts(values)
        self._admission.check_request(self._system, webhook, facts.call_id)
        if not self._documents.is_over(values):
            return Response(status_code=204)
        step = self._admission.next_steps.take(facts.call_id)
        transferred = None if step is None else masked(step.target)
        logger.info(line("call follow-up", system=facts.system, transferred=transferred))
        assert self._documents.follow_up is not None
        return _response(self._documents.follow_up(step))

    async def _read(self, request: Request) -> tuple[WebhookRequest, Mapping[str, str]]:
        """Return the request and its fields; one that shows neither signature nor token is refused unread."""
        self._admission.check_unread(self._system, request)
        if self._admission.is_open(request):
            check_page(request.scope, self._config, with_key=False)
        pieces = [piece async for piece in pieces_of(request, BODY_BYTES, self._config.limits.body_s)]
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

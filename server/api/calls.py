"""POST /v1/realtime/calls: a WebRTC offer in, an answer out; and the end of a call.

A page may be of another origin: the answers carry what browsers ask for. The key may be a client secret, so the check
of keys is here and not in the middleware.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server import limits
from voxlane.server.api.endpoint import MULTIPART, Answer, Endpoint, Sent, endpoint
from voxlane.server.api.form import FormReader, boundary_of
from voxlane.server.api.service import Service, service_of
from voxlane.server.errors import (
    Draining,
    EngineNotReady,
    Forbidden,
    Full,
    InvalidRequest,
    NoRoom,
    NotFound,
    NotInstalled,
    QuotaReached,
    RequestTimeout,
    TenantFull,
    TooLarge,
    VoxlaneError,
)
from voxlane.server.http.auth import offered_key, origin_allowed, refused_origin
from voxlane.server.http.body import parse_json, pieces_of
from voxlane.server.http.middleware import charge
from voxlane.server.http.reply import error_response
from voxlane.server.sessions.admission import admitted
from voxlane.server.tenants.accounts import Account
from voxlane.server.webrtc.calls import CallOffer

SDP = "application/sdp"
CALLS = "/v1/realtime/calls"

_MOST_BYTES = limits.SDP_BYTES + limits.CLIENT_SECRET_SESSION_BYTES + limits.FORM_HEADER_BYTES * 4
_ALLOWED = {
    "access-control-allow-methods": "POST, DELETE, OPTIONS",
    "access-control-allow-headers": "Authorization, Content-Type, X-OpenAI-Agents-SDK, OpenAI-Safety-Identifier",
    "access-control-max-age": "600",
}


SdpOffer = Annotated[
    str, Meta(description="The client's offer, with one audio track that has Opus.", max_length=limits.SDP_BYTES)
]


class CallBody(Struct):
    """An offer, and the session that it is for."""

    sdp: SdpOffer
    session: Annotated[str | UnsetType, Meta(description="A JSON object, as in `session.update` of the protocol.")] = (
        UNSET
    )


_CREATE = """A conversation in OpenAI's Realtime protocol over WebRTC: events over the data channel `oai-events`, Opus
tracks both ways. `docs/openai.md` tells what is different. The key may be a client secret, and a page of an allowed
origin may ask. The query of `/v1/realtime` holds here, too: `?model=…`."""

_ENDED = "Only the key or the client secret of the same tenant ends it. The answer comes when the call is over."
_CALL = ("The last part of the `Location` that answered the offer.", "rtc_0123456789abcdef0123456789abcdef")
_MAY = "Whether a page of another origin may call: a browser asks by itself"
_ALLOWED_ORIGINS = "Pages of the origins in `voice.origins` may."
_MAY_ANSWER = {204: Answer("They may; the headers say how.")}


async def preflight(request: Request) -> Response:
    """Answer a browser's question whether a page of another origin may call."""
    return await _for_pages(request, _allow)


MAY_CALL = Endpoint(
    preflight, "mayCall", "Conversations", _MAY, _ALLOWED_ORIGINS, _MAY_ANSWER, (Forbidden,), public=True
)
MAY_END_CALL = replace(MAY_CALL, name="mayEndCall", parameter=_CALL)


@endpoint(
    "createCall",
    "Conversations",
    "A call over WebRTC, OpenAI's protocol",
    _CREATE,
    {
        201: Answer(
            "The answer to the offer.",
            {SDP: Annotated[str, Meta(description="The server's answer, with all its addresses.")]},
            {"Location": "The address of the call."},
        )
    },
    (
        InvalidRequest, Forbidden, NotFound, RequestTimeout, TooLarge, QuotaReached, TenantFull, NotInstalled, Draining,
        EngineNotReady, Full, NoRoom,
    ),
    request={
        SDP: Sent(SdpOffer, {"An offer in a file": "v=0\r\n"}),
        MULTIPART: Sent(
            CallBody,
            {"With a session": {"sdp": "v=0\r\n", "session": '{"type": "realtime", "instructions": "Be brief."}'}},
        ),
    },
)  # fmt: skip
async def create_call(request: Request) -> Response:
    """Answer POST /v1/realtime/calls."""
    return await _for_pages(request, _create)


async def end_call(request: Request) -> Response:
    """Answer POST /v1/realtime/calls/{id}/hangup and DELETE /v1/realtime/calls/{id}."""
    return await _for_pages(request, _end)


DELETE_CALL = Endpoint(
    end_call,
    "deleteCall",
    "Conversations",
    "End a call",
    _ENDED,
    {200: Answer("It is over.")},
    (NotFound, Forbidden),
    parameter=_CALL,
)
HANG_UP_CALL = replace(DELETE_CALL, name="hangUpCall", summary="End a call, OpenAI's protocol")


async def _for_pages(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Return an answer, also if it is an error, in such a way that a page of an allowed origin can read it."""
    service, origin, host = service_of(request), request.headers.get("origin"), request.headers.get("host", "")
    if not origin_allowed(origin, host, service.config.voice.origins, with_key=service.tenants.key_needed):
        raise refused_origin(origin)
    if origin is None:
        return await answer(request)
    try:
        response = await answer(request)
    except VoxlaneError as error:
        response = error_response(error)
    response.headers["access-control-allow-origin"] = origin
    response.headers["access-control-expose-headers"] = "Location"
    response.headers["vary"] = "Origin"
    return response


async def _allow(_: Request) -> Response:
    return Response(status_code=204, headers=_ALLOWED)


async def _create(request: Request) -> Response:
    service = service_of(request)
    if not service.config.webrtc.on:
        raise NotFound("WebRTC is switched off: see webrtc.on.")
    account, session = _admitted(request, service)
    if service.sessions.conversations.draining:
        raise Draining
    sdp, asked = await _read(request, service)
    address = request.client.host if request.client is not None else "-"
    both = _merged(session or {}, asked) if session is not None or asked else None
    name, answer = await service.calls.open(CallOffer(sdp, address, account, request.query_params, both))
    return Response(answer, 201, {"location": f"{CALLS}/{name}"}, SDP)


async def _end(request: Request) -> Response:
    service = service_of(request)
    account, _ = _admitted(request, service)
    await service.calls.hang_up(request.path_params["name"], account)
    return Response(status_code=200)


def _admitted(request: Request, service: Service) -> tuple[Account, Mapping[str, Any] | None]:
    """Return the tenant of a key or a client secret, and the session of the latter; raise Unauthorized."""
    key = offered_key(request.headers.get("authorization", ""), ())
    account, session = admitted(key, service.sessions, service.tenants)
    charge(request.scope, service.metrics, account)
    return account, session


async def _read(request: Request, service: Service) -> tuple[str, Mapping[str, Any]]:
    """Return the offer and the session of a body: plain SDP, or a form with both."""
    kind = request.headers.get("content-type", "")
    pieces = pieces_of(request, _MOST_BYTES, service.config.limits.body_s)
    if kind.partition(";")[0].strip().lower() == SDP:
        return _text(b"".join([piece async for piece in pieces])), {}
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest("The body must be application/sdp, or multipart/form-data with sdp and session.")
    reader = FormReader(boundary_of(kind), "sdp", field_bytes=limits.CLIENT_SECRET_SESSION_BYTES)
    async for piece in pieces:
        reader.feed(piece)
    form = reader.finish()
    if form.file is None:
        raise InvalidRequest("sdp is missing: the offer.", param="sdp")
    session = dict(form.fields).get("session", "")
    value = parse_json(session.encode()) if session else {}
    if not isinstance(value, dict):
        raise InvalidRequest("session must be a JSON object.", param="session")
    return _text(bytes(form.file)), value


def _text(data: bytes) -> str:
    if len(data) > limits.SDP_BYTES:
        raise TooLarge(f"An offer has at most {limits.SDP_BYTES} bytes.", param="sdp")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise InvalidRequest("The offer must be ASCII.", param="sdp") from error


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client secret's session with what the offer asks for beside it."""
    joined = dict(base)
    for key, value in over.items():
        before = joined.get(key)
        joined[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return joined

"""Description of calls over WebRTC: an offer, an answer, the end."""

from __future__ import annotations

from voxlane.server import limits
from voxlane.server.api.reference.parts import (
    Errors,
    Facts,
    Schema,
    answer,
    media,
    operation,
    record,
    ref,
    request_body,
    string,
)
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
)

SDP = "application/sdp"
_FORM = "multipart/form-data"

_CREATE = """A conversation in OpenAI's Realtime protocol over WebRTC: events over the data channel `oai-events`, Opus
tracks both ways. `docs/openai.md` tells what is different. The key may be a client secret, and a page of an allowed
origin may ask. The query of `/v1/realtime` holds here, too: `?model=…`."""

_SESSION = '{"type": "realtime", "instructions": "Be brief."}'
_ERRORS: Errors = (
    InvalidRequest, Forbidden, NotFound, RequestTimeout, TooLarge, QuotaReached, TenantFull, NotInstalled, Draining,
    EngineNotReady, Full, NoRoom,
)  # fmt: skip

_NAME: Schema = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": string("The last part of the `Location` that answered the offer."),
    "example": "rtc_0123456789abcdef0123456789abcdef",
}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    location = {"Location": {"description": "The address of the call.", "schema": string()}}
    plain = request_body(SDP, "CallOffer", {"An offer in a file": "v=0\r\n"})
    form = request_body(_FORM, "CallForm", {"With a session": {"sdp": "v=0\r\n", "session": _SESSION}})
    create = operation(
        "createCall",
        "Conversations",
        "A call over WebRTC, OpenAI's protocol",
        _CREATE,
        {"201": answer("The answer to the offer.", **{SDP: media(ref("CallAnswer"))}) | {"headers": location}},
        _ERRORS,
        request={"required": True, "content": {**plain["content"], **form["content"]}},
    )
    return {
        "/v1/realtime/calls": {"post": create, "options": _preflight("mayCall", [])},
        "/v1/realtime/calls/{name}": {
            "delete": _end("deleteCall", "End a call"),
            "options": _preflight("mayEndCall", [_NAME]),
        },
        "/v1/realtime/calls/{name}/hangup": {"post": _end("hangUpCall", "End a call, OpenAI's protocol")},
    }


def _end(identifier: str, summary: str) -> Schema:
    told = "Only the key or the client secret of the same tenant ends it. The answer comes when the call is over."
    done = {"200": answer("It is over.")}
    return operation(identifier, "Conversations", summary, told, done, (NotFound, Forbidden), parameters=[_NAME])


def _preflight(identifier: str, parameters: list[Schema]) -> Schema:
    return operation(
        identifier,
        "Conversations",
        "Whether a page of another origin may call: a browser asks by itself",
        "Pages of the origins in `voice.origins` may.",
        {"204": answer("They may; the headers say how.")},
        (Forbidden,),
        public=True,
        parameters=parameters,
    )


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    sdp = string("The client's offer, with one audio track that has Opus.", most=limits.SDP_BYTES)
    session = string("A JSON object, as in `session.update` of the protocol.")
    return {
        "CallOffer": sdp,
        "CallForm": record({"sdp": sdp, "session": session}, optional=("session",)),
        "CallAnswer": string("The server's answer, with all its addresses."),
    }

"""POST /v1/realtime/client_secrets: a secret that a page or a phone may hold, for conversations set up beforehand.

It opens /v1/realtime and /v1/voice, for the tenant whose key asked for it.

The secrets are kept by sessions/client_secrets.py. The dialect checks the session's settings now, and reads them again
when a client connects.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server import limits
from voxlane.server.api.bodies import Body, JsonReply, read_body, wrong
from voxlane.server.api.endpoint import JSON, READING, Answer, Schema, Sent, endpoint
from voxlane.server.api.service import Service, service_of
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import Draining, EngineNotReady, InvalidRequest, TooLarge
from voxlane.server.http.body import read_object
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import json_response, to_json
from voxlane.server.protocols.openai_realtime.session import configuration, shown, usual_session
from voxlane.server.protocols.openai_realtime.update import updated
from voxlane.server.protocols.openai_realtime.values import Wrong

_SESSION_TYPE = {
    "type": "string",
    "enum": ["realtime", "transcription"],
    "default": "realtime",
    "description": "Converse, or only transcribe.",
}
_LEAST_S, _MOST_S = limits.CLIENT_SECRET_SECONDS


class ExpiresAfter(Body):
    """How long the secret can be used."""

    anchor: Annotated[Literal["created_at"], Meta(description="From when.")] = "created_at"
    seconds: Annotated[int, Meta(ge=_LEAST_S, le=_MOST_S, description="For how long.")] = (
        limits.CLIENT_SECRET_USUAL_SECONDS
    )


class ClientSecretBody(Body):
    """A secret's life, and the session that it stands for."""

    expires_after: ExpiresAfter = field(default_factory=ExpiresAfter)
    session: Annotated[
        dict[str, Any],
        Meta(
            description="The session that connections with this secret begin with, in OpenAI's words. "
            f"Up to {limits.CLIENT_SECRET_SESSION_BYTES // 1024} KiB of JSON.",
            extra_json_schema={"properties": {"type": _SESSION_TYPE}},
        ),
    ] = field(default_factory=dict)


class ClientSecret(JsonReply):
    """A secret, which is told only once."""

    value: Annotated[str, Meta(description="The secret: `ek_` and 43 characters.")]
    expires_at: Annotated[int, Meta(description="When, in seconds since 1970.")]
    session: Annotated[
        dict[str, Any],
        Meta(
            description="The whole session as a connection finds it, in OpenAI's words.",
            extra_json_schema={"required": ["id", "object", "type"]},
        ),
    ]


_DESCRIPTION = """A page or a phone connects to `/v1/realtime` with the secret instead of the key, as often as it likes
until the secret expires; a conversation that has begun goes on. The secret opens nothing else. It lives in this
process: another server, or this one after a restart, does not know it."""

_EXAMPLES: dict[str, Schema] = {
    "Ten minutes, as it is": {},
    "A minute, for a session set up beforehand": {
        "expires_after": {"anchor": "created_at", "seconds": 60},
        "session": {"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"voice": "alloy"}}},
    },
    "Only to be transcribed": {"session": {"type": "transcription"}},
}


@endpoint(
    "createClientSecret",
    "Conversations",
    "A secret for a client that must not see the key, OpenAI's protocol",
    _DESCRIPTION,
    {200: Answer("The secret; it is told only once.", {JSON: ClientSecret})},
    (*READING, Draining, EngineNotReady),
    request={JSON: Sent(ClientSecretBody, _EXAMPLES)},
)
async def client_secrets(request: Request) -> Response:
    """Answer POST /v1/realtime/client_secrets."""
    service = service_of(request)
    if service.sessions.conversations.draining:
        raise Draining  # no client could connect with it
    ask = parse(await read_object(request, service.config.limits))
    session = effective_session(service, ask.session)
    value, expires_at = service.sessions.secrets.issue(
        ask.session, ask.expires_after.seconds, account_of(request.scope)
    )
    return json_response(ClientSecret(value=value, expires_at=expires_at, session=session))


def parse(values: Mapping[str, Any]) -> ClientSecretBody:
    """Return the request in a JSON object, or raise an error that names the parameter."""
    body = read_body(ClientSecretBody, values)
    if _deeper(body.session, limits.CLIENT_SECRET_SESSION_LEVELS):
        raise wrong("session", f"must not be nested more than {limits.CLIENT_SECRET_SESSION_LEVELS} levels deep")
    if len(to_json(body.session)) > limits.CLIENT_SECRET_SESSION_BYTES:
        raise TooLarge(f"session may have {limits.CLIENT_SECRET_SESSION_BYTES} bytes.", param="session")
    return body


def effective_session(service: Service, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session as a connection with the secret begins it; raise InvalidRequest if there can be none."""
    sessions = service.sessions
    capabilities = sessions.offer.capabilities(sessions.offer.ready)
    usual = usual_session(sessions.offer.defaults, capabilities, served_name(capabilities.chat_model))
    try:
        session = updated(usual, asked, usual)
        configuration(session, sessions.offer.defaults, capabilities)
    except Wrong as error:
        raise InvalidRequest(str(error), param=error.param) from error
    return shown(session, f"sess_{secrets.token_hex(12)}")


def _deeper(value: object, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than that; without recursion, whatever is sent."""
    inside = [value]
    for _ in range(levels):
        holders = [one for one in inside if isinstance(one, dict | list)]
        inside = [item for one in holders for item in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in inside)

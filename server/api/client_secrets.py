"""POST /v1/realtime/client_secrets: a secret that a page or a phone may hold, for conversations set up beforehand.

It knows the order of things. How secrets are kept is the server's client_secrets.py, what a session may hold is the
dialect's: it checks the settings now, and reads them again when somebody connects.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from voxlane.server import limits
from voxlane.server.api.fields import RequestFields, wrong
from voxlane.server.audio.voices import served_name
from voxlane.server.errors import Draining, InvalidRequest, TooLarge
from voxlane.server.http.body import read_object
from voxlane.server.http.reply import json_response, to_json
from voxlane.server.protocols.openai_realtime.session import configuration, shown, usual_session
from voxlane.server.protocols.openai_realtime.update import updated
from voxlane.server.protocols.openai_realtime.values import Wrong
from voxlane.server.service import Service, service_of


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """What a client asks for."""

    session: Mapping[str, Any]  # as it came
    seconds: int


async def client_secrets(request: Request) -> Response:
    """Answer POST /v1/realtime/client_secrets."""
    service = service_of(request)
    if service.sessions.draining:
        raise Draining  # nobody could connect with it
    ask = parse(await read_object(request, service.config.limits))
    session = effective_session(service, ask.session)
    value, expires_at = service.sessions.secrets.issue(ask.session, ask.seconds)
    return json_response({"value": value, "expires_at": expires_at, "session": session})


def parse(body: Mapping[str, Any]) -> SecretRequest:
    """Return the request in `body`, or raise an error that names the parameter."""
    fields = RequestFields(body)
    seconds = _seconds(fields.take("expires_after"))
    session = fields.take("session")
    fields.refuse_the_rest(harmless=(), unsupported=())
    if session is None:
        session = {}
    if not isinstance(session, dict):
        raise wrong("session", "must be an object")
    if _deeper(session, limits.CLIENT_SECRET_SESSION_LEVELS):
        raise wrong("session", f"must not be nested more than {limits.CLIENT_SECRET_SESSION_LEVELS} levels deep")
    if len(to_json(session)) > limits.CLIENT_SECRET_SESSION_BYTES:
        raise TooLarge(f"session may have {limits.CLIENT_SECRET_SESSION_BYTES} bytes.", param="session")
    return SecretRequest(session, seconds)


def effective_session(service: Service, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the session as a connection with the secret begins it; raise InvalidRequest if there can be none."""
    sessions = service.sessions
    capabilities = sessions.capabilities(sessions.ready)
    usual = usual_session(sessions.defaults, capabilities, served_name(capabilities.chat_model))
    try:
        session = updated(usual, asked, usual)
        configuration(session, sessions.defaults, capabilities)
    except Wrong as error:
        raise InvalidRequest(str(error), param=error.param) from error
    return shown(session, f"sess_{secrets.token_hex(12)}")


def _seconds(value: Any) -> int:
    if value is None:
        return limits.CLIENT_SECRET_USUAL_SECONDS
    if not isinstance(value, dict):
        raise wrong("expires_after", "must be an object")
    fields = RequestFields({f"expires_after.{name}": given for name, given in value.items()})
    fields.choice("expires_after.anchor", ("created_at",))
    seconds = fields.whole("expires_after.seconds", *limits.CLIENT_SECRET_SECONDS)
    fields.refuse_the_rest(harmless=(), unsupported=())
    return limits.CLIENT_SECRET_USUAL_SECONDS if seconds is None else seconds


def _deeper(value: object, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than that; without recursion, whatever somebody sends."""
    inside = [value]
    for _ in range(levels):
        holders = [one for one in inside if isinstance(one, dict | list)]
        inside = [item for one in holders for item in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in inside)

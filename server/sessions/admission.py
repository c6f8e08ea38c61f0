"""Check the handshake of a WebSocket: origin, subprotocol, key or client secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket

from voxlane.server.auth import key_matches, offered_key, origin_allowed
from voxlane.server.errors import Forbidden, InvalidRequest, Unauthorized
from voxlane.server.protocols.dialect import Dialect
from voxlane.server.sessions.client_secrets import PREFIX as SECRET_PREFIX
from voxlane.server.sessions.registry import SessionRegistry


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of a handshake."""

    subprotocol: str | None  # the selected one
    keyed: bool  # False: the key must come with the hello
    session: Mapping[str, Any] | None = None  # the session of its client secret


def check_handshake(websocket: WebSocket, dialect: Dialect, registry: SessionRegistry, api_key: str) -> Admission:
    """Return the result of a handshake, or raise the error that refuses it before there is a connection."""
    headers, offered = websocket.headers, websocket.scope["subprotocols"]
    host, origin = headers.get("host", ""), headers.get("origin")
    if not origin_allowed(origin, host, registry.config.origins, with_key=bool(api_key)):
        raise Forbidden("Pages of this origin may not connect: see voice.origins.")
    if dialect.subprotocol_needed and dialect.subprotocol not in offered:
        raise InvalidRequest(f"The subprotocol {dialect.subprotocol} must be offered.")
    selected = dialect.subprotocol if dialect.subprotocol in offered else None
    key = offered_key(headers.get("authorization", ""), offered)
    says_hello = dialect.opening is None
    if key is not None and key.startswith(SECRET_PREFIX) and not says_hello:
        session = registry.secrets.redeem(key)
        if session is None:  # refused even on an open server: the client expects its session
            raise Unauthorized("The client secret is unknown or has expired: have another one made.")
        return Admission(selected, keyed=True, session=session)
    if not api_key:
        return Admission(selected, keyed=True)
    if key is None and says_hello:  # the key may come with the hello
        return Admission(selected, keyed=False)
    if key is None or not key_matches(key, api_key):
        raise Unauthorized
    return Admission(selected, keyed=True)

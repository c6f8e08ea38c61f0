"""Check the handshake of a WebSocket: origin, subprotocol, key or client secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from starlette.websockets import WebSocket

from voxlane.server.errors import InvalidRequest, Unauthorized, UnsupportedParameter
from voxlane.server.http.auth import offered_key, origin_allowed, refused_origin
from voxlane.server.protocols.dialect import Dialect
from voxlane.server.sessions.client_secrets import PREFIX as SECRET_PREFIX
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.tenants.accounts import Account, Tenants


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of a handshake."""

    subprotocol: str | None  # the selected one
    account: Account | None  # None: the key must come with the hello
    session: Mapping[str, Any] | None = None  # the session of its client secret
    stale: bool = False  # its client secret is not valid: it can resume a conversation, and nothing else
    may_begin: bool = True  # there was room for a new conversation; else it came to resume one


def check_handshake(websocket: WebSocket, dialect: Dialect, registry: SessionRegistry, tenants: Tenants) -> Admission:
    """Return the result of a handshake, or raise the error that refuses it before there is a connection."""
    headers, offered = websocket.headers, websocket.scope["subprotocols"]
    host, origin = headers.get("host", ""), headers.get("origin")
    if not origin_allowed(origin, host, registry.config.origins, with_key=tenants.key_needed):
        raise refused_origin(origin)
    if dialect.subprotocol_needed and dialect.subprotocol not in offered:
        raise InvalidRequest(f"The subprotocol {dialect.subprotocol} must be offered.")
    if dialect.opening is not None and "call_id" in websocket.query_params:
        raise UnsupportedParameter(
            "call_id: a second connection cannot join a call; its events come on the connection of its sound.",
            param="call_id",
        )
    selected = dialect.subprotocol if dialect.subprotocol in offered else None
    key = offered_key(headers.get("authorization", ""), offered)
    if key is None and dialect.opening is None:
        # The key may come with the hello; on an open server a client secret may.
        return Admission(selected, None if tenants.key_needed else tenants.default)
    if dialect.opening is None and is_secret(key) and registry.secrets.redeem(key) is None:
        return Admission(selected, None, stale=True)
    account, session = admitted(key, registry, tenants)
    if dialect.opening is not None:  # the others may resume a conversation that has its place already
        account.check_room()
    return Admission(selected, account, session)


def is_secret(key: str | None) -> TypeGuard[str]:
    """Return whether a key is a client secret, valid or not."""
    return key is not None and key.startswith(SECRET_PREFIX)


def stale_secret() -> Unauthorized:
    """Return the error for a client secret that opens nothing."""
    return Unauthorized("The client secret is unknown or has expired: have another one made.")


def admitted(key: str | None, registry: SessionRegistry, tenants: Tenants) -> tuple[Account, Mapping[str, Any] | None]:
    """Return the tenant of a client by its key or its client secret, and the session of the latter."""
    if is_secret(key):
        grant = registry.secrets.redeem(key)
        if grant is None:  # refused even on an open server: the client expects its session
            raise stale_secret()
        return grant.account, grant.session
    return tenants.admit(key), None

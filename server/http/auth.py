"""Finds the key in a handshake; checks the origins and hosts that browsers send, and logs those that it refuses.

tenants/ knows the keys.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from voxlane.server.errors import Forbidden
from voxlane.server.log import line

logger = logging.getLogger(__name__)

KEY_SUBPROTOCOLS = ("voxlane.key.", "openai-insecure-api-key.")
"""Prefixes of a subprotocol that carries a key, since browsers cannot set WebSocket headers. It is never selected."""


def offered_key(authorization: str, subprotocols: Sequence[str]) -> str | None:
    """Return the key in a handshake, None if there is none."""
    if authorization:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else authorization
    keys = (name.removeprefix(way) for name in subprotocols for way in KEY_SUBPROTOCOLS if name.startswith(way))
    return next(keys, None)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def origin_allowed(origin: str | None, host: str, allowed: Collection[str], *, with_key: bool) -> bool:
    """Return whether a page of this origin may open a connection to this host.

    Only browsers send an origin, and they always do: without one the request does not come from a web page. A page at
    our own address is ours. But an attacker can make a domain name point to this machine (DNS rebinding): without a
    key only loopback names and IP addresses count as our own.
    """
    if origin is None or origin in allowed:
        return True
    scheme, _, address = origin.partition("://")
    name = _hostname(address)
    if scheme not in ("http", "https") or not name:
        return False
    if address.lower() == host.lower() and (with_key or is_address(name)):
        return True
    return is_loopback(name) and is_loopback(_hostname(host))


def refused_origin(origin: str | None) -> Forbidden:
    """Return the error for a page of an origin that is not allowed; the log names the origin and the setting."""
    logger.warning(line("origin_refused", origin=origin, setting="voice.origins"))
    return Forbidden("Pages of this origin are not allowed here: the server's log names it; see voice.origins.")


def host_allowed(host: str, allowed: Collection[str]) -> bool:
    """Return whether `host` is a name of a server that only this machine can reach.

    After DNS rebinding, the browser takes the attacker's page to be of our origin; only the host name shows the
    difference. The hosts of allowed origins are allowed, too.
    """
    name = _hostname(host)
    pages = (_hostname(page.partition("://")[2]) for page in allowed)
    # Names under .internal cannot be registered: containers use them for the machine they run on.
    own = is_loopback(name) or is_address(name) or name.endswith(".internal")
    return own or (bool(name) and name in pages)


def _hostname(address: str) -> str:
    """Return the host of `host:port` in lower case, "" if it is not valid."""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:  # unbalanced brackets
        return ""

"""Who may come in: keys, and the pages that may speak for a visitor. It knows headers and hosts, not endpoints."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

KEY_SUBPROTOCOLS = ("voxlane.key.", "openai-insecure-api-key.")
"""A browser cannot set headers on a WebSocket: it may offer its key as a subprotocol, which is never selected."""


def key_matches(given: str, api_key: str) -> bool:
    """Return whether a key is the right one; how long that takes does not tell how much of it is right."""
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), api_key.encode())


def offered_key(authorization: str, subprotocols: Sequence[str]) -> str | None:
    """Return the key that a handshake carries, if it carries one."""
    if authorization:
        scheme, _, key = authorization.partition(" ")
        return key.strip() if scheme.lower() == "bearer" else authorization
    keys = (name.removeprefix(way) for name in subprotocols for way in KEY_SUBPROTOCOLS if name.startswith(way))
    return next(keys, None)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Return whether a host is an address in figures."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def origin_allowed(origin: str | None, host: str, allowed: Collection[str], *, with_key: bool) -> bool:
    """Return whether a page of this origin may open a connection to this host.

    Only browsers send an origin, and they always do: without one there is no visitor to be spoken for. A page of our
    own address is ours, but a name that somebody made point to this machine is not our address: where no key is asked
    for, only this machine's own names count, and addresses in figures, which nobody can make point elsewhere.
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


def host_allowed(host: str, allowed: Collection[str]) -> bool:
    """Return whether a server that only this machine can reach goes by this name.

    A page whose name was made to point to this machine is of the same origin as we are, to its browser: only the name
    gives it away. Pages that may connect are allowed with their own names.
    """
    name = _hostname(host)
    pages = (_hostname(page.partition("://")[2]) for page in allowed)
    # Nobody can register a name under .internal: it is what containers call the machine they run on.
    own = is_loopback(name) or is_address(name) or name.endswith(".internal")
    return own or (bool(name) and name in pages)


def _hostname(address: str) -> str:
    """Return the host of `host:port` in small letters, "" if it is none."""
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:  # a bracket too many
        return ""

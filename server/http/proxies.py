"""Who a request really comes from, where a trusted reverse proxy brings it. Pure.

Each proxy appends the address of its peer to X-Forwarded-For, so the list is read from its right end: the first address
that is not a trusted proxy's is the client's, and everything to the left of it is the client's own claim. The headers
of a peer that is not trusted are ignored.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from voxlane.server import limits
from voxlane.server.config import Network, networks_of

FORWARDED = "voxlane.forwarded"
"""Key of a scope: true if its client's address is one that a trusted proxy tells."""

_SECURE = {"https": True, "wss": True, "http": False, "ws": False}
_SCHEMES = {("http", True): "https", ("http", False): "http", ("websocket", True): "wss", ("websocket", False): "ws"}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """ASGI middleware that puts the client's address and scheme into the scope in the place of the proxy's."""

    def __init__(self, app: ASGIApp, proxies: Iterable[str]) -> None:
        self._app = app
        self._networks = networks_of(proxies, "server.trusted_proxies")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if self._networks and scope["type"] in ("http", "websocket") and scope.get("client"):
            self._correct(scope)
        await self._app(scope, receive, send)

    def _correct(self, scope: Scope) -> None:
        peer = address_of(scope["client"][0])
        if peer is None or not is_trusted(peer, self._networks):
            return
        client = client_address(peer, _values(scope, b"x-forwarded-for"), self._networks)
        if client != peer:
            scope["client"] = str(client), 0  # the port is not known
            scope[FORWARDED] = True
        told = _values(scope, b"x-forwarded-proto")
        secure = _SECURE.get(told[-1].strip().lower()) if told else None
        if secure is not None:
            scope["scheme"] = _SCHEMES[scope["type"], secure]


def client_address(peer: Address, hops: Sequence[str], trusted: Sequence[Network]) -> Address:
    """Return the address of the client behind a trusted peer; `hops` is the list of X-Forwarded-For."""
    last = peer
    for hop in hops[: -limits.FORWARDED_HOPS - 1 : -1]:
        address = address_of(hop)
        if address is None:  # the proxy does not know: so far the chain is known
            return last
        last = address
        if not is_trusted(address, trusted):
            break
    return last


def address_of(text: str) -> Address | None:
    """Return an address, without its port and zone; None if there is none. An IPv4 address in an IPv6 one is itself."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_trusted(address: Address, trusted: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    return any(address in network for network in trusted)


def _values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header that may be a list and may be repeated; only those at its end are looked at."""
    joined = b",".join(value for header, value in scope["headers"] if header == name)
    parts = joined.rsplit(b",", limits.FORWARDED_HOPS + 1)
    return [part.decode("latin-1") for part in parts] if joined else []

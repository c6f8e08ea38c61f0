"""Decides which calls and which requests of telephone systems are served, before any of their sound is read.

A call shows one of these: its system's signature on its handshake; a one-time pass or the phone key, in the
handshake or with its start. A request for a document shows the signature of its system, or the phone key. On a server
that has no key at all and is not reachable from outside, neither needs anything.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.requests import HTTPConnection

from voxlane.server.config import Config, PhoneKeys, phone_networks
from voxlane.server.errors import Forbidden, InvalidRequest, Unauthorized
from voxlane.server.http.auth import host_allowed, is_loopback, origin_allowed
from voxlane.server.phone.passes import NextSteps, Passes, SeenSignatures
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.protocols.phone.signing import Pairs, SignedRequest, Signing, bearer, same_text
from voxlane.server.protocols.phone.system import PHONE_ADDRESS
from voxlane.server.protocols.phone.systems import SYSTEMS
from voxlane.server.tenants.accounts import Account, Tenants

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class LineAdmission:
    """The result of a handshake."""

    keyed: bool  # False: the token must come with the start of the call
    open: bool = False  # nothing is asked for: a token that comes all the same may be any
    known: CallFacts | None = None  # what the pass in the handshake says about the call
    account: Account | None = None  # the tenant whose API key the handshake has


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A telephone system's request for a document, as it was received."""

    connection: HTTPConnection
    method: str
    form: Pairs = ()  # the fields of a form
    body: bytes = b""  # all of the body, whatever it is


class PhoneAdmission:
    """The checks of one server."""

    def __init__(
        self,
        config: Config,
        keys: PhoneKeys,
        tenants: Tenants,
        passes: Passes,
        next_steps: NextSteps,
        clock: Callable[[], float] = time.time,
        seen: SeenSignatures | None = None,
    ) -> None:
        self._config = config
        self._keys = keys
        self._tenants = tenants
        self._clock = clock  # seconds since 1970: signatures hold such times
        self._networks = phone_networks(config.phone.sources)
        self._seen = seen or SeenSignatures()
        self.passes = passes
        self.next_steps = next_steps

    # ---- calls

    def check_handshake(self, connection: HTTPConnection) -> LineAdmission:
        """Return the result of a WebSocket's handshake, or raise the error that refuses it."""
        self.check_source(_address(connection))
        self._check_origin(connection)
        if self._is_signed_handshake(connection):
            return LineAdmission(keyed=True)
        is_open = self.is_open(connection)
        token = _offered_token(connection)
        if not token:
            return LineAdmission(keyed=is_open, open=is_open)
        known = self.passes.redeem(token)
        account = self._account(connection)
        if known is None and not is_open and not self._is_phone_key(token) and account is None:
            raise Unauthorized("The pass or the key of this call is wrong: see VOXLANE_PHONE_KEY.")
        return LineAdmission(keyed=True, open=is_open, known=known, account=account)

    def check_start(self, admission: LineAdmission, facts: CallFacts) -> CallFacts:
        """Return the facts of a call that begins, with what its pass says; raise Unauthorized if it may not begin."""
        known = admission.known
        if known is None and facts.token:
            known = self.passes.redeem(facts.token)
            if known is None and not admission.open and not self._is_phone_key(facts.token):
                raise Unauthorized("The pass of this call is unknown, was used before or has expired.")
        elif not admission.keyed and known is None:
            raise Unauthorized("The call has no token: see VOXLANE_PHONE_KEY.")
        return _completed(replace(facts, token=""), known)

    def check_audiosocket(self, address: str) -> LineAdmission:
        """Return the result for an AudioSocket, which knows no keys: its address alone decides."""
        self.check_source(address)
        return LineAdmission(keyed=True, open=True)

    def check_source(self, address: str) -> None:
        """Raise Forbidden for an address that calls may not come from."""
        if not self._networks:
            return
        try:
            source = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            source = None
        if isinstance(source, ipaddress.IPv6Address) and source.ipv4_mapped is not None:
            source = source.ipv4_mapped
        if source is None or not any(source in network for network in self._networks):
            raise Forbidden("Calls may not come from this address: see phone.sources.")

    def _check_origin(self, connection: HTTPConnection) -> None:
        """Raise Forbidden for a web page of another site; telephone systems send no origin."""
        headers = connection.headers
        allowed = self._config.voice.origins
        if not origin_allowed(headers.get("origin"), headers.get("host", ""), allowed, with_key=self._is_protected):
            raise Forbidden("Pages of this origin may not connect: see voice.origins.")

    def _is_signed_handshake(self, connection: HTTPConnection) -> bool:
        """Return whether a system has signed the handshake; raise an error if it should have."""
        handshake = self._as_signed(connection, "GET", self.stream_url(connection))
        for system in SYSTEMS.values():
            signing, key = system.handshakes, self._keys.systems.get(system.name, "")
            if signing and key and signing.shown(handshake.headers):
                if signing.with_phone_key and not self._is_phone_key(handshake.headers.get("x-api-key", "")):
                    raise Unauthorized("The API key of the handshake is wrong: see VOXLANE_PHONE_KEY.")
                mark = signing.mark(key, handshake, self._clock())
                if not mark or (signing.once and not self._seen.is_first(f"{system.name} {mark}")):
                    raise Forbidden("The signature of the handshake is wrong or was used before: see phone.public_url.")
                return True
        return False

    # ---- requests for documents

    def check_unread(self, system: str, connection: HTTPConnection) -> None:
        """Raise Forbidden for a request that shows nothing at all, before its body is read."""
        query = connection.query_params
        shown = self._signing(system, connection) or query.get("token") or query.get("ticket")
        if not shown and not self.is_open(connection):
            raise Forbidden("The request is not signed, and it has no token: see phone.public_url.")

    def check_request(self, system: str, request: WebhookRequest, call_id: str = "") -> None:
        """Raise Forbidden for a request that is not the system's own, or that was served before.

        `call_id` is the call that has ended, where the request asks what follows.
        """
        connection = request.connection
        signing = self._signing(system, connection)
        if signing is not None:
            url = self._url(connection, connection.scope["path"])
            signed = self._as_signed(connection, request.method, url, request.form, request.body)
            mark = signing.mark(self._keys.systems[system], signed, self._clock())
            if not mark:
                raise Forbidden("The signature of the request is wrong: see phone.public_url.")
            if not self._seen.is_first(f"{system} {mark}"):
                raise Forbidden("The request was served before.")
            return
        query = connection.query_params
        token, ticket = query.get("token", ""), query.get("ticket", "")
        if token and self._is_phone_key(token):
            return
        if ticket and call_id and same_text(ticket, self.next_steps.ticket(call_id)):
            return
        if not self.is_open(connection):
            raise Forbidden("The request is not signed, and its token is wrong: see VOXLANE_PHONE_KEY.")

    def _signing(self, system: str, connection: HTTPConnection) -> Signing | None:
        """Return how a request is signed; None if it is not, or we have no key to check it."""
        known = SYSTEMS[system].requests if self._keys.systems.get(system) else None
        return known if known is not None and known.shown(connection.headers) else None

    def _as_signed(
        self, connection: HTTPConnection, method: str, url: str, form: Pairs = (), body: bytes = b""
    ) -> SignedRequest:
        """Return a request with its query as a system may have signed it."""
        query = connection.scope.get("query_string", b"").decode("latin-1")
        # Repeated headers are joined, as HTTP message signatures have them.
        headers = {name: ", ".join(map(str.strip, connection.headers.getlist(name))) for name in connection.headers}
        pairs = connection.query_params.multi_items()
        return SignedRequest(method, f"{url}?{query}" if query else url, headers, pairs, form, body)

    # ---- addresses

    def stream_url(self, connection: HTTPConnection) -> str:
        """Return the address of calls for a telephone system, as wss://example.org/v1/phone."""
        return "ws" + self._url(connection, PHONE_ADDRESS).removeprefix("http")

    def next_url(self, connection: HTTPConnection, path: str, call_id: str) -> str:
        """Return the address where a telephone system asks what follows after a call."""
        return f"{self._url(connection, path)}?ticket={self.next_steps.ticket(call_id)}"

    def _url(self, connection: HTTPConnection, path: str) -> str:
        """Return the address of a path as telephone systems know it; without phone.public_url, as this one asked."""
        if self._config.phone.public_url:
            return self._config.phone.public_url.rstrip("/") + path
        host = connection.headers.get("host", "")
        if not _HOST.fullmatch(host):
            raise InvalidRequest("The request's Host header is missing or wrong.")
        secure = connection.scope.get("scheme") in ("https", "wss")
        return f"{'https' if secure else 'http'}://{host}{path}"

    # ---- keys

    @property
    def _is_protected(self) -> bool:
        return self._tenants.key_needed or bool(self._keys)

    def is_open(self, connection: HTTPConnection) -> bool:
        """Return whether nothing is asked for: there is no key, and only this machine, or every one, may connect."""
        if self._is_protected:
            return False
        # A tunnel or a proxy on this machine may bring requests from anywhere: the host that they ask for tells it.
        host = connection.headers.get("host", "")
        local = is_loopback(_address(connection)) and host_allowed(host, self._config.voice.origins)
        local = local and not self._config.phone.public_url
        return local or self._config.server.open

    def _is_phone_key(self, token: str) -> bool:
        return bool(self._keys.phone) and same_text(token, self._keys.phone)

    def _account(self, connection: HTTPConnection) -> Account | None:
        """Return the tenant of an API key, which is only taken where every other client sends it."""
        return self._tenants.find(bearer(connection.headers))


def _completed(facts: CallFacts, known: CallFacts | None) -> CallFacts:
    """Return facts with those of the pass, which came in a checked request."""
    if known is None:
        return facts
    return replace(
        facts,
        call_id=known.call_id or facts.call_id,
        caller=known.caller or facts.caller,
        called=known.called or facts.called,
    )


def _offered_token(connection: HTTPConnection) -> str:
    """Return the token of a handshake: a bearer token, a password, an API key or `token` in the query; "" if none."""
    headers = connection.headers
    password = _password(headers.get("authorization", ""))
    return bearer(headers) or password or headers.get("x-api-key", "") or connection.query_params.get("token", "")


def _password(authorization: str) -> str:
    """Return the password of basic authentication, which Asterisk and jambonz can send; "" if there is none."""
    scheme, _, pair = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(pair.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        return ""


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client is not None else "-"

"""Decides which calls and which requests of telephone systems are served, before any of their sound is read.

A call shows one of these: Twilio's or Genesys' signature on its handshake; a one-time pass or the phone key, in the
handshake or with its start. A request for a document shows the signature of its system, or the phone key. On a server
that has no key at all and is not reachable from outside, neither needs anything.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from voxlane.codecs.extras import install_command
from voxlane.server.auth import host_allowed, is_loopback, origin_allowed
from voxlane.server.config import PHONE_KEY_VARIABLES, Config, PhoneKeys, phone_networks
from voxlane.server.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized
from voxlane.server.phone.passes import NextSteps, Passes, SeenSignatures
from voxlane.server.phone.signatures import (
    CryptographyMissing,
    Pairs,
    check_cryptography,
    genesys_nonce,
    genesys_secret_is_usable,
    plivo_signed,
    same_text,
    telnyx_key,
    telnyx_signed,
    twilio_signed,
    vonage_signed,
)
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.tenants.accounts import Account, Tenants

PHONE_ADDRESS = "/v1/phone"
"""Where telephone systems connect their calls."""

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PLIVO_NONCE = "x-plivo-signature-v3-nonce"
_TWILIO_SIGNATURES = ("x-twilio-signature", "x-signalwire-signature")


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
        if self._signed_by_twilio(connection) or self._signed_by_genesys(connection):
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

    def _signed_by_twilio(self, connection: HTTPConnection) -> bool:
        """Return whether Twilio has signed the handshake; raise Forbidden if the signature is wrong."""
        signature = _first(connection.headers, _TWILIO_SIGNATURES)
        if not signature or not self._keys.twilio:
            return False
        # Twilio drops the query of a stream's URL before it signs and connects.
        url, settings = self.stream_url(connection), _twilio_settings(connection.headers)
        if not twilio_signed(self._keys.twilio, url, signature, settings=settings):
            raise Forbidden("The signature of the handshake is wrong: see phone.public_url.")
        return True

    def _signed_by_genesys(self, connection: HTTPConnection) -> bool:
        """Return whether Genesys has signed the handshake; raise an error if it should have."""
        headers = _joined(connection)
        if not self._keys.genesys or "audiohook-session-id" not in headers:
            return False
        if not self._is_phone_key(headers.get("x-api-key", "")):
            raise Unauthorized("The API key of the handshake is wrong: see VOXLANE_PHONE_KEY.")
        split = urlsplit(self._url(connection, connection.scope["path"]))
        query = _query(connection)
        target = f"{split.path}?{query}" if query else split.path
        nonce = genesys_nonce(self._keys.genesys, headers, target, split.netloc, self._clock())
        if not nonce or not self._seen.is_first(f"genesys {nonce}"):
            raise Forbidden("The signature of the handshake is wrong or was used before: see phone.public_url.")
        return True

    # ---- requests for documents

    def check_unread(self, system: str, connection: HTTPConnection) -> None:
        """Raise Forbidden for a request that shows nothing at all, before its body is read."""
        query = connection.query_params
        shown = self._signature_of(system, connection.headers) or query.get("token") or query.get("ticket")
        if not shown and not self.is_open(connection):
            raise Forbidden("The request is not signed, and it has no token: see phone.public_url.")

    def check_request(self, system: str, request: WebhookRequest, call_id: str = "") -> None:
        """Raise Forbidden for a request that is not the system's own, or that was served before.

        `call_id` is the call that has ended, where the request asks what follows.
        """
        connection = request.connection
        signature = self._signature_of(system, connection.headers)
        if signature:
            if not self._is_signed(system, signature, request):
                raise Forbidden("The signature of the request is wrong: see phone.public_url.")
            # Plivo's header may hold other signatures beside the right one; its nonce is signed, and there is one.
            mark = connection.headers.get(_PLIVO_NONCE, "") if system == "plivo" else signature
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

    def _signature_of(self, system: str, headers: Mapping[str, str]) -> str:
        """Return the signature on a request, "" if there is none or we have no key to check it."""
        match system:
            case "twilio" if self._keys.twilio:
                return _first(headers, _TWILIO_SIGNATURES)
            case "telnyx" if self._keys.telnyx:
                return headers.get("telnyx-signature-ed25519", "")
            case "plivo" if self._keys.plivo:
                return headers.get("x-plivo-signature-v3", "")
            case "vonage" if self._keys.vonage:
                return _bearer(headers)
        return ""

    def _is_signed(self, system: str, signature: str, request: WebhookRequest) -> bool:
        connection, keys = request.connection, self._keys
        headers, query = connection.headers, _query(connection)
        url = self._url(connection, connection.scope["path"]) + (f"?{query}" if query else "")
        match system:
            case "twilio":
                body = b"" if request.form else request.body
                settings = _twilio_settings(headers)
                return twilio_signed(keys.twilio, url, signature, request.form, body=body, settings=settings)
            case "telnyx":
                sent_at = headers.get("telnyx-timestamp", "")
                return telnyx_signed(keys.telnyx, sent_at, signature, request.body, self._clock())
            case "plivo":
                nonce = headers.get(_PLIVO_NONCE, "")
                return plivo_signed(keys.plivo, request.method, url, nonce, signature, request.form)
            case _:
                pairs = connection.query_params.multi_items()
                return vonage_signed(keys.vonage, signature, self._clock(), body=request.body, query=pairs)

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
        return self._tenants.find(_bearer(connection.headers))


def check_keys(config: Config, keys: PhoneKeys, tenants: Tenants) -> None:
    """Raise ConfigError for telephone keys that cannot be used, or that do not go with the configuration."""
    public_url = config.phone.public_url
    for name in ("twilio", "telnyx", "plivo", "vonage"):
        if getattr(keys, name) and not public_url:
            raise ConfigError(f"phone.public_url must be given with {PHONE_KEY_VARIABLES[name]}")
    if public_url and not keys and not tenants.key_needed and not config.server.open:
        names = ", ".join(PHONE_KEY_VARIABLES.values())
        raise ConfigError(f"phone.public_url is given: one of {names} must be set, or anybody could ring")
    if keys.telnyx:
        variable = PHONE_KEY_VARIABLES["telnyx"]
        try:
            telnyx_key(keys.telnyx)
            check_cryptography()
        except ValueError as error:
            raise ConfigError(f"{variable}: the public key is the base64 of 32 bytes, as Telnyx shows it") from error
        except CryptographyMissing as error:
            raise ConfigError(f"{variable} needs the package cryptography: {install_command('phone')}") from error
    if keys.genesys and not genesys_secret_is_usable(keys.genesys):
        raise ConfigError(f"{PHONE_KEY_VARIABLES['genesys']}: the client secret is base64, as Genesys has it")
    if keys.genesys and not keys.phone:
        raise ConfigError(
            f"{PHONE_KEY_VARIABLES['genesys']} needs {PHONE_KEY_VARIABLES['phone']}: the API key that Genesys sends"
        )


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
    return _bearer(headers) or password or headers.get("x-api-key", "") or connection.query_params.get("token", "")


def _bearer(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _password(authorization: str) -> str:
    """Return the password of basic authentication, which Asterisk and jambonz can send; "" if there is none."""
    scheme, _, pair = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(pair.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        return ""


def _twilio_settings(headers: Mapping[str, str]) -> str:
    return headers.get("x-twilio-webhooks-signature-settings", "")


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


def _joined(connection: HTTPConnection) -> dict[str, str]:
    """Return the headers in lower case, repeated ones joined, as HTTP message signatures have them."""
    return {name: ", ".join(map(str.strip, connection.headers.getlist(name))) for name in connection.headers}


def _query(connection: HTTPConnection) -> str:
    query: bytes = connection.scope.get("query_string", b"")
    return query.decode("latin-1")


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client is not None else "-"

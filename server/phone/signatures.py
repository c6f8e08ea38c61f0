"""Checks the signatures that telephone systems put on their requests. Pure: the clock is an argument.

Each check compares in constant time and accepts one spelling of a signature only, so that a request which was seen
before can be recognised by it. The URL of a signature is the one that the telephone system was told: see
phone.public_url.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlsplit

Pairs = Sequence[tuple[str, str]]
"""The fields of a form or of a query, in order."""

SIGNED_SECONDS = 300.0
"""How old a signed time may be, and how far ahead of our clock."""

NONCE_CHARACTERS = 22
"""Shortest nonce of a Genesys handshake: 128 bits as base64."""

_STANDARD_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_TWILIO_HASHES: Mapping[str, Callable[..., Any]] = {"HMAC_SHA1": hashlib.sha1, "HMAC_SHA256": hashlib.sha256}
_GENESYS_COVERED = frozenset(
    {
        "@request-target", "@authority", "audiohook-organization-id", "audiohook-session-id",
        "audiohook-correlation-id", "x-api-key",
    }
)  # fmt: skip
_PARAMETER = r';([a-z]+)=(?:"([^"\\]*)"|([0-9]{1,15}))'
_SIGNATURE_INPUT = re.compile(
    r'(?P<label>[a-z*][a-z0-9_.*-]*)=(?P<signed>\((?P<names>"[a-z@-]+"(?: "[a-z@-]+")*)\)'
    r'(?P<parameters>(?:;[a-z]+=(?:"[^"\\]*"|[0-9]{1,15}))*))'
)


class CryptographyMissing(Exception):
    """Ed25519 signatures need the package `cryptography`: pip install "voxlane[phone]"."""


def same_text(given: str, right: str) -> bool:
    """Return whether two texts are the same; it takes the same time for every wrong one."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))


# ---- Twilio, and SignalWire


def twilio_signed(
    token: str, url: str, signature: str, form: Pairs = (), *, body: bytes = b"", settings: str = ""
) -> bool:
    """Return whether Twilio has signed a request: its URL and form, or the body whose hash is in the URL.

    A WebSocket handshake has neither form nor body. `settings` is the header X-Twilio-Webhooks-Signature-Settings.
    """
    algorithm = _TWILIO_HASHES.get(_twilio_algorithm(settings))
    if algorithm is None or (body and not _hash_in_url(url, body)):
        return False
    fields = "".join(name + value for name, value in sorted(set(form)))
    found = False
    for spelled in _spellings(url):  # every one is computed: the time does not tell which one is right
        found |= same_text(signature, _mac(token, spelled + fields, algorithm))
    return found


def _twilio_algorithm(settings: str) -> str:
    for part in settings.split(","):
        name, _, value = part.partition("=")
        if name.strip() == "algorithm" and value.strip():
            return value.strip().upper()
    return "HMAC_SHA1"


def _hash_in_url(url: str, body: bytes) -> bool:
    given = parse_qs(urlsplit(url).query).get("bodySHA256", [""])
    return same_text(given[0].lower(), hashlib.sha256(body).hexdigest())


def _spellings(url: str) -> list[str]:
    """Return a URL with and without the standard port of its scheme: Twilio signs either."""
    split = urlsplit(url)
    port = f":{_STANDARD_PORTS.get(split.scheme, 0)}"
    if split.port is None:
        return [url, _at(split, split.netloc + port)]
    return [url, _at(split, split.netloc.removesuffix(port))]


def _at(split: SplitResult, netloc: str) -> str:
    return split._replace(netloc=netloc).geturl()


def _mac(key: str, text: str, algorithm: Callable[..., Any]) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode("utf-8", "surrogatepass"), algorithm).digest()).decode()


# ---- Telnyx


def telnyx_signed(public_key: str, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """Return whether Telnyx has signed a request at about this time."""
    signed = _canonical_base64(signature)
    if signed is None or not _is_number(timestamp) or not _is_recent(int(timestamp), now):
        return False
    return _ed25519_verifies(telnyx_key(public_key), signed, timestamp.encode() + b"|" + body)


def telnyx_key(public_key: str) -> bytes:
    """Return Telnyx' public key; raise ValueError if it is none."""
    key = _canonical_base64(public_key)
    if key is None or len(key) != 32:
        raise ValueError("not a public key")
    return key


def check_cryptography() -> None:
    """Raise CryptographyMissing if Ed25519 signatures cannot be checked."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise CryptographyMissing from error


def _ed25519_verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    check_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _canonical_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text, None if it is none or another text stands for the same bytes."""
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one, as is the error for text outside of ASCII
        return None
    return found if base64.b64encode(found).decode() == text else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def _is_recent(signed_at: float, now: float) -> bool:
    return abs(now - signed_at) <= SIGNED_SECONDS


# ---- Plivo


def plivo_signed(token: str, method: str, url: str, nonce: str, signatures: str, form: Pairs = ()) -> bool:
    """Return whether Plivo has signed a request in its version 3; the header may hold several signatures."""
    if not nonce:
        return False
    right = _mac(token, f"{_plivo_text(method, url, form)}.{nonce}", hashlib.sha256)
    found = False
    for one in signatures.split(","):
        found |= same_text(one.strip(), right)
    return found


def _plivo_text(method: str, url: str, form: Pairs) -> str:
    """Return what Plivo signs: the URL with its query in order, and the form's fields in order behind it."""
    split = urlsplit(url)
    bare = split._replace(query="", fragment="").geturl()
    query = parse_qsl(split.query, keep_blank_values=True)
    if method.upper() == "GET":
        query, form = [*query, *form], ()
    ordered = "&".join(f"{name}={value}" for name, value in sorted(query))
    fields = "".join(name + value for name, value in sorted(form))
    if not ordered and not fields:
        return bare
    return f"{bare}?{ordered}{'.' if ordered and fields else ''}{fields}"


# ---- Vonage


def vonage_signed(secret: str, token: str, now: float, *, body: bytes = b"", query: Pairs = ()) -> bool:
    """Return whether a JSON Web Token is Vonage's, of about this time, and for this body or query."""
    signed, _, signature = token.rpartition(".")
    mac = hmac.new(secret.encode(), signed.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
    if not same_text(signature, base64.urlsafe_b64encode(mac).rstrip(b"=").decode()):
        return False
    head, _, payload = signed.partition(".")
    header, claims = _json_part(head), _json_part(payload)
    if header.get("alg") != "HS256" or not _is_recent(_seconds(claims.get("iat")), now):
        return False
    if "exp" in claims and _seconds(claims["exp"]) < now:
        return False
    return _payload_matches(claims.get("payload_hash"), body, query)


def _payload_matches(given: object, body: bytes, query: Pairs) -> bool:
    """Return whether the hash in a token is that of the body; without a body, of the query as JSON, or of nothing."""
    if given is None:
        return not body
    as_json = json.dumps(dict(query), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    contents = (body,) if body else (as_json, b"")
    return isinstance(given, str) and any(
        same_text(given.lower(), hashlib.sha256(content).hexdigest()) for content in contents
    )


def _json_part(part: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(value: object) -> float:
    """Return a time of a token, minus infinity if it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else float("-inf")


# ---- Genesys AudioHook


def genesys_nonce(secret: str, headers: Mapping[str, str], request_target: str, authority: str, now: float) -> str:
    """Return the nonce of a handshake that Genesys has signed with the client secret, "" if it has not.

    `headers` have lower-case names. This is an HTTP message signature as AudioHook uses it: one, with HMAC-SHA256, over
    the six components that AudioHook names.
    """
    found = _SIGNATURE_INPUT.fullmatch(headers.get("signature-input", "").strip())
    key = _canonical_base64(secret)
    if found is None or not key:
        return ""
    names = found["names"].replace('"', "").split(" ")
    parameters = {name: text or digits for name, text, digits in re.findall(_PARAMETER, found["parameters"])}
    if not _genesys_parameters_fit(parameters, headers, now) or not set(names) >= _GENESYS_COVERED:
        return ""
    derived = {"@request-target": request_target, "@authority": authority}
    values = [derived.get(name, headers.get(name)) for name in names]
    if None in values:
        return ""
    lines = [f'"{name}": {str(value).strip()}' for name, value in zip(names, values, strict=True)]
    text = "\n".join([*lines, f'"@signature-params": {found["signed"]}'])
    mac = base64.b64encode(hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()).decode()
    right = f"{found['label']}=:{mac}:"
    return parameters["nonce"] if same_text(headers.get("signature", "").strip(), right) else ""


def _genesys_parameters_fit(parameters: Mapping[str, str], headers: Mapping[str, str], now: float) -> bool:
    created, expires = parameters.get("created", ""), parameters.get("expires", "")
    return (
        parameters.get("alg", "hmac-sha256") == "hmac-sha256"
        and len(parameters.get("nonce", "")) >= NONCE_CHARACTERS
        and same_text(parameters.get("keyid", ""), headers.get("x-api-key", ""))
        and _is_number(created)
        and _is_recent(int(created), now)
        and (not expires or (_is_number(expires) and int(expires) >= now))
    )


def genesys_secret_is_usable(secret: str) -> bool:
    """Return whether a client secret is base64, as Genesys has it."""
    return bool(_canonical_base64(secret))

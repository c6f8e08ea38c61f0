"""What the signatures of telephone systems share. Pure: the clock is an argument.

Each check compares in constant time and accepts one spelling of a signature only, so that a request which was seen
before can be recognised by it. The URL of a signature is the one that the telephone system was told: see
phone.public_url.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Pairs = Sequence[tuple[str, str]]
"""The fields of a form or of a query, in order."""

SIGNED_SECONDS = 300.0
"""How old a signed time may be, and how far ahead of our clock."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as a system may have signed it."""

    method: str
    url: str  # as the system was told it, with its query
    headers: Mapping[str, str]  # by names in lower case, repeated ones joined
    query: Pairs = ()
    form: Pairs = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Signing:
    """How a system signs its requests for documents, or its handshakes."""

    shown: Callable[[Mapping[str, str]], str]  # the signature among the headers, "" if there is none
    mark: Callable[[str, SignedRequest, float], str]  # key, request, now: its own text, "" if not signed
    once: bool = True  # a mark is accepted once
    with_phone_key: bool = False  # the request must have our phone key in x-api-key, too


def _any_key(key: str) -> None:
    """Accept every key."""


@dataclass(frozen=True, slots=True)
class SystemKey:
    """The key with which the signatures of a system are checked."""

    variable: str  # the environment variable that holds it
    check: Callable[[str], None] = _any_key  # raise ValueError, with what a key is, for a key that is none
    signs_address: bool = True  # phone.public_url must be given: it is part of what is signed
    needs_phone_key: bool = False
    needs_cryptography: bool = False  # signatures are Ed25519


class CryptographyMissing(Exception):
    """Ed25519 signatures need the package `cryptography`: pip install "voxlane[phone]"."""


def same_text(given: str, right: str) -> bool:
    """Return whether two texts are the same; it takes the same time for every wrong one."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))


def mac(key: bytes, text: str, algorithm: Callable[..., Any] = hashlib.sha256) -> str:
    """Return the base64 of a keyed hash."""
    return base64.b64encode(hmac.new(key, text.encode("utf-8", "surrogatepass"), algorithm).digest()).decode()


def canonical_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text, None if it is none or another text stands for the same bytes."""
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one, as is the error for text outside of ASCII
        return None
    return found if base64.b64encode(found).decode() == text else None


def is_number(text: str) -> bool:
    """Return whether a text is a number of at most 15 digits."""
    return text.isascii() and text.isdigit() and len(text) <= 15


def is_recent(signed_at: float, now: float) -> bool:
    """Return whether a signed time is about now."""
    return abs(now - signed_at) <= SIGNED_SECONDS


def bearer(headers: Mapping[str, str]) -> str:
    """Return the bearer token among headers, "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def first_of(headers: Mapping[str, str], *names: str) -> str:
    """Return the first of these headers that is there, "" if none is."""
    return next((headers[name] for name in names if headers.get(name)), "")


def check_cryptography() -> None:
    """Raise CryptographyMissing if Ed25519 signatures cannot be checked."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise CryptographyMissing from error


def ed25519_verifies(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature is that of a message."""
    check_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True

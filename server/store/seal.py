"""Seal what a store holds: AES-256-GCM under a random key, which only the client's resume token unwraps.

The server keeps the key in memory while it runs the conversation. In the store the key lies wrapped by another key,
derived from the token; of the token itself the store has a hash. So the stored bytes alone reveal nothing. A new token
wraps the same key again.
"""

from __future__ import annotations

import hashlib
import secrets
from importlib.util import find_spec
from typing import TYPE_CHECKING

from voxlane.server.store.values import HASH_BYTES, TOKEN_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES, NONCE_BYTES = 32, 12
_LABEL = b"voxlane resume token 1"


def can_seal() -> bool:
    """Return whether the library is installed that seals."""
    return find_spec("cryptography") is not None


class BrokenSeal(ValueError):
    """Stored bytes were changed, or belong to another key."""


class SessionKey:
    """The key of one conversation's record."""

    def __init__(self, name: str, key: bytes = b"") -> None:
        self._name = name
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._cipher = _cipher(self._key)

    def seal(self, part: str, content: bytes) -> bytes:
        """Return a part's content, sealed."""
        return _sealed(self._cipher, content, f"{self._name} {part}")

    def unseal(self, part: str, sealed: bytes) -> bytes:
        """Return the content of a sealed part; raise BrokenSeal if it is not what was sealed."""
        return _unsealed(self._cipher, sealed, f"{self._name} {part}")

    def wrapped(self, token: str) -> bytes:
        """Return a token's entry for the record: its hash, and this key wrapped by it."""
        return hash_token(token) + _sealed(_cipher(_derived(token)), self._key, f"{self._name} key")


def unwrapped(name: str, token: str, tokens: bytes) -> SessionKey | None:
    """Return the key of a record by one of its tokens; None if the token is not among them."""
    hashed = hash_token(token)
    for at in range(0, len(tokens), TOKEN_BYTES):
        if tokens[at : at + HASH_BYTES] == hashed:
            sealed = tokens[at + HASH_BYTES : at + TOKEN_BYTES]
            return SessionKey(name, _unsealed(_cipher(_derived(token)), sealed, f"{name} key"))
    return None


def hash_token(token: str) -> bytes:
    """Return the hash under which a token is kept."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _derived(token: str) -> bytes:
    """Return the key that wraps: the token has 256 random bits, so no slow derivation is needed."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_LABEL).derive(token.encode("utf-8", "surrogatepass"))


def _sealed(cipher: AESGCM, content: bytes, purpose: str) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, content, purpose.encode())


def _unsealed(cipher: AESGCM, sealed: bytes, purpose: str) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], purpose.encode())
    except (InvalidTag, ValueError) as error:
        raise BrokenSeal("a record's seal is broken") from error

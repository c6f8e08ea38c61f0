"""Tokens that bring a conversation back: 256 bits, used once, kept as hashes. It knows names, not conversations."""

from __future__ import annotations

import hashlib
import secrets


class Tokens:
    """Which token belongs to which conversation; each has one at a time."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._hashes: dict[str, bytes] = {}

    def issue(self, name: str) -> str:
        """Return a new token for a conversation; the one before is worth nothing from now on."""
        self.revoke(name)
        token = secrets.token_urlsafe(32)
        hashed = _hash(token)
        self._names[hashed], self._hashes[name] = name, hashed
        return token

    def redeem(self, token: str) -> str | None:
        """Return the conversation a token is for, once."""
        # Looked up by hash: how long that takes tells nothing about tokens that exist.
        name = self._names.pop(_hash(token), None)
        if name is not None:
            del self._hashes[name]
        return name

    def revoke(self, name: str) -> None:
        """Forget a conversation's token."""
        hashed = self._hashes.pop(name, None)
        if hashed is not None:
            del self._names[hashed]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

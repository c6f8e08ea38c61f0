"""Tokens that resume a conversation: 256 bits, used once, kept as hashes."""

from __future__ import annotations

import hashlib
import secrets


class Tokens:
    """Tokens and the names of their conversations.

    Each conversation has one issued token. The token redeemed before it stays valid until the client has shown that the
    new one has arrived: if the line breaks in between, the client has only the old one.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._issued: dict[str, bytes] = {}
        self._redeemed: dict[str, bytes] = {}

    def issue(self, name: str) -> str:
        """Return a new token for a conversation; a token that was issued before and not redeemed becomes invalid."""
        self._forget(self._issued, name)
        token = secrets.token_urlsafe(32)
        hashed = _hash(token)
        self._names[hashed], self._issued[name] = name, hashed
        return token

    def redeem(self, token: str) -> str | None:
        """Return the name of a token's conversation, None if the token is not valid."""
        # Looked up by hash, so that the time it takes reveals nothing about existing tokens.
        hashed = _hash(token)
        name = self._names.get(hashed)
        if name is not None and self._issued.get(name) == hashed:
            self._forget(self._redeemed, name)
            self._redeemed[name] = self._issued.pop(name)
        return name

    def arrived(self, name: str) -> None:
        """Note that a conversation's client has the token that was issued last."""
        self._forget(self._redeemed, name)

    def revoke(self, name: str) -> None:
        """Forget a conversation's tokens."""
        self._forget(self._issued, name)
        self._forget(self._redeemed, name)

    def _forget(self, hashes: dict[str, bytes], name: str) -> None:
        if (hashed := hashes.pop(name, None)) is not None:
            del self._names[hashed]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

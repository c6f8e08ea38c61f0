"""Tokens that bring a conversation back: 256 bits, used once, kept as hashes. It knows names, not conversations."""

from __future__ import annotations

import hashlib
import secrets


class Tokens:
    """Which token belongs to which conversation.

    Each has one that was issued last. The one that was redeemed for it stays good until its client has shown that the
    new one has arrived: a line may break in between, and then the old one is all that the client has.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._issued: dict[str, bytes] = {}
        self._redeemed: dict[str, bytes] = {}

    def issue(self, name: str) -> str:
        """Return a new token for a conversation; one that was issued before and not redeemed is worth nothing now."""
        self._forget(self._issued, name)
        token = secrets.token_urlsafe(32)
        hashed = _hash(token)
        self._names[hashed], self._issued[name] = name, hashed
        return token

    def redeem(self, token: str) -> str | None:
        """Return the conversation a token is for."""
        # Looked up by hash: how long that takes tells nothing about tokens that exist.
        hashed = _hash(token)
        name = self._names.get(hashed)
        if name is not None and self._issued.get(name) == hashed:
            self._forget(self._redeemed, name)
            self._redeemed[name] = self._issued.pop(name)
        return name

    def arrived(self, name: str) -> None:
        """Take it that a conversation's client has the token that was issued last."""
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

"""Tokens that resume a conversation: its name and 256 bits, used once, kept as hashes."""

from __future__ import annotations

import re
import secrets

from voxlane.server.store.seal import hash_token

_NAMED = re.compile(r"(voice-[0-9a-f]{16})\.[A-Za-z0-9_-]{43}")


def name_in(token: str) -> str | None:
    """Return the name of the conversation that a token belongs to, if it is one of ours; None if it cannot be one."""
    found = _NAMED.fullmatch(token)
    return found[1] if found is not None else None


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
        # The name finds the conversation in a store that many servers share.
        token = f"{name}.{secrets.token_urlsafe(32)}"
        hashed = hash_token(token)
        self._names[hashed], self._issued[name] = name, hashed
        return token

    def name_of(self, token: str) -> str | None:
        """Return the name of a token's conversation and leave the token as it is; None if it is not valid."""
        return self._names.get(hash_token(token))

    def redeem(self, token: str) -> str | None:
        """Return the name of a token's conversation, None if the token is not valid."""
        # Looked up by hash, so that the time it takes reveals nothing about existing tokens.
        hashed = hash_token(token)
        name = self._names.get(hashed)
        if name is not None and self._issued.get(name) == hashed:
            self._forget(self._redeemed, name)
            self._redeemed[name] = self._issued.pop(name)
        return name

    def adopt(self, name: str, token: str) -> None:
        """Note a token that another server has issued, and that was redeemed from the store."""
        hashed = hash_token(token)
        self._names[hashed], self._redeemed[name] = name, hashed

    def valid(self, name: str) -> tuple[bytes, ...]:
        """Return the hashes of a conversation's tokens."""
        return tuple(hashes[name] for hashes in (self._issued, self._redeemed) if name in hashes)

    def arrived(self, name: str) -> bool:
        """Note that a conversation's client has the token that was issued last; return whether that is news."""
        news = name in self._redeemed
        self._forget(self._redeemed, name)
        return news

    def revoke(self, name: str) -> None:
        """Forget a conversation's tokens."""
        self._forget(self._issued, name)
        self._forget(self._redeemed, name)

    def _forget(self, hashes: dict[str, bytes], name: str) -> None:
        if (hashed := hashes.pop(name, None)) is not None:
            del self._names[hashed]

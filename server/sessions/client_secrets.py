"""Secrets for clients that must not see the API key: 256 bits, kept as hashes with their session until they expire.

The session's settings are plain values here; api/client_secrets.py checks them and who may ask for a secret.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from voxlane.server import limits

PREFIX = "ek_"
"""Browser libraries recognise a client secret by this prefix."""


class ClientSecrets:
    """Secrets and their sessions. When there are too many, the oldest are dropped."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = limits.CLIENT_SECRETS) -> None:
        self._clock = clock  # seconds since 1970: clients are told when a secret expires
        self._most = most
        self._kept: dict[bytes, tuple[int, bytes]] = {}  # expiry and session by hash, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def issue(self, session: Mapping[str, Any], seconds: int) -> tuple[str, int]:
        """Return a new secret for connections with this session, and when it expires."""
        now = self._clock()
        if len(self._kept) >= self._most:
            self._kept = {hashed: one for hashed, one in self._kept.items() if one[0] > now}
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        value, expires_at = PREFIX + secrets.token_urlsafe(32), int(now) + seconds
        # Kept as text, so that a change to one connection's session cannot reach the next connection.
        self._kept[_hash(value)] = expires_at, json.dumps(session, ensure_ascii=False, separators=(",", ":")).encode()
        return value, expires_at

    def redeem(self, value: str) -> dict[str, Any] | None:
        """Return the session of a secret, any number of times until it expires; None if there is no such secret."""
        # Looked up by hash, so that the time it takes reveals nothing about existing secrets.
        hashed = _hash(value)
        expires_at, session = self._kept.get(hashed, (0, b""))
        if expires_at <= self._clock():
            self._kept.pop(hashed, None)
            return None
        found: dict[str, Any] = json.loads(session)
        return found


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()

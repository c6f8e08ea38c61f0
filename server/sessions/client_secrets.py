"""Secrets for clients that must not see the API key: 256 bits, kept as hashes with their session until they expire.

The session's settings are plain values here; api/client_secrets.py checks them and who may ask for a secret.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from voxlane.server import limits
from voxlane.server.store.notes import SharedNotes
from voxlane.server.tenants.accounts import Account

PREFIX = "ek_"
"""Browser libraries recognise a client secret by this prefix."""


_KIND = "client secret"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a client secret opens."""

    session: dict[str, Any]
    account: Account  # the tenant whose key made the secret


@dataclass(frozen=True, slots=True)
class _Kept:
    expires_s: float  # on the clock of this process
    session: bytes
    account: Account


class ClientSecrets:
    """Secrets and their sessions. When there are too many, the oldest are dropped."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        most: int = limits.CLIENT_SECRETS,
        wall_clock: Callable[[], float] = time.time,
        notes: SharedNotes | None = None,
        account_of: Callable[[str], Account | None] = lambda _: None,
    ) -> None:
        """Keep secrets in this process, or in the `notes` of a cell, where `account_of` finds a tenant by its salt."""
        self._notes = notes
        self._account_of = account_of
        self._clock = clock  # decides: the wall clock may jump while a secret is valid
        self._wall_clock = wall_clock  # seconds since 1970: what clients are told
        self._most = most
        self._kept: dict[bytes, _Kept] = {}  # by hash, oldest first

    def __len__(self) -> int:
        return len(self._kept) if self._notes is None else self._notes.count(_KIND)

    def issue(self, session: Mapping[str, Any], seconds: int, account: Account) -> tuple[str, int]:
        """Return a new secret for connections with this session, and when it expires on the wall clock."""
        if self._notes is not None:
            return self._issue_noted(self._notes, session, seconds, account)
        now = self._clock()
        if len(self._kept) >= self._most:
            self._kept = {hashed: one for hashed, one in self._kept.items() if one.expires_s > now}
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        value = PREFIX + secrets.token_urlsafe(32)
        # Kept as text, so that a change to one connection's session cannot reach the next connection.
        text = json.dumps(session, ensure_ascii=False, separators=(",", ":")).encode()
        self._kept[_hash(value)] = _Kept(now + seconds, text, account)
        return value, int(self._wall_clock()) + seconds

    def redeem(self, value: str) -> Grant | None:
        """Return what a secret opens, any number of times until it expires; None if there is no such secret.

        A secret ends with the key that made it.
        """
        # Looked up by hash, so that the time it takes reveals nothing about existing secrets.
        hashed = _hash(value)
        if self._notes is not None:
            return self._redeem_noted(self._notes, hashed)
        kept = self._kept.get(hashed)
        if kept is None or kept.expires_s <= self._clock() or kept.account.revoked:
            self._kept.pop(hashed, None)
            return None
        return Grant(json.loads(kept.session), kept.account)

    def _issue_noted(
        self, notes: SharedNotes, session: Mapping[str, Any], seconds: int, account: Account
    ) -> tuple[str, int]:
        value = PREFIX + secrets.token_urlsafe(32)
        text = json.dumps([account.salt, session], ensure_ascii=False, separators=(",", ":")).encode()
        notes.put(_KIND, _hash(value), text, seconds, self._most)
        return value, int(self._wall_clock()) + seconds

    def _redeem_noted(self, notes: SharedNotes, hashed: bytes) -> Grant | None:
        found = notes.get(_KIND, hashed)
        if found is None:
            return None
        salt, session = json.loads(found)
        account = self._account_of(salt)
        return None if account is None else Grant(session, account)


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()

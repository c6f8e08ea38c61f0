"""Finds the records of conversations in the store by their resume tokens, and claims them for this process."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from voxlane.server.errors import NotResumable, StoreUnavailable
from voxlane.server.log import line
from voxlane.server.sessions.journal import SavedConversation, read_record
from voxlane.server.store.seal import SessionKey, hash_token, unwrapped
from voxlane.server.store.values import ClaimedSession, SessionClaim, SessionStore
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record that a token has opened."""

    claim: SessionClaim  # by which it was found
    fence: int
    key: SessionKey
    saved: SavedConversation

    @property
    def name(self) -> str:
        """The conversation's name."""
        return self.claim.name


class RecordClaims:
    """The claims of one process."""

    def __init__(self, store: SessionStore, owner: str, live_s: float, metrics: Metrics) -> None:
        """`owner` names this process; a claimed record lives for `live_s` unless it is kept alive."""
        self._store = store
        self._owner = owner
        self._live_s = live_s
        self._metrics = metrics

    async def find(self, name: str, token: str) -> FoundRecord:
        """Return the record of a conversation and leave it to its owner.

        Raise NotResumable if there is none, StoreUnavailable if the store does not answer.
        """
        now_ms = int(time.time() * 1e3)
        expires_ms = now_ms + int(self._live_s * 1e3)
        return await self._find(
            SessionClaim(name, hash_token(token), self._owner, now_ms, expires_ms, looks=True), token
        )

    async def take(self, found: FoundRecord, token: str) -> FoundRecord:
        """Return a record that was found, as it is now, and become its owner; raise as `look` does."""
        return await self._find(replace(found.claim, looks=False, fence=found.fence), token)

    async def _find(self, claim: SessionClaim, token: str) -> FoundRecord:
        claimed = await self._ask(claim)
        key, saved = _read(claim.name, token, claimed)
        return FoundRecord(claim, claimed.fence, key, saved)

    async def _ask(self, claim: SessionClaim) -> ClaimedSession:
        try:
            claimed = await self._store.claim(claim)
        except StoreUnavailable:
            self._metrics.store_claims.labels("failed").inc()
            raise
        if not claim.looks or claimed is None:
            self._metrics.store_claims.labels("unknown" if claimed is None else "found").inc()
        if claimed is None:
            raise NotResumable
        return claimed


def _read(name: str, token: str, claimed: ClaimedSession) -> tuple[SessionKey, SavedConversation]:
    """Return the key and the contents of a record; raise NotResumable if they cannot be read."""
    try:
        key = unwrapped(name, token, claimed.tokens)
        if key is not None:
            return key, read_record(key, claimed.parts)
    except (ValueError, KeyError) as error:
        logger.warning(line("record unreadable", session=name, error=type(error).__name__))
    raise NotResumable

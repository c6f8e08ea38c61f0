"""Moves conversations between processes: keeps their records, claims those of others, lets go of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from dataclasses import dataclass, replace

from voxlane.server import limits
from voxlane.server.errors import NotResumable, StoreUnavailable
from voxlane.server.log import line
from voxlane.server.protocols.dialect import Dialect
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.conversations import Conversations
from voxlane.server.sessions.journal import Journal, JournalTimes, SavedConversation, read_record, rehearse
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


class Moving:
    """The records of one process's conversations."""

    def __init__(self, conversations: Conversations, store: SessionStore, resume_s: float, metrics: Metrics) -> None:
        self._conversations = conversations
        self._store = store
        self._resume_s = resume_s
        self._metrics = metrics
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"  # of this process's records
        self._times = JournalTimes.of(resume_s)
        self._touching: asyncio.Task[None] | None = None
        self._started = False

    # ---- records

    def moves(self, dialect: Dialect) -> bool:
        """Return whether conversations of a dialect can move."""
        return self._store.outlives_process and dialect.resumable

    def begin_record(self, conversation: Conversation, dialect: Dialect) -> None:
        """Let a new conversation outlive this process, if it can be resumed."""
        if self.moves(dialect) and self._resume_s:
            self._keep_record(conversation, SessionKey(conversation.name), int(time.time() * 1e3))

    def continue_record(self, conversation: Conversation, record: FoundRecord, token: str) -> None:
        """Go on with the record of a conversation that this process has taken by a token."""
        self._conversations.tokens.adopt(conversation.name, token)
        self._keep_record(conversation, record.key, record.fence).wrap(token)

    def _keep_record(self, conversation: Conversation, key: SessionKey, fence: int) -> Journal:
        name, tokens = conversation.name, self._conversations.tokens
        conversation.journal = journal = Journal(
            self._store, name, self._owner, fence, key, self._times, self._metrics, conversation, tokens
        )
        return journal

    async def start(self) -> None:
        """Open the store, once, and keep the records of running conversations alive; raise ConfigError."""
        if self._started:
            return
        self._started = True
        await self._store.open()
        if self._store.outlives_process:
            rehearse()
            self._touching = asyncio.create_task(self._touch(), name="store touch")

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(limits.STORE_TOUCH_SECONDS)
            running = [one for one in self._conversations.values() if one not in self._conversations.parked]
            commits = [one.journal.commit() for one in running if one.journal is not None]
            await asyncio.gather(*commits, return_exceptions=True)

    async def aclose(self) -> None:
        """Write what has to be written, and close the store."""
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.gather(self._touching, return_exceptions=True)
        await asyncio.gather(*self._conversations.writes, return_exceptions=True)
        await self._store.aclose()

    # ---- taking over

    async def find(self, name: str, token: str) -> FoundRecord:
        """Return the record of a conversation and leave it to its owner.

        Raise NotResumable if there is none, StoreUnavailable if the store does not answer.
        """
        now_ms = int(time.time() * 1e3)
        expires_ms = now_ms + int(self._times.live_s * 1e3)
        claim = SessionClaim(name, hash_token(token), self._owner, now_ms, expires_ms, looks=True)
        return await self._find(claim, token)

    async def take(self, found: FoundRecord, token: str) -> FoundRecord:
        """Return a record that was found, as it is now, and become its owner; raise as `find` does."""
        return await self._find(replace(found.claim, looks=False, fence=found.fence), token)

    async def _find(self, claim: SessionClaim, token: str) -> FoundRecord:
        try:
            claimed = await self._store.claim(claim)
        except StoreUnavailable:
            self._metrics.store_claims.labels("failed").inc()
            raise
        if not claim.looks or claimed is None:
            self._metrics.store_claims.labels("unknown" if claimed is None else "found").inc()
        if claimed is None:
            raise NotResumable
        return FoundRecord(claim, claimed.fence, *_read(claim.name, token, claimed))

    # ---- letting go

    async def let_go(self, name: str) -> None:
        """Release a conversation that another process of this cell goes on with; its record holds all that was told."""
        conversation = self._conversations.get(name)
        if conversation is None or conversation.journal is None:
            return
        await conversation.journal.leave()
        if self._conversations.get(name) is conversation:  # else it has ended meanwhile
            conversation.lose()
            self._conversations.release(conversation)

    async def still_ours(self, conversation: Conversation) -> bool:
        """Return whether this process still owns a conversation; release a copy that another process has gone on with.

        Without an answer of the store the copy counts as ours.
        """
        journal = conversation.journal
        if journal is None:
            return True
        await journal.commit()
        if journal.over:
            self._conversations.release(conversation)
        elif not conversation.over:
            self._conversations.unpark(conversation)  # its last connection may have left meanwhile
        return not conversation.over

    def cell_ends(self) -> None:
        """Note that no other process can go on with these conversations: the store goes down, too."""
        for conversation in self._conversations.values():
            if conversation.journal is not None:
                conversation.journal.movable = False


def _read(name: str, token: str, claimed: ClaimedSession) -> tuple[SessionKey, SavedConversation]:
    """Return the key and the contents of a record; raise NotResumable if they cannot be read."""
    try:
        key = unwrapped(name, token, claimed.tokens)
        if key is not None:
            return key, read_record(key, claimed.parts)
    except (ValueError, KeyError) as error:
        logger.warning(line("record unreadable", session=name, error=type(error).__name__))
    raise NotResumable

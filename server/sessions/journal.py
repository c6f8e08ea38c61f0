"""The record of one conversation in the store: written before its client is told, claimed by the next server process.

A message that tells of a turn, a reply or words waits until the record holds them, at most as long as the store may
take. When the store fails, the conversation goes on: its client is told that it cannot be resumed elsewhere, and the
record is written again in the background until that works.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import msgpack

from voxlane.server import limits
from voxlane.server.conversation.client_events import Played
from voxlane.server.conversation.replies.saved import OpenReply, SavedHistory, SavedProgress
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.errors import StoreUnavailable
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.sessions.outbound import NumberedPacket
from voxlane.server.sessions.resume import Tokens
from voxlane.server.store.seal import SessionKey, hash_token, unwrapped
from voxlane.server.store.values import SessionStore, SessionWrite, WriteOutcome
from voxlane.server.watching.metrics import Metrics


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """The part `config` of a record."""

    input: AudioFormat
    output: AudioFormat
    config: SessionConfig
    voice: str  # as the client named it
    tenant: str = ""  # its cache salt, which another holder of the same name does not have


@dataclass(frozen=True, slots=True)
class ToldMessage:
    """A message without sound that the client was told, or was about to be told."""

    sequence: int
    fields: bytes  # msgpack


@dataclass(frozen=True, slots=True)
class SavedRecent:
    """The part `recent` of a record: positions and counters, and what is open."""

    progress: SavedProgress
    began_unix_s: float
    sequence: int  # of the last message
    heard_s: float  # seconds of the client's audio
    speak_rate: int  # samples a second of a saved position
    told: tuple[ToldMessage, ...] = ()
    open_turns: tuple[int, ...] = ()
    open_reply: OpenReply | None = None
    acked: Played | None = None


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """A whole record, unsealed."""

    settings: SavedSettings
    history: SavedHistory
    recent: SavedRecent


def read_record(key: SessionKey, parts: Mapping[str, bytes]) -> SavedConversation:
    """Return a record's contents; raise ValueError if they cannot be read, KeyError if a part is missing."""
    opened = {part: key.unseal(part, sealed) for part, sealed in parts.items()}
    return SavedConversation(
        msgpack.decode(opened["config"], type=SavedSettings),
        msgpack.decode(opened["history"], type=SavedHistory),
        msgpack.decode(opened["recent"], type=SavedRecent),
    )


def rehearse() -> None:
    """Write and read a record of nothing: the first one takes 40 ms, which the first client need not wait for."""
    key = SessionKey("voice")
    contents = {
        "config": SavedSettings(AudioFormat(), AudioFormat(), SessionConfig(), ""),
        "history": SavedHistory(),
        "recent": SavedRecent(SavedProgress(), 0.0, 0, 0.0, 0),
    }
    token = key.wrapped("token")
    opened = unwrapped("voice", "token", token)
    assert opened is not None
    read_record(opened, {part: key.seal(part, msgpack.encode(content)) for part, content in contents.items()})


class JournalledConversation(Protocol):
    """What a journal needs of its conversation."""

    version: int  # it rises with every change that the record must hold before the client is told

    def saved_settings(self) -> SavedSettings:
        """Return the part `config`."""

    def saved_history(self) -> tuple[int, Callable[[], SavedHistory]]:
        """Return a number that rises with every change of the history, and how to get the part `history`."""

    def saved_recent(self) -> SavedRecent:
        """Return the part `recent`."""

    def tell_resumable(self, resumable: bool) -> None:
        """Tell the client whether another server could go on with the conversation."""

    def lose(self) -> None:
        """End here: the conversation goes on at another server."""


@dataclass(slots=True)
class _Stored:
    """What the store has, as far as is known."""

    version: int = -1
    sequence: int = 0
    settings: SavedSettings | None = None
    history: int = -1
    tokens: bytes = b""
    complete: bool = False  # there is a record


@dataclass(frozen=True, slots=True)
class JournalTimes:
    """How long a record is kept."""

    live_s: float
    parked_s: float

    @classmethod
    def of(cls, resume_s: float) -> JournalTimes:
        """Return the times for conversations that wait `resume_s` for their client."""
        live_s = max(limits.STORE_LIVE_SECONDS, resume_s + limits.STORE_TOUCH_SECONDS)
        return cls(live_s, resume_s + limits.STORE_PARKED_SECONDS)


@dataclass(slots=True)
class Journal:
    """Writes one conversation's record."""

    store: SessionStore
    name: str
    owner: str
    fence: int
    key: SessionKey
    times: JournalTimes
    metrics: Metrics
    conversation: JournalledConversation
    tokens: Tokens
    resumable: bool = True  # the store has everything that the client was told
    over: bool = False  # nothing is written any more
    movable: bool = True  # the record outlives this process
    _wrapped: dict[bytes, bytes] = field(default_factory=dict)  # token entries by hash
    _stored: _Stored = field(default_factory=_Stored)
    _retrying: asyncio.Task[None] | None = None

    def wrap(self, token: str) -> None:
        """Let a token resume the conversation from the next write on."""
        self._wrapped[hash_token(token)] = self.key.wrapped(token)

    async def before(self, run: Iterable[NumberedPacket]) -> None:
        """Return when the record holds what these messages tell."""
        stored = self._stored
        for item in run:
            if (mark := item.mark) is None:
                continue
            if mark.version > stored.version or (mark.repeated and item.sequence > stored.sequence):
                await self.commit()
                return

    async def commit(self) -> None:
        """Write what has changed; return when it is stored, or when the store has failed."""
        if self.over or not self.resumable:  # `_retry` writes it
            return
        try:
            await self._write(self.times.live_s)
        except StoreUnavailable:
            self._fail()

    async def park(self) -> None:
        """Write what has changed, and let the record wait for its client for the time that a resume may take."""
        if not self.over and self.resumable:
            try:
                await self._write(self.times.parked_s)
            except StoreUnavailable:
                self._fail()

    async def leave(self) -> None:
        """Write what has changed a last time, even if the store has failed before, and then write no more."""
        if not self.over:
            with suppress(StoreUnavailable):
                await self._write(self.times.parked_s)
            self.stop()

    async def end(self) -> WriteOutcome:
        """Leave nothing in the store but the fence: the conversation is over. A store that fails counts as written."""
        self.stop()
        now_ms = _now_ms()
        write = SessionWrite(
            self.name, self.fence, self.owner, now_ms, now_ms + int(self.times.live_s * 1e3), ends=True
        )
        with suppress(StoreUnavailable):  # then the record expires
            return await self._send(write)
        return "written"

    def stop(self) -> None:
        """Write no more; the record stays."""
        self.over = True
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None

    # ---- writing

    async def _write(self, seconds: float) -> None:
        """Write what has changed, or everything if there is no record; raise StoreUnavailable."""
        outcome = await self._write_changes(seconds, whole=not self._stored.complete)
        if outcome == "missing":  # the store was emptied: the conversation is still ours
            outcome = await self._write_changes(seconds, whole=True)
        if outcome == "other_owner" and not self.over:
            self.stop()
            self.conversation.lose()

    async def _write_changes(self, seconds: float, *, whole: bool) -> WriteOutcome:
        source, stored = self.conversation, self._stored
        version, recent = source.version, source.saved_recent()
        settings, (history, history_of) = source.saved_settings(), source.saved_history()
        parts = {"recent": self.key.seal("recent", msgpack.encode(recent))}
        if whole or settings != stored.settings:
            parts["config"] = self.key.seal("config", msgpack.encode(settings))
        if whole or history != stored.history:
            parts["history"] = self.key.seal("history", msgpack.encode(history_of()))
        self._wrapped = {one: self._wrapped[one] for one in self.tokens.valid(self.name) if one in self._wrapped}
        tokens, now_ms = b"".join(self._wrapped.values()), _now_ms()
        write = SessionWrite(
            self.name,
            self.fence,
            self.owner,
            now_ms,
            now_ms + int(seconds * 1e3),
            tokens if whole or tokens != stored.tokens else None,
            parts,
            creates=whole,
        )
        outcome = await self._send(write)
        if outcome == "written" and version >= self._stored.version:
            self._stored = _Stored(version, recent.sequence, settings, history, tokens, complete=True)
        return outcome

    async def _send(self, write: SessionWrite) -> WriteOutcome:
        began_s = time.perf_counter()
        try:
            outcome = await self.store.write(write)
        except StoreUnavailable:
            self.metrics.store_writes.labels("failed").inc()
            raise
        self.metrics.store_seconds.observe(time.perf_counter() - began_s)
        self.metrics.store_writes.labels(outcome).inc()
        return outcome

    # ---- a store that fails

    def _fail(self) -> None:
        """Go on without the store, and try again in the background."""
        if self.over or not self.resumable:
            return
        self.resumable = False
        self._stored = _Stored()
        self._retrying = asyncio.create_task(self._retry(), name="store again")
        self.conversation.tell_resumable(False)

    async def _retry(self) -> None:
        while not self.over:
            await asyncio.sleep(limits.STORE_RETRY_SECONDS)
            try:
                await self._write(self.times.live_s)
            except StoreUnavailable:
                continue
            break
        if not self.over:
            self.resumable, self._retrying = True, None
            self.conversation.tell_resumable(True)


def _now_ms() -> int:
    return int(time.time() * 1e3)

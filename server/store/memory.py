"""The store of a server that keeps conversations in its own memory: the reference for the other stores.

A server with this store writes no records: its conversations themselves are in memory, and gone with the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.server.store.values import ClaimedSession, SessionClaim, SessionWrite, WriteOutcome, token_hashes


@dataclass(slots=True)
class _Record:
    fence: int
    owner: str
    expires_ms: int
    tokens: bytes
    parts: dict[str, bytes]


class MemoryStore:
    """Records in a dictionary."""

    outlives_process = False

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    async def open(self) -> None:
        """Do nothing: it is ready."""

    async def write(self, write: SessionWrite) -> WriteOutcome:
        """Change a record, if its owner and fence are those of the write."""
        record = self._live(write.name, write.now_ms)
        behind = record is not None and record.fence < write.fence
        if behind:
            record = None
        if record is not None and (record.fence, record.owner) != (write.fence, write.owner):
            return "other_owner"
        if record is None and not (write.creates or (behind and write.ends)):
            return "missing"
        if record is None:
            record = self._records[write.name] = _Record(write.fence, write.owner, 0, b"", {})
        record.expires_ms = write.expires_ms
        if write.ends:
            record.owner, record.tokens, record.parts = "", b"", {}
            return "written"
        record.parts.update(write.parts)
        if write.tokens is not None:
            record.tokens = write.tokens
        return "written"

    async def claim(self, claim: SessionClaim) -> ClaimedSession | None:
        """Give a record to another owner; return None if there is none with this token."""
        record = self._live(claim.name, claim.now_ms)
        if record is None or claim.token_hash not in token_hashes(record.tokens):
            return None
        if claim.fence not in (0, record.fence):
            return None
        if claim.looks:
            return ClaimedSession(record.fence, record.tokens, dict(record.parts))
        record.fence = max(record.fence + 1, claim.now_ms)
        record.owner, record.expires_ms = claim.owner, claim.expires_ms
        return ClaimedSession(record.fence, record.tokens, dict(record.parts))

    async def aclose(self) -> None:
        """Forget everything."""
        self._records.clear()

    def _live(self, name: str, now_ms: int) -> _Record | None:
        record = self._records.get(name)
        return record if record is not None and record.expires_ms > now_ms else None

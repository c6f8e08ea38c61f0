"""Responses that `previous_response_id` can name: a bounded number for each key, for a bounded time, as bytes.

A response belongs to the key that asked for it: another key does not find it. What the bytes mean is up to
api/responses.py. They lie in this process's memory, or in the notes of a cell, where every process finds them.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable

from voxlane.server import limits
from voxlane.server.store.notes import SharedNotes


class KeptResponses:
    """The responses of all keys. Of too many of one key, the oldest are dropped; of too many in all, those of any."""

    def __init__(
        self,
        notes: SharedNotes | None = None,
        clock: Callable[[], float] = time.monotonic,
        most: int = limits.RESPONSES_KEPT,
        most_bytes: int = limits.RESPONSE_KEPT_BYTES,
        seconds: float = limits.RESPONSE_KEPT_SECONDS,
        all_bytes: int = limits.RESPONSES_KEPT_BYTES,
    ) -> None:
        self._notes = notes
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._all_bytes = all_bytes
        self._bytes = 0  # of all that this process keeps
        self._kept: dict[tuple[str, str], tuple[float, bytes]] = {}  # by owner and id, the oldest first
        self._counts: Counter[str] = Counter()  # by owner

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, owner: str, response_id: str, value: bytes) -> bool:
        """Keep a response of an owner; return whether it is small enough to be kept."""
        if len(value) > self._most_bytes:
            return False
        if self._notes is not None:
            self._notes.put(_kind(owner), response_id.encode(), value, self._seconds, self._most)
            return True
        self._forget_old()
        if self._counts[owner] >= self._most:
            self._forget(next(place for place in self._kept if place[0] == owner))
        while self._kept and self._bytes + len(value) > self._all_bytes:
            self._forget(next(iter(self._kept)))
        self._kept[owner, response_id] = (self._clock() + self._seconds, value)
        self._counts[owner] += 1
        self._bytes += len(value)
        return True

    def get(self, owner: str, response_id: str) -> bytes | None:
        """Return a response of an owner; None if there is none or its time is over."""
        if self._notes is not None:
            return self._notes.get(_kind(owner), response_id.encode())
        self._forget_old()
        found = self._kept.get((owner, response_id))
        return None if found is None else found[1]

    def drop(self, owner: str, response_id: str) -> bool:
        """Forget a response of an owner; return whether there was one."""
        if self._notes is not None:
            return self._notes.take(_kind(owner), response_id.encode()) is not None
        self._forget_old()
        return self._forget((owner, response_id))

    def _forget(self, place: tuple[str, str]) -> bool:
        _, value = self._kept.pop(place, (0.0, None))
        if value is None:
            return False
        self._bytes -= len(value)
        self._counts[place[0]] -= 1
        if not self._counts[place[0]]:
            del self._counts[place[0]]
        return True

    def _forget_old(self) -> None:
        now = self._clock()
        # All are kept for the same time: those that end first come first.
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            self._forget(next(iter(self._kept)))


def _kind(owner: str) -> str:
    """Return the name of an owner's notes; the owner's salt itself is in no file."""
    return f"response {hashlib.sha256(owner.encode()).hexdigest()}"

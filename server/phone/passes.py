"""What a server remembers for a short time about calls: one-time passes, what follows a call, and seen signatures.

A pass is made when a telephone system asks how to answer a call. The system hands it back when it connects the call,
so that the call needs no key, and we know which call it is. All of it lives in this process, or in the cell's notes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import msgpack

from voxlane.server.protocols.phone.documents import NextStep
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.store.notes import SharedNotes

PASS_SECONDS = 60.0
"""Time for a telephone system to connect a call after it was told to: it takes a second or two."""

MOST_PASSES = 4096
"""Passes at one time: four times the default number of conversations."""

STEP_SECONDS = 300.0
"""Time for a telephone system to ask what follows after a call: it asks at once."""

MOST_STEPS = 4096
"""Calls whose next step is kept."""

SEEN_SECONDS = 86400.0
"""How long a signature is remembered. Twilio's and Plivo's hold no time, so that they never expire by themselves."""

MOST_SEEN = 65536
"""Signatures that are remembered: a call each 1.3 seconds for that long, in about 12 MB."""

Clock = Callable[[], float]
V = TypeVar("V")


class ExpiringStore(Generic[V]):
    """Values by key, each for a time. When there are too many, the oldest are dropped."""

    def __init__(self, seconds: float, most: int, clock: Clock) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._kept: dict[bytes, tuple[float, V]] = {}  # end and value, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, value: V) -> None:
        """Keep a value; it replaces an older one of this key."""
        now = self._clock()
        self._kept.pop(key, None)
        # All values are kept for the same time, so that those that have expired come first.
        while self._kept:
            first = next(iter(self._kept))
            if len(self._kept) < self._most and self._kept[first][0] > now:
                break
            del self._kept[first]
        self._kept[key] = now + self._seconds, value

    def put_new(self, key: bytes, value: V) -> bool:
        """Keep a value if there is none of this key; return whether there was none."""
        if key in self:
            return False
        self.put(key, value)
        return True

    def take(self, key: bytes) -> V | None:
        """Return a value and forget it; None if there is none or its time is over."""
        end, value = self._kept.pop(key, (float("-inf"), None))
        return value if end > self._clock() else None

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept and self._kept[key][0] > self._clock()


class CellStore(Generic[V]):
    """Values by key as in ExpiringStore, for all server processes of a cell."""

    def __init__(self, notes: SharedNotes, kind: type[V], seconds: float, most: int) -> None:
        self._notes = notes
        self._name = kind.__name__
        self._seconds, self._most = seconds, most
        self._decoder = msgpack.Decoder(kind)

    def __len__(self) -> int:
        return self._notes.count(self._name)

    def put(self, key: bytes, value: V) -> None:
        """Keep a value; it replaces an older one of this key."""
        self._notes.put(self._name, key, msgpack.encode(value), self._seconds, self._most)

    def put_new(self, key: bytes, value: V) -> bool:
        """Keep a value if there is none of this key; return whether there was none. Values of these are all alike."""
        return self._notes.put_new(self._name, key, self._seconds, self._most)

    def take(self, key: bytes) -> V | None:
        """Return a value and forget it; None if there is none or its time is over."""
        found = self._notes.take(self._name, key)
        return None if found is None else self._decoder.decode(found)


class Passes:
    """One-time passes: 192 bits, kept as hashes with the facts of their calls."""

    def __init__(
        self, clock: Clock = time.monotonic, most: int = MOST_PASSES, notes: SharedNotes | None = None
    ) -> None:
        self._calls: ExpiringStore[CallFacts] | CellStore[CallFacts] = (
            ExpiringStore(PASS_SECONDS, most, clock)
            if notes is None
            else CellStore(notes, CallFacts, PASS_SECONDS, most)
        )

    def __len__(self) -> int:
        return len(self._calls)

    def issue(self, facts: CallFacts) -> str:
        """Return a new pass for a call."""
        token = secrets.token_hex(24)  # letters and digits alone: Plivo passes on nothing else
        self._calls.put(_hashed(token), facts)
        return token

    def redeem(self, token: str) -> CallFacts | None:
        """Return what is known about the call of a pass, once; None if there is no such pass any more."""
        # Looked up by hash, so that the time it takes reveals nothing about existing passes.
        return self._calls.take(_hashed(token))


class NextSteps:
    """What follows after calls. A call without a next step is hung up."""

    def __init__(
        self,
        clock: Clock = time.monotonic,
        most: int = MOST_STEPS,
        notes: SharedNotes | None = None,
        secret: bytes = b"",
    ) -> None:
        """Keep steps in this process or in `notes`; tickets are signed with `secret`, or with one of its own."""
        self._steps: ExpiringStore[NextStep] | CellStore[NextStep] = (
            ExpiringStore(STEP_SECONDS, most, clock)
            if notes is None
            else CellStore(notes, NextStep, STEP_SECONDS, most)
        )
        self._secret = secret or secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._steps)

    def transfer(self, call_id: str, target: str, called: str = "") -> None:
        """Have the caller connected with a target, which comes from the configuration."""
        if call_id:
            self._steps.put(_hashed(call_id), NextStep(target, called))

    def forget(self, call_id: str) -> None:
        """Have the call hung up: it is not transferred after all."""
        self._steps.take(_hashed(call_id))

    def take(self, call_id: str) -> NextStep | None:
        """Return the next step of a call, once; None if it is hung up."""
        return self._steps.take(_hashed(call_id))

    def ticket(self, call_id: str) -> str:
        """Return the text that lets its holder ask what follows after this call; systems that sign do not need it."""
        return hmac.new(self._secret, call_id.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class SeenSignatures:
    """The signatures of requests that were served: a request that has one of them is a replay."""

    def __init__(self, clock: Clock = time.monotonic, most: int = MOST_SEEN, notes: SharedNotes | None = None) -> None:
        self._seen: ExpiringStore[bool] | CellStore[bool] = (
            ExpiringStore(SEEN_SECONDS, most, clock) if notes is None else CellStore(notes, bool, SEEN_SECONDS, most)
        )

    def __len__(self) -> int:
        return len(self._seen)

    def is_first(self, signature: str) -> bool:
        """Return whether a signature is new, and remember it."""
        return self._seen.put_new(_hashed(signature), True)


def _hashed(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

"""The state rows of a codec: which stream owns which, and which streams wait for one.

A stream needs a state row to speak. If none is free, the first waiting stream takes the row of the stream that has been
idle longest, paused or without text. If none is idle, it takes one from a lower class: from the lowest class, and there
from the stream that is farthest ahead of its listener. Streams of one class wait in order of arrival: a stream that
loses its row has to run its frames again in another, and on a CPU that takes longer than they last. The
tensors behind the rows belong to runners/codec_tts.py.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

IDLE = -1
"""The claim of a stream that does not use its row: below every class."""


class Owner(Protocol):
    """A stream that may own a row."""

    @property
    def rank(self) -> int:
        """Return its class: the higher goes first."""

    @property
    def waits(self) -> bool:
        """Return whether it would take a row now."""

    @property
    def engaged(self) -> bool:
        """Return whether a step under way uses its row."""

    @property
    def claim(self) -> tuple[int, float]:
        """Return its claim to its row: IDLE or its class, then the order within that. The least claim yields first."""

    def give_up(self) -> int:
        """Return its row, which it no longer owns."""

    def refresh(self, now: float) -> None:
        """Take a row if it can have one."""


class StateRows:
    """The rows of one state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._owners: dict[int, Owner] = {}
        # The streams that wait: the highest class first, then in order of arrival.
        self._line: list[Owner] = []
        # The stream that yields its row when the step under way has ended.
        self._called: Owner | None = None

    @property
    def free(self) -> int:
        """Return how many rows have no owner."""
        return len(self._free)

    def wait(self, owner: Owner) -> None:
        """Put a stream in line, if it is not there."""
        if owner not in self._line:
            bisect.insort(self._line, owner, key=lambda one: -one.rank)

    def leave(self, owner: Owner) -> None:
        """Take a stream out of the line."""
        if owner in self._line:
            self._line.remove(owner)

    def serves(self, owner: Owner) -> bool:
        """Return whether a stream in line can have a row now."""
        if not owner.waits or owner not in islice(self._waiting, max(len(self._free), 1)):
            return False
        return bool(self._free) or self._giver(owner.rank) is not None

    def take(self, owner: Owner | None = None) -> int:
        """Return a row: a free one, or that of the stream that yields."""
        slot = self._free.pop() if self._free else -1
        if slot < 0:
            giver = self._giver(IDLE + 1 if owner is None else owner.rank)
            assert giver is not None, "no stream yields its row"
            slot = giver.give_up()
        if owner is not None:
            self.leave(owner)
            self._owners[slot] = owner
        return slot

    def make_way(self, owner: Owner, now: float) -> None:
        """Give the first in line a row if it is of a higher class than `owner`, which may just have left a step.

        On a device, streams in every step are engaged whenever the first in line asks. So the stream that yields is
        chosen once, and yields when its step has ended.
        """
        first = next(self._waiting, None)
        if first is None or self._free:
            self._called = None
        elif first.rank > owner.rank:
            called = self._called
            if called is None or called.claim[0] >= first.rank or called not in self._owners.values():
                called = self._called = min(self._owners.values(), key=lambda one: one.claim)
            if called.claim[0] < first.rank and not called.engaged:
                first.refresh(now)

    def release(self, slot: int) -> None:
        """Give a row back."""
        assert 0 <= slot < self.count, f"there is no row {slot}"
        assert slot not in self._free, f"row {slot} released but not owned"
        self._owners.pop(slot, None)
        self._free.append(slot)

    @property
    def _waiting(self) -> Iterator[Owner]:
        return (one for one in self._line if one.waits)

    def _giver(self, rank: int) -> Owner | None:
        """Return the stream that yields its row to one of a class."""
        below = [one for one in self._owners.values() if one.claim[0] < rank and not one.engaged]
        return min(below, key=lambda one: one.claim, default=None)

"""Who owns which row of a codec's state, who waits for one, and who gives one up.

Whoever has something to say has a row. When none is free, the first in line gets that of who has had no use for it for
longest, being paused or without text. If all have, it gets that of a lower class, the lowest's, who is the farthest
ahead of its listener. Equals wait for each other, who came first first: whoever gives a row up has to be heard again in
another, and on a CPU that takes longer than it lasted. It knows owners; what a row holds is the engine's business.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

IDLE = -1
"""The claim of those who have no use for their slot: below every class."""


class Owner(Protocol):
    """Who may own a slot."""

    @property
    def rank(self) -> int:
        """Return its class: the higher goes first."""

    @property
    def waits(self) -> bool:
        """Return whether it would take a slot now."""

    @property
    def engaged(self) -> bool:
        """Return whether a step under way uses its slot."""

    @property
    def claim(self) -> tuple[int, float]:
        """Return its claim to its slot, IDLE or its class and what tells equals apart: the least gives way first."""

    def give_up(self) -> int:
        """Return its slot, which it owns no more."""

    def refresh(self, now: float) -> None:
        """Take a slot if it is served."""


class Slots:
    """The rows of one state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._owners: dict[int, Owner] = {}
        self._line: list[Owner] = []  # the highest first, of equals who came first
        self._called: Owner | None = None  # it gives way once the step under way is over

    @property
    def free(self) -> int:
        """Return how many are nobody's."""
        return len(self._free)

    def wait(self, owner: Owner) -> None:
        """Stand in line, once."""
        if owner not in self._line:
            bisect.insort(self._line, owner, key=lambda one: -one.rank)

    def leave(self, owner: Owner) -> None:
        """Leave the line."""
        if owner in self._line:
            self._line.remove(owner)

    def serves(self, owner: Owner) -> bool:
        """Return whether somebody can have a slot now: if so, it is in line."""
        if not owner.waits or owner not in islice(self._waiting, max(len(self._free), 1)):
            return False
        return bool(self._free) or self._giver(owner.rank) is not None

    def take(self, owner: Owner | None = None) -> int:
        """Return a slot: a free one, or that of who gives way."""
        slot = self._free.pop() if self._free else -1
        if slot < 0:
            giver = self._giver(IDLE + 1 if owner is None else owner.rank)
            assert giver is not None, "nobody gives a slot up"
            slot = giver.give_up()
        if owner is not None:
            self.leave(owner)
            self._owners[slot] = owner
        return slot

    def make_way(self, owner: Owner, now: float) -> None:
        """Have the first in line served if it is of a higher class than `owner`, which may just have left a step.

        On a device those who are in every step are engaged whenever the first in line looks. Who is to give way is
        found once, and does when its step is over.
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
        """Give one back."""
        assert 0 <= slot < self.count, f"there is no slot {slot}"
        assert slot not in self._free, f"slot {slot} released but not owned"
        self._owners.pop(slot, None)
        self._free.append(slot)

    @property
    def _waiting(self) -> Iterator[Owner]:
        return (one for one in self._line if one.waits)

    def _giver(self, rank: int) -> Owner | None:
        """Return who gives way to one of a class."""
        below = [one for one in self._owners.values() if one.claim[0] < rank and not one.engaged]
        return min(below, key=lambda one: one.claim, default=None)

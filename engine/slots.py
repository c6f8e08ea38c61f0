"""Who owns which row of a codec's state, who waits for one, and who gives one up.

Whoever has something to say has a row. When none is free, who has had no use for its own for longest, being paused or
without text, gives it up to the first in line. It knows owners; what a row holds is the engine's business.
"""

from __future__ import annotations

import bisect
from typing import Protocol


class Owner(Protocol):
    """Who may own a slot."""

    paused: bool

    @property
    def rank(self) -> int:
        """Return its class: the higher goes first."""

    @property
    def idle_since_s(self) -> float | None:
        """Return since when it has had no use for its slot, None if it has."""

    def give_up(self) -> int:
        """Return its slot, which it owns no more."""


class Slots:
    """The rows of one state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._owners: dict[int, Owner] = {}
        self._line: list[Owner] = []  # the highest first, of equals who came first

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
        """Return whether somebody in line can have a slot now."""
        if self._free:
            return True
        return next((one for one in self._line if not one.paused), None) is owner and self._idlest() is not None

    def take(self, owner: Owner | None = None) -> int:
        """Return a slot: a free one, or that of who has been idle for longest."""
        slot = self._free.pop() if self._free else -1
        if slot < 0:
            idlest = self._idlest()
            assert idlest is not None, "nobody gives a slot up"
            slot = idlest.give_up()
        if owner is not None:
            self.leave(owner)
            self._owners[slot] = owner
        return slot

    def release(self, slot: int) -> None:
        """Give one back."""
        assert 0 <= slot < self.count, f"there is no slot {slot}"
        assert slot not in self._free, f"slot {slot} released but not owned"
        self._owners.pop(slot, None)
        self._free.append(slot)

    def _idlest(self) -> Owner | None:
        idle = [(since_s, slot) for slot, one in self._owners.items() if (since_s := one.idle_since_s) is not None]
        return self._owners[min(idle)[1]] if idle else None

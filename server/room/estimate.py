"""Estimates from measured values how many more conversations an engine can serve. Pure.

A cell with several engines has an estimate for each, and `together` joins what is left. Four values are measured. Each
has a level at which the server is full; the value divided by that level is its use.

    steps         the share of time that the engine's step thread works for conversations
    blocks        the share of the KV blocks that requests hold
    loop          how late the event loop runs its timers
    first_sound   the time from a person's last sound to the first sound of the reply

The first two grow with the number of conversations, so they tell what one conversation costs, and how many more there
is room for. Conversations that began a moment ago are not in the moving values yet: their cost is added. The other two
stay small until the server is nearly full; they close the door when the first two are wrong.

The door closes at one level and opens at a lower one, so it does not flap. A conversation that is resumed has a door of
its own, which closes later: a part of the room is kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Measure = Literal["steps", "blocks", "loop", "first_sound"]

MOVING_S = 10.0
"""Over how long values are averaged: longer than the exchange of a conversation, which works in bursts."""

BAND = 0.1
"""How far the use must fall below the level that closed a door before the door opens again."""

GUESSED_CONVERSATIONS = 1
"""How many conversations the guessed cost counts for, beside the measured ones."""

DOUBTED_TURNS = 2
"""Turns of no delay that are added to the recent ones: a single slow turn closes no door."""

SILENT_S = 2.0
"""After so long without a report the engine is idle: while it works, it reports once a second."""


@dataclass(frozen=True, slots=True)
class RoomLevels:
    """The values at which a server is full."""

    step_share: float  # may be above 1, where larger batches still help a thread that is always busy
    block_share: float
    lag_s: float
    first_sound_s: float
    kept: float  # the share of the room that is kept for conversations that resume
    sure: int  # so many conversations are admitted whatever is measured
    most: int  # the configured limit of conversations


@dataclass(frozen=True, slots=True)
class RoomLeft:
    """What is left of an engine, or of all engines of a cell."""

    percent: int  # 0: no conversation may begin, 100: idle
    more: int  # how many more conversations may begin
    more_resumed: int  # how many more may be resumed here; at least `more`
    tightest: Measure  # what limits it
    use: float  # of what limits it; 1 is full
    takes_new: bool
    takes_resumed: bool

    def takes(self, *, resumed: bool) -> bool:
        """Return whether one more conversation is admitted."""
        return self.takes_resumed if resumed else self.takes_new


class MovingMean:
    """A mean over time: a value counts for as long as it lasted, and is forgotten slowly."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, value: float, lasted_s: float) -> None:
        """Add a value that lasted for some time until now."""
        self.value += (1 - math.exp(-max(0.0, lasted_s) / MOVING_S)) * (value - self.value)

    def after(self, idle_s: float, value: float = 0.0) -> float:
        """Return the mean if the value was `value` for the last `idle_s`."""
        return value + (self.value - value) * math.exp(-max(0.0, idle_s) / MOVING_S)


@dataclass(frozen=True, slots=True)
class RecentSum:
    """Values of recent events, and how many there were; both fade. The clock is that of all processes of a machine."""

    total: float = 0.0
    weight: float = 0.0
    at_s: float = 0.0  # of the last event

    def faded(self, now: float) -> RecentSum:
        """Return what is left of it now."""
        left = math.exp(-max(0.0, now - self.at_s) / MOVING_S)
        return RecentSum(self.total * left, self.weight * left, now)

    def plus(self, value: float, now: float) -> RecentSum:
        """Return it with one more event."""
        before = self.faded(now)
        return RecentSum(before.total + value, before.weight + 1, now)


def recent_mean(sums: Iterable[RecentSum], now: float) -> float:
    """Return the mean of recent events. Few events count for little, so it falls to 0 when no more come."""
    left = [one.faded(now) for one in sums]
    return sum(one.total for one in left) / (sum(one.weight for one in left) + DOUBTED_TURNS)


class Door:
    """Is open until the use reaches `closes`, then closed until the use falls to BAND below it."""

    def __init__(self, closes: float) -> None:
        self._closes = closes
        self.open = True

    def admits(self, use: float) -> bool:
        """Return whether the door is open with this use."""
        self.open = use < self._closes if self.open else use <= self._closes - BAND
        return self.open


class RoomEstimate:
    """The moving values of one engine and of its server process, and the doors. The caller gives the time."""

    def __init__(self, levels: RoomLevels) -> None:
        self.levels = levels
        self._lag = MovingMean()
        self._conversations = MovingMean()
        self.first_sounds = RecentSum()  # of this process
        self.first_sounds_elsewhere: Sequence[RecentSum] = ()  # of the other processes of the cell, set by the caller
        self._for_new, self._for_resumed = Door(1 - levels.kept), Door(1.0)
        self.engine_lost()

    def engine_lost(self) -> None:
        """Forget what was measured of the engine: there is another one, or none."""
        self._steps, self._blocks = MovingMean(), MovingMean()
        self._reported_s = -math.inf
        self._blocks_now = 0.0  # as reported last
        self._no_blocks = False

    # ---- measuring

    def stepped(self, share: float, lasted_s: float, available: float, now: float) -> None:
        """Add a report of the engine: the step thread's share of the last `lasted_s`, and the available KV blocks.

        `available` is the share of blocks that are free or only cached.
        """
        self._steps.add(min(max(share, 0.0), 1.0), lasted_s)
        self._blocks_now = 1 - min(max(available, 0.0), 1.0)
        self._blocks.add(self._blocks_now, lasted_s)
        self._no_blocks = available <= 0
        self._reported_s = now

    def looped(self, lag_s: float, lasted_s: float, conversations: int) -> None:
        """Add a look at the event loop and at the number of conversations."""
        self._lag.add(max(0.0, lag_s), lasted_s)
        self._conversations.add(conversations, lasted_s)

    def sounded(self, seconds: float, now: float) -> None:
        """Add the time from a person's last sound to the first sound of a reply."""
        self.first_sounds = self.first_sounds.plus(max(0.0, seconds), now)

    # ---- telling

    def uses(self, conversations: int, now: float) -> dict[Measure, float]:
        """Return the use of each measured value with this many conversations; 1 is full."""
        steps, blocks = self._loads(now)
        first_sound = recent_mean((self.first_sounds, *self.first_sounds_elsewhere), now)
        return {
            "steps": self._grown(steps, conversations),
            "blocks": self._grown(blocks, conversations),
            "loop": self._lag.value / self.levels.lag_s,
            "first_sound": first_sound / self.levels.first_sound_s,
        }

    def room_left(self, conversations: int, now: float) -> RoomLeft:
        """Return the room that is left beside `conversations`, and move the doors."""
        uses, levels = self.uses(conversations, now), self.levels
        tightest: Measure = "blocks" if self._no_blocks else max(uses, key=lambda name: uses[name])
        use = uses[tightest]
        new, resumed = self._for_new.admits(use), self._for_resumed.admits(use)
        possible = conversations < levels.most and not self._no_blocks
        sure = conversations < levels.sure
        takes_new, takes_resumed = possible and (new or sure), possible and (resumed or sure)
        free = min(1 - use, 1 - conversations / levels.most)
        return RoomLeft(
            percent=max(1, min(100, int(100 * free))) if takes_new else 0,
            more=self._more(conversations, now, 1 - levels.kept) if takes_new else 0,
            more_resumed=self._more(conversations, now, 1.0) if takes_resumed else 0,
            tightest=tightest,
            use=use,
            takes_new=takes_new,
            takes_resumed=takes_resumed,
        )

    def _loads(self, now: float) -> tuple[float, float]:
        """Return the uses that grow with conversations, as they were measured."""
        idle_s = now - self._reported_s - SILENT_S if math.isfinite(self._reported_s) else 0.0
        blocks = self._blocks.after(idle_s, self._blocks_now)  # an idle engine holds what it has reported last
        return self._steps.after(idle_s) / self.levels.step_share, blocks / self.levels.block_share

    def _cost(self, use: float) -> float:
        """Return the use of one conversation. Before it was measured, `most` of them are expected to fit."""
        seen = self._conversations.value
        return (use + GUESSED_CONVERSATIONS / self.levels.most) / (seen + GUESSED_CONVERSATIONS)

    def _grown(self, use: float, conversations: int) -> float:
        """Return a use with the cost of conversations that are too new to be in it."""
        return use + self._cost(use) * max(0.0, conversations - self._conversations.value)

    def _more(self, conversations: int, now: float, full: float) -> int:
        """Return how many more conversations there are until a use that grows with them is `full`; at least 1."""
        by_load = min(int((full - self._grown(use, conversations)) / self._cost(use)) for use in self._loads(now))
        sure = self.levels.sure - conversations
        return max(1, min(max(by_load, sure), self.levels.most - conversations))


def together(rooms: Sequence[RoomLeft], engines: int, conversations: int, most: int) -> RoomLeft:
    """Return what is left of all engines of a cell; `rooms` are those of the engines that take requests."""
    best = min(rooms, key=lambda room: room.use)
    possible = max(0, most - conversations)
    takes_new = possible > 0 and any(room.takes_new for room in rooms)
    takes_resumed = possible > 0 and any(room.takes_resumed for room in rooms)
    free = min(sum(room.percent for room in rooms) // engines, int(100 * (1 - conversations / most)))
    return RoomLeft(
        percent=max(1, free) if takes_new else 0,
        more=min(sum(room.more for room in rooms), possible) if takes_new else 0,
        more_resumed=min(sum(room.more_resumed for room in rooms), possible) if takes_resumed else 0,
        tightest=best.tightest,
        use=best.use,
        takes_new=takes_new,
        takes_resumed=takes_resumed,
    )

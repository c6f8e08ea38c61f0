"""Measures the room of a server process and its engines, and refuses what has none: reports, the event loop, turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from voxlane.engine.api import StepStats
from voxlane.server import limits
from voxlane.server.cell.counts import CellCounts
from voxlane.server.config import Config, RoomConfig
from voxlane.server.engine_client.engine_client import EngineClient, Observer, State
from voxlane.server.errors import NoRoom
from voxlane.server.room.estimate import Measure, RecentSum, RoomEstimate, RoomLeft, RoomLevels, together
from voxlane.server.watching.metrics import Metrics

STALL_S = 1.0
"""The longest lag that is believed."""

Clock = Callable[[], float]

RoomState = Literal["open", "full", "draining", "no_engine"]


class RoomFacts(Struct, kw_only=True):
    """The measured room for conversations."""

    state: Annotated[RoomState, Meta(description="A full server is ready for clients that resume.")]
    percent: Annotated[int, Meta(ge=0, description="100 when idle, 0 when no more conversations may begin.")]
    more: Annotated[int, Meta(ge=0, description="How many more conversations may begin, as estimated.")]
    conversations: Annotated[int, Meta(ge=0, description="How many there are.")]
    tightest: Annotated[Measure, Meta(description="The measure that limits it.")]
    uses: Annotated[
        dict[str, float], Meta(description="Each measured value, divided by that at which the server is full.")
    ]


@dataclass(frozen=True, slots=True)
class RoomReport:
    """What an operator and a balancer are told."""

    state: RoomState
    room: RoomLeft
    conversations: int
    uses: dict[Measure, float]  # 1 is full; the mean of all engines

    @property
    def facts(self) -> RoomFacts:
        """Return the report as it is sent."""
        return RoomFacts(
            state=self.state,
            percent=self.room.percent,
            more=self.room.more,
            conversations=self.conversations,
            tightest=self.room.tightest,
            uses={name: round(use, 3) for name, use in self.uses.items()},
        )


class EngineRoom(Observer):
    """The room at one engine, as one server process measures it."""

    def __init__(self, number: int, engine: EngineClient, config: Config, counts: CellCounts, clock: Clock) -> None:
        self.engine = engine
        self.number = number
        self._config = config
        self._counts = counts
        self._clock = clock
        self.estimate = RoomEstimate(levels(config.room, config.voice.sessions, on_cpu=True))
        engine.observe(self)

    def stepped(self, message: StepStats) -> None:
        """Add a report of the engine."""
        if message.interval_s > 0:
            share = message.pressing_s / message.interval_s
            self.estimate.stepped(share, message.interval_s, message.blocks_available, self._clock())

    def state_changed(self, state: State) -> None:
        """Forget what was measured of the last engine; a new one may run on another device."""
        self.estimate.engine_lost()
        if state == "ready" and self.engine.ready is not None:
            on_cpu = self.engine.ready.device.startswith("cpu")
            self.estimate.levels = levels(self._config.room, self._config.voice.sessions, on_cpu=on_cpu)

    def sounded(self, seconds: float) -> None:
        """Add the time to a first sound, and let the other processes know: each of them sees few of them."""
        self.estimate.sounded(seconds, self._clock())
        own = self.estimate.first_sounds
        self._counts.put_engine(self.number, "first_sound_sum", own.total)
        self._counts.put_engine(self.number, "first_sound_weight", own.weight)
        self._counts.put_engine(self.number, "first_sound_at_s", own.at_s)

    def room_left(self, conversations: int, now: float) -> RoomLeft:
        """Return the room that is left here beside so many conversations at this engine."""
        self._read_counts()
        return self.estimate.room_left(conversations, now)

    def uses(self, conversations: int, now: float) -> dict[Measure, float]:
        """Return the use of each measured value; 1 is full."""
        self._read_counts()
        return self.estimate.uses(conversations, now)

    def _read_counts(self) -> None:
        """Read the first sounds of the other processes."""
        read = partial(self._counts.engine_elsewhere, self.number)
        columns = zip(read("first_sound_sum"), read("first_sound_weight"), read("first_sound_at_s"), strict=True)
        self.estimate.first_sounds_elsewhere = [RecentSum(*column) for column in columns]


class RoomMeter:
    """The room of one process. Without room.measured it admits everything, and still tells what it has measured.

    Each engine of a cell has an estimate of its own. A conversation is refused only if none of them has room.
    """

    def __init__(
        self,
        config: Config,
        engine: EngineClient,
        metrics: Metrics,
        clock: Clock = time.monotonic,
        counts: CellCounts | None = None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        counts = counts or CellCounts()
        self.engines = [EngineRoom(number, one, config, counts, clock) for number, one in enumerate(engine.members)]
        self.conversations: Callable[[], int] = lambda: 0  # how many there are in the cell; set by the registry
        self.draining: Callable[[], bool] = lambda: False  # whether the whole cell does; set by the registry
        self._told_draining = False
        metrics.on_first_sound.append(self._sounded)
        engine.room_ranks = self._ranks

    # ---- measuring

    def looped(self, lag_s: float, lasted_s: float) -> None:
        """Add a look at the event loop, and show the room in the metrics."""
        # A process that was stopped, as with its machine, was not busy: one long lag counts for little.
        for engine, count in zip(self.engines, self._counts_at_engines(), strict=True):
            engine.estimate.looped(min(lag_s, STALL_S), min(lasted_s, STALL_S), count)
        report = self.report
        self._metrics.room_percent.set(report.room.percent)
        self._metrics.room_more.set(report.room.more)
        for name, use in report.uses.items():
            self._metrics.room_use.labels(name).set(use)

    def _sounded(self, seconds: float, session: str) -> None:
        for one in self.engines:
            if len(self.engines) == 1 or one.engine.has_conversation(session):
                one.sounded(seconds)

    def _counts_at_engines(self) -> list[int]:
        """Return how many of the cell's connected conversations each engine has.

        They are shared out by those that it has a channel for: some of these wait for their client, and connections
        that have not said hello yet have none.
        """
        count = self.conversations()
        if len(self.engines) == 1:
            return [count]
        at = [one.engine.conversations for one in self.engines]
        whole = sum(at)
        return [math.ceil(count * one / whole if whole else count / len(at)) for one in at]

    # ---- deciding

    def check(self, *, resumed: bool = False) -> None:
        """Raise NoRoom if no more conversation is admitted."""
        if not self._config.room.measured:
            return
        room = self._look()
        if self.conversations() < self._config.voice.sessions and not room.takes(resumed=resumed):
            raise _no_room(room)  # else that limit has its own error

    def check_request(self) -> None:
        """Raise NoRoom if an HTTP request would take from conversations what they need."""
        if self._config.room.measured and (count := self.conversations()):
            room = self._look()
            if count < self._config.voice.sessions and not room.takes_new:
                raise self._counted(_no_room(room))

    def _counted(self, error: NoRoom) -> NoRoom:
        self._metrics.refusals.labels(error.detail).inc()
        return error

    def _rooms(self) -> list[RoomLeft]:
        """Return the room at each engine."""
        now = self._clock()
        counts = self._counts_at_engines()
        return [one.room_left(count, now) for one, count in zip(self.engines, counts, strict=True)]

    def _look(self) -> RoomLeft:
        """Return the room of all engines together."""
        rooms = self._rooms()
        if len(rooms) == 1:
            return rooms[0]
        served = [room for room, one in zip(rooms, self.engines, strict=True) if one.engine.connected]
        return together(served or rooms, len(rooms), self.conversations(), self._config.voice.sessions)

    def _ranks(self) -> list[int]:
        """Return how welcome a conversation is at each engine: 2 if it has room, 1 if it has room for resumed ones."""
        if not self._config.room.measured:
            return [2] * len(self.engines)
        return [2 if room.takes_new else int(room.takes_resumed) for room in self._rooms()]

    # ---- telling

    def tell_balancer(self) -> RoomReport:
        """Return what is left now, for a balancer that asks."""
        report = self.report
        self._told_draining = report.state == "draining"
        return report

    @property
    def balancer_knows(self) -> bool:
        """Whether a balancer was told that the cell drains. Without an agent-check there is none that asks."""
        return self._told_draining or not self._config.server.agent_check

    @property
    def report(self) -> RoomReport:
        """Return what is left now."""
        now, room = self._clock(), self._look()
        state: RoomState = "open" if room.takes_new or not self._config.room.measured else "full"
        if not self._engine.connected:
            state = "no_engine"
        if self.draining():
            state = "draining"
        counts = self._counts_at_engines()
        uses = [one.uses(count, now) for one, count in zip(self.engines, counts, strict=True)]
        means = {name: sum(use[name] for use in uses) / len(uses) for name in uses[0]}
        return RoomReport(state, room, self.conversations(), means)


def levels(config: RoomConfig, sessions: int, *, on_cpu: bool) -> RoomLevels:
    """Return the levels of a configuration, with what suits the device in the place of 0."""
    device = "cpu" if on_cpu else "gpu"
    return RoomLevels(
        step_share=config.step_share or limits.ROOM_STEP_SHARE[device],
        block_share=1 - config.blocks_kept,
        lag_s=config.lag_ms / 1e3,
        first_sound_s=config.first_sound_ms / 1e3 or limits.ROOM_FIRST_SOUND_SECONDS[device],
        kept=config.kept_for_resumes,
        sure=min(config.sure, sessions),
        most=sessions,
    )


def _no_room(room: RoomLeft) -> NoRoom:
    return NoRoom(detail=room.tightest, retry_after_s=limits.ROOM_RETRY_SECONDS)

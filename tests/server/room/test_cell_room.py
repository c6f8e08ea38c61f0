"""The room of a cell: an estimate for each engine, and first sounds that all server processes share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxlane.engine.api import Ready, StepStats
from voxlane.server.cell.counts import SharedCounts, make_counts
from voxlane.server.cell.messages import EngineNews
from voxlane.server.config import Config, RoomConfig, VoiceConfig
from voxlane.server.conversation.server_events import Latency
from voxlane.server.engine_client.engine_pool import EnginePool
from voxlane.server.errors import NoRoom
from voxlane.server.room.estimate import RecentSum, RoomEstimate, RoomLeft, recent_mean, together
from voxlane.server.room.meter import RoomMeter, levels
from voxlane.server.watching.metrics import Metrics

READY = Ready("scripted", "llama", 1, 1024, "int8", "float32", 64, 16, 1, "cpu")
CONFIG = Config(voice=VoiceConfig(sessions=100), room=RoomConfig(sure=0))


class Process:
    """One server process of a cell with two engines, and what it measures."""

    def __init__(self, counts: SharedCounts, number: int = 0) -> None:
        self.pool = EnginePool(2, f"{number}.1", counts)
        self.metrics = Metrics()
        self.room = RoomMeter(CONFIG, self.pool, self.metrics, clock=lambda: 1000.0, counts=counts)
        self.room.conversations = lambda: self.pool.conversations
        self.others: list[socket.socket] = []
        for engine in range(2):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.others.append(theirs)
            self.pool.news(EngineNews(engine, "ready", ready=READY))
            self.pool.connect(engine, ours)

    def fill(self, engine: int, share: float = 1.0) -> None:
        """Let an engine report that its step thread was busy for long."""
        sums = (1, 1, 0, 1, share, 0.01, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
        self.pool.members[engine]._deliver(
            StepStats(*sums, interval_s=600.0, pressing_s=share * 600.0, blocks_available=1.0)
        )

    def open(self, name: str) -> int:
        """Begin a conversation; return its engine."""
        self.pool.channel(name, lambda _: None)
        return next(number for number, one in enumerate(self.pool.members) if one.has_conversation(name))

    def sounded(self, name: str, seconds: float) -> None:
        """Count a turn of a conversation."""
        self.metrics.count(Latency(1, 0.0, -1, -1, -1, seconds * 1e3), name)

    async def stop(self) -> None:
        """Leave the engines."""
        await self.pool.stop()
        for one in self.others:
            one.close()


@contextlib.contextmanager
def columns(folder: Path, processes: int) -> Iterator[list[SharedCounts]]:
    make_counts(folder / "counts", processes)
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(contextlib.closing(SharedCounts(folder / "counts", processes, number, b"s" * 32)))
            for number in range(processes)
        ]


async def test_a_cell_refuses_only_when_no_engine_has_room(tmp_path: Path) -> None:
    with columns(tmp_path, 1) as (counts,):
        process = Process(counts)
        for number in range(4):
            process.open(f"voice-{number}")
        process.fill(0)
        process.room.check()
        left = process.room.report
        assert (left.state, left.room.takes_new) == ("open", True)
        assert 0 < left.room.percent <= 50
        process.fill(1)
        with pytest.raises(NoRoom) as refusal:
            process.room.check()
        assert refusal.value.detail == "steps"
        assert process.room.report.room.percent == 0
        await process.stop()


async def test_a_conversation_goes_to_the_engine_with_room(tmp_path: Path) -> None:
    with columns(tmp_path, 1) as (counts,):
        process = Process(counts)
        full = process.open("voice-0")
        for number in range(1, 6):
            process.open(f"voice-{number}")
        process.fill(full)
        while process.pool.members[full].load > 1:  # the full engine has the least to do
            name = next(iter(set(process.pool.members[full]._channels) - {"voice-0"}))
            process.pool.members[full]._channels[name].close()
        assert process.open("voice-6") == 1 - full
        assert process.open("voice-7") == 1 - full
        await process.stop()


async def test_a_choice_looks_at_each_engine_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with columns(tmp_path, 1) as (counts,):
        process, looked = Process(counts), list[RoomEstimate]()
        look = RoomEstimate.room_left

        def counted(estimate: RoomEstimate, conversations: int, now: float) -> RoomLeft:
            looked.append(estimate)
            return look(estimate, conversations, now)

        monkeypatch.setattr(RoomEstimate, "room_left", counted)
        process.open("voice-0")
        assert looked == [engine.estimate for engine in process.room.engines]
        await process.stop()


async def test_an_engine_that_is_lost_leaves_the_room_of_the_other(tmp_path: Path) -> None:
    with columns(tmp_path, 1) as (counts,):
        process = Process(counts)
        for number in range(2):
            process.open(f"voice-{number}")
        process.fill(1)
        process.pool.news(EngineNews(0, "restarting"))
        assert process.room.report.room.percent == 0  # the engine with room is gone
        with pytest.raises(NoRoom):
            process.room.check()
        await process.stop()


async def test_first_sounds_are_those_of_their_engine(tmp_path: Path) -> None:
    with columns(tmp_path, 1) as (counts,):
        process = Process(counts)
        slow = process.open("voice-0")
        assert process.open("voice-1") == 1 - slow
        for _ in range(20):
            process.sounded("voice-0", 9.0)
            process.sounded("voice-1", 0.1)
        assert process.room.engines[slow].room_left(1, 1000.0).tightest == "first_sound"
        assert not process.room.engines[slow].room_left(1, 1000.0).takes_new
        assert process.room.engines[1 - slow].room_left(1, 1000.0).takes_new
        await process.stop()


async def test_sixteen_processes_know_what_each_of_them_measures(tmp_path: Path) -> None:
    """One slow turn closes no door; one at each of sixteen processes is sixteen of the engine."""
    with columns(tmp_path, 16) as counts:
        processes = [Process(one, number) for number, one in enumerate(counts)]
        for number, process in enumerate(processes):
            engine = process.open(f"voice-{number}")
            process.sounded(f"voice-{number}", 9.0)
            assert process.room.engines[engine].estimate.first_sounds.weight == 1
        quiet = processes[0]
        assert quiet.room.report.uses["first_sound"] > 1
        with pytest.raises(NoRoom) as refusal:
            quiet.room.check()
        assert refusal.value.detail == "first_sound"
        for number in range(1, 16):  # all others have died
            counts[0].clear(number)
        quiet.room.check()
        for process in processes:
            await process.stop()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10), st.floats(0, 5)), max_size=30))
def test_the_mean_of_all_processes_is_that_of_one_that_sees_everything(turns: list[tuple[int, float, float]]) -> None:
    sums, one, now = [RecentSum()] * 4, RecentSum(), 0.0
    for process, seconds, later in turns:
        now += later
        sums[process], one = sums[process].plus(seconds, now), one.plus(seconds, now)
    assert recent_mean(sums, now + 1) == pytest.approx(recent_mean([one], now + 1))


shares = st.floats(0, 1)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(shares, st.integers(0, 60)), min_size=2, max_size=4), st.integers(-2, 2))
@example([(0.0, 50), (0.0, 50)], 0)
@example([(0.0, 51), (0.0, 50)], 1)
def test_the_numbers_of_a_cell_agree_with_its_doors(engines: list[tuple[float, int]], beside: int) -> None:
    rooms: list[RoomLeft] = []
    for share, count in engines:
        estimate = RoomEstimate(levels(CONFIG.room, 100, on_cpu=True))
        estimate.looped(0.0, 600.0, count)
        estimate.stepped(share, 600.0, 1.0, 60.0)
        rooms.append(estimate.room_left(count, 60.0))
    total = max(0, sum(count for _, count in engines) + beside)  # some connections have no engine yet
    left = together(rooms, len(rooms), total, 100)
    assert left.takes_new == (total < 100 and any(room.takes_new for room in rooms))
    assert left.takes_resumed == (total < 100 and any(room.takes_resumed for room in rooms))
    assert (left.percent > 0) == (left.more > 0) == left.takes_new
    assert left.more <= left.more_resumed
    assert 0 <= left.more <= max(0, 100 - total)
    assert left.percent <= max(1, *(room.percent for room in rooms))

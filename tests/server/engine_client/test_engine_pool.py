"""The engines of a cell as several server processes see them: what is counted, and which engine is chosen."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from voxlane.engine.api import Ready, Submit
from voxlane.server.cell.counts import SharedCounts, make_counts
from voxlane.server.cell.messages import EngineNews
from voxlane.server.engine_client.engine_pool import EnginePool
from voxlane.server.errors import EngineLost

READY = Ready("scripted", "llama", 1, 1024, "int8", "float32", 64, 16, 1, "cpu")
PROCESSES = ENGINES = 2


@contextlib.asynccontextmanager
async def two_pools(tmp_path: Path) -> AsyncIterator[list[EnginePool]]:
    """The two engines of a cell, as each of two server processes has them."""
    make_counts(tmp_path / "counts", PROCESSES)
    async with contextlib.AsyncExitStack() as opened:
        made = []
        for process in range(PROCESSES):
            counts = SharedCounts(tmp_path / "counts", PROCESSES, process, b"s" * 32)
            opened.callback(counts.close)
            pool = EnginePool(ENGINES, f"{process}.1", counts)
            opened.push_async_callback(pool.stop)
            for engine in range(ENGINES):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.callback(theirs.close)
                pool.news(EngineNews(engine, "ready", ready=READY))
                pool.connect(engine, ours)
            made.append(pool)
        yield made


def loads(pool: EnginePool) -> list[float]:
    return [member.load for member in pool.members]


def submit(name: str) -> Submit:
    return Submit(name, "complete", text="hello")


async def test_requests_and_conversations_of_all_processes_are_counted(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (one, two):
        stream, channel = one.submit(submit("a")), one.channel("voice-1", lambda _: None)
        assert loads(one) == loads(two) == [1, 1]
        more = two.submit(submit("a"))
        assert sum(loads(one)) == sum(loads(two)) == 3
        stream.close()
        channel.close()
        assert sum(loads(two)) == sum(loads(one)) == 1
        more.close()
        assert loads(one) == loads(two) == [0, 0]


async def test_requests_go_where_other_processes_have_the_least(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (one, two):
        kept = [one.submit(submit("a"))]
        busy = loads(one).index(1)
        kept.append(two.submit(submit("b")))
        assert two.members[1 - busy].open_streams == 1
        for stream in kept:
            stream.close()


async def test_requests_of_a_lost_engine_are_counted_no_more(tmp_path: Path) -> None:
    async with two_pools(tmp_path) as (one, two):
        kept = [one.submit(submit(name)) for name in "ab"]
        assert sum(loads(two)) == 2
        one.abandon(lambda: EngineLost(detail="test"))
        assert loads(two) == [0, 0]
        for stream in kept:
            stream.close()

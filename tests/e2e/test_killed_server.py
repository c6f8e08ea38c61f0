"""Server processes that die or are replaced under running conversations, with the SQLite store and a scripted engine.

`make test` kills once among four talkers; `make soak` fifty times among ten: five times in each of ten rounds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from examples import SOAK
from lasting_talk import MessageCount, ServerProcess, Talker

ROUNDS, KILLS, TALKERS = (10, 5, 10) if SOAK else (1, 1, 4)
ROLLING = 20


@pytest.fixture
def servers(tmp_path: Path, no_leaks: None) -> Iterator[list[ServerProcess]]:
    """The servers of a test, which are ended with it."""
    started: list[ServerProcess] = []
    yield started
    with ExitStack() as stack:
        for server in started:
            if server.process.poll() is None:
                stack.callback(server.kill)


def start(servers: list[ServerProcess], folder: Path, port: int = 0) -> ServerProcess:
    servers.append(ServerProcess(folder / "talk.sqlite", folder / "server.log", port))
    return servers[-1]


async def converse(talkers: list[Talker], enough: asyncio.Event) -> None:
    """Let all of them talk, a few turns at a time, until it is enough."""

    async def one(talker: Talker) -> None:
        while not enough.is_set():
            await talker.talk(2)
        await talker.talk(1)
        await talker.finish()

    async with asyncio.TaskGroup() as group:
        for talker in talkers:
            group.create_task(one(talker))


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_killed_servers_lose_nothing_that_was_told(
    tmp_path: Path, servers: list[ServerProcess], seed: int
) -> None:
    chance, count, enough = random.Random(seed), MessageCount(), asyncio.Event()
    server = await asyncio.to_thread(start, servers, tmp_path)
    seeds = range(100 * seed, 100 * seed + TALKERS)
    talkers = [Talker(f"talker {number}", server.url, random.Random(number), count) for number in seeds]
    talking = asyncio.create_task(converse(talkers, enough))
    for _ in range(KILLS):
        waiting = asyncio.create_task(count.wait_more(chance.randrange(TALKERS, 40 * TALKERS)))
        await asyncio.wait({waiting, talking}, return_when=asyncio.FIRST_COMPLETED)
        assert not talking.done(), talking.exception()
        await asyncio.to_thread(server.kill)
        server = await asyncio.to_thread(start, servers, tmp_path, server.port)
    enough.set()
    await talking
    assert not (faults := [fault for talker in talkers for fault in talker.faults]), "\n".join(faults)
    assert all(talker.resumed > 1 for talker in talkers)
    await asyncio.to_thread(server.stop)


@pytest.mark.soak
async def test_a_rolling_restart_drops_no_conversation(tmp_path: Path, servers: list[ServerProcess]) -> None:
    count, enough = MessageCount(), asyncio.Event()
    old = await asyncio.to_thread(start, servers, tmp_path)
    talkers = [Talker(f"talker {number}", old.url, random.Random(number), count) for number in range(ROLLING)]
    talking = asyncio.create_task(converse(talkers, enough))
    await count.wait_more(10 * ROLLING)
    new = await asyncio.to_thread(start, servers, tmp_path, old.port)
    assert await asyncio.to_thread(old.stop) == 0
    await count.wait_more(10 * ROLLING)
    enough.set()
    await talking
    gaps = sorted(gap for talker in talkers for gap in talker.gaps_s)
    print(f"\nhanded over: {len(gaps)}; pause {gaps[len(gaps) // 2] * 1e3:.0f} ms, at most {gaps[-1] * 1e3:.0f} ms")
    assert [fault for talker in talkers for fault in talker.faults] == []
    assert len(gaps) >= ROLLING
    assert await asyncio.to_thread(new.stop) == 0

"""A server process replaced under running conversations: what the clients notice.

Twenty clients type and listen on one server with the SQLite store. A second server process starts on the same port
(`--reuse-port`), and the first one gets SIGTERM when the second is ready. Each conversation finishes its answer, is
handed over in a silence and resumed at the new process. Counted: conversations that were dropped, and turns or words
that were lost, told twice or changed. Measured: the pause at each client, from the close of its connection to `ready`
on the next one. Nothing sounds in that pause, since an answer is heard to its end before. The engine is the tests'
scripted one: the time of models is no part of it. The clients run in this process and share the machine with both
servers.

Time: 10 s for each of --rounds, 3 by default.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

import uvloop
from support.command_line import REPOSITORY, command_line
from support.common import machine, spread

sys.path += [str(REPOSITORY / "tests/support"), str(REPOSITORY / "tests/support/cells")]

from lasting_talk import MessageCount, ServerProcess, Talker

TALKERS = 20
MESSAGES = 20 * TALKERS
"""Messages before and after each restart."""


async def talk(talker: Talker, enough: asyncio.Event) -> None:
    """Talk until it is enough, and check the history."""
    while not enough.is_set():
        await talker.talk(2)
    await talker.talk(1)
    await talker.finish()


async def measure(folder: Path, rounds: int) -> list[Talker]:
    """Replace the server so many times; return the clients."""
    store, log = folder / "talk.sqlite", folder / "server.log"
    server = await asyncio.to_thread(ServerProcess, store, log)
    count, enough = MessageCount(), asyncio.Event()
    talkers = [Talker(f"talker {number}", server.url, random.Random(number), count) for number in range(TALKERS)]
    async with asyncio.TaskGroup() as group:
        for talker in talkers:
            group.create_task(talk(talker, enough))
        for number in range(rounds):
            await count.wait_more(MESSAGES)
            old, server = server, await asyncio.to_thread(ServerProcess, store, log, server.port)
            await asyncio.to_thread(old.stop)
            print(f"restart {number + 1} of {rounds}", file=sys.stderr, flush=True)
        await count.wait_more(MESSAGES)
        enough.set()
    await asyncio.to_thread(server.stop)
    return talkers


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="restarts (%(default)d)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        talkers = uvloop.run(measure(Path(folder), rounds))
    gaps_ms = [gap * 1e3 for talker in talkers for gap in talker.gaps_s]
    faults = [fault for talker in talkers for fault in talker.faults]
    print(f"\n{rounds} rolling restarts under {TALKERS} conversations, {machine()}")
    print(f"  handed over and resumed: {len(gaps_ms)}; dropped: 0; lost, twice or changed: {len(faults)}")
    print(f"  pause at a client, ms: {spread(gaps_ms)}")
    for fault in faults:
        print(f"  {fault}")


if __name__ == "__main__":
    main()

"""The real engine killed again and again under running conversations: what the people at the other end notice.

Two people talk; at a random moment of a reply the engine gets SIGKILL. Counted: sockets that closed, turns that ended
other than once, messages that went missing, and the time from the kill to the fault the client is told of.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

from common import machine, spread
from voice_common import Person, person, server_process, wait_healthy

KILLS = 10
PEOPLE = 2
PAUSE_S = 8.0  # more than five restarts a minute would be taken for a crash that does not go away


async def conversation(url: str, pid: int) -> None:
    """Kill, wait, go on; print what was seen."""
    chance = random.Random(5)
    faults_ms: list[float] = []
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(url, max_tokens=60)) for _ in range(PEOPLE)]
        for _ in range(KILLS):
            marks = [len(somebody.events) for somebody in people]
            for somebody in people:
                await somebody.client.say("Tell me about the sea.")
            for somebody, mark in zip(people, marks, strict=True):
                assert await somebody.wait("audio", mark, 60.0), "no reply"
            await asyncio.sleep(chance.uniform(0.0, 0.8))
            marks = [len(somebody.events) for somebody in people]
            killed_s = time.perf_counter()
            os.kill(engine_of(pid), signal.SIGKILL)
            for somebody, mark in zip(people, marks, strict=True):
                fault = await somebody.wait("error", mark, 10.0)
                assert fault is not None, "nobody was told"
                faults_ms.append((fault[0] - killed_s) * 1e3)
            await asyncio.sleep(PAUSE_S)
            await asyncio.to_thread(wait_healthy, url)
        marks = [len(somebody.events) for somebody in people]
        for somebody, mark in zip(people, marks, strict=True):
            await somebody.client.say("Tell me about the moon.")
            assert await somebody.wait("reply_done", mark, 60.0), "the last turn did not work"
            await somebody.wait("turn_done", mark, 5.0)
        print(f"\nengine killed {KILLS} times under {PEOPLE} conversations, {machine()}")
        print(f"  kill to fault, ms: {spread(faults_ms)}")
        for somebody in people:
            report(somebody)


def engine_of(pid: int) -> int:
    """Return the engine's process number."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def report(somebody: Person) -> None:
    """Print one person's books."""
    events = [event for _, event in somebody.events]
    ended = [event["turn"] for event in events if event.name == "turn_done"]
    begun = {event["turn"] for event in events if event.name in ("user_turn", "reply")}
    gaps = sum(1 for a, b in itertools.pairwise(events) if b.sequence != a.sequence + 1)
    closed = somebody.client.close_code
    print(
        f"  turns begun {len(begun)}, ended {len(ended)}, ended twice {len(ended) - len(set(ended))}, "
        f"gaps in the sequence {gaps}, socket {'open' if closed is None else closed}"
    )


def main() -> None:
    """Run it against a real server."""
    with server_process() as (url, pid):
        asyncio.run(conversation(url, pid))


if __name__ == "__main__":
    main()

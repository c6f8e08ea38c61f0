"""The real engine killed again and again under running conversations: what the clients notice.

Two people talk; at a random moment of a reply the engine gets SIGKILL. Counted: sockets that closed, turns that did not
end exactly once, lost messages, lines of the history that differ from what was said and heard, and the time from the
kill to the error message at the client. When all clients have left, the script prints what the server and the new
engine still hold. The default models, ten kills; no peer.

Time: some three minutes, with a pause after each kill.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import sys
import time
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

from support.command_line import command_line
from support.common import machine, spread
from support.conversation import Person, person, server_process, wait_healthy

from voxlane.server.client import Event

KILLS = 10
PEOPLE = 2
PAUSE_S = 13.0  # the server gives up after more than five restarts a minute


async def conversation(url: str, pid: int) -> None:
    """Kill the engine, wait until it is back, and go on; print the counts."""
    chance = random.Random(5)
    faults_ms: list[float] = []
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(url, max_tokens=60)) for _ in range(PEOPLE)]
        for kill in range(KILLS):
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
                assert fault is not None, "no error message came"
                faults_ms.append((fault[0] - killed_s) * 1e3)
            await asyncio.sleep(PAUSE_S)
            await asyncio.to_thread(wait_healthy, url)
            told = f"kill {kill + 1} of {KILLS}: told after {faults_ms[-1]:.0f} ms, engine is back"
            print(told, file=sys.stderr, flush=True)
        marks = [len(somebody.events) for somebody in people]
        for somebody, mark in zip(people, marks, strict=True):
            await somebody.client.say("Tell me about the moon.")
            assert await somebody.wait("reply_done", mark, 60.0), "the last turn did not work"
            await somebody.wait("turn_done", mark, 5.0)
        print(f"\nengine killed {KILLS} times under {PEOPLE} conversations, {machine()}")
        print(f"  kill to fault, ms: {spread(faults_ms)}")
        for somebody in people:
            events, closed = [event for _, event in somebody.events], somebody.client.close_code
            report(events, closed, await history(somebody))


async def history(somebody: Person) -> list[tuple[str, str]]:
    """Break the connection, and return the history that the server sends after the reconnection."""
    mark = len(somebody.events)
    socket = somebody.client._socket
    assert socket is not None
    socket.transport.abort()
    ready = await somebody.wait("ready", mark, 10.0)
    assert ready is not None, "the conversation was not taken up again"
    return [(line["role"], line["content"]) for line in ready[1]["history"]]


def engine_of(pid: int) -> int:
    """Return the engine's process number."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def holdings(url: str, pid: int) -> dict[str, int]:
    """Return the counts of everything that could leak."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        metrics = answer.read().decode()

    def gauge(name: str) -> int:
        found = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
        assert found is not None, name
        return int(float(found[1]))

    return {
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "child processes": len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()),
        "conversations": gauge("voxlane_sessions"),
        "requests in the engine": sum(
            gauge(f'voxlane_engine_requests{{state="{state}"}}') for state in ("running", "waiting", "paused")
        ),
        "KV blocks in use": gauge('voxlane_kv_blocks{state="used"}'),
    }


def report(events: list[Event], closed: int | None, told: list[tuple[str, str]]) -> None:
    """Print the counts of one person."""
    ended = [event["turn"] for event in events if event.name == "turn_done"]
    begun = {event["turn"] for event in events if event.name in ("user_turn", "reply")}
    gaps = sum(1 for a, b in itertools.pairwise(events) if b.sequence != a.sequence + 1)
    said = [("user", event["text"]) for event in events if event.name == "user_turn"]
    heard = [event["heard"] for event in events if event.name == "interrupted"]
    heard += [event["text"] for event in events if event.name == "reply_done"]
    wrong = [line for line in told if line[0] == "assistant" and line[1] not in heard]
    kept = [line for line in told if line[0] == "user"] == said
    print(
        f"  turns begun {len(begun)}, ended {len(ended)}, ended twice {len(ended) - len(set(ended))}, "
        f"gaps in the sequence {gaps}, socket {'open' if closed is None else closed}, "
        f"what was said is {'all' if kept else 'NOT'} in the history, {len(wrong)} of its lines were not heard so"
    )


def main() -> None:
    """Run it against a real server."""
    command_line(__doc__).parse_args()
    with server_process() as (url, pid):
        before = holdings(url, pid)
        asyncio.run(conversation(url, pid))
        deadline_s = time.monotonic() + 15.0
        while (after := holdings(url, pid)) != before and time.monotonic() < deadline_s:
            time.sleep(0.5)
        for name, held in after.items():
            print(f"  {name}: {before[name]} before, {held} after")


if __name__ == "__main__":
    main()

"""The real engine killed and stopped again and again under running conversations: what the clients notice.

Two people talk; at a random moment of a reply the engine gets SIGKILL or SIGSTOP. Counted: sockets that closed, turns
that did not end exactly once, lost messages, lines of the history that differ from what was said and heard.

Measured, beside the limits: the time until the server notices (`/readyz` says so); from there until the clients are
told; and until the engine answers again, which is when a short chat request has its answer. The people speak again as
soon as they are told, so that request has company: the first words of the next reply to all of them are a line of their
own. For an engine that is stopped, the last two begin when the server notices.

When all clients have left, the script prints what the server and the new engine still hold. The default models, ten
kills and five stops; no peer.

Time: some five minutes, with a pause after each blow; `--kills 100 --stops 20` takes half an hour.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from support.command_line import command_line
from support.common import machine, table
from support.conversation import Person, person, server_process

from voxlane.server.client import Event

PEOPLE = 2
PAUSE_S = 12.5  # more than five restarts a minute are reported as a failure, and begin after longer waits
POLL_S = 0.01
LIMITS_S = {"noticed": "3", "told": "0.25", "answering again": "5", "next reply": ""}
QUESTION = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 1}


@dataclass(slots=True)
class Times:
    """What was measured for one kind of blow, in seconds."""

    noticed: list[float] = field(default_factory=list)  # from the blow
    told: list[float] = field(default_factory=list)  # from the noticing
    answering: list[float] = field(default_factory=list)  # from the blow; from the noticing if the engine was stopped
    replying: list[float] = field(default_factory=list)  # the same, to the first words of the next reply to all people

    def rows(self, name: str) -> list[list[str]]:
        """Return a line of a table for each measure."""
        measures = zip(LIMITS_S.items(), (self.noticed, self.told, self.answering, self.replying), strict=True)
        return [[f"{name}: {what}", *spread_of(values), limit] for (what, limit), values in measures if values]


def spread_of(values: Sequence[float]) -> list[str]:
    """Return the median, the 95th percentile and the largest of some seconds as text."""
    ordered = sorted(values)
    late = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return [f"{value:.3f}" for value in (statistics.median(ordered), late, ordered[-1])]


async def conversation(url: str, pid: int, kills: int, stops: int) -> None:
    """Strike the engine, wait until it answers again, and go on; print the counts."""
    chance = random.Random(5)
    blows = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    chance.shuffle(blows)
    times = {signal.SIGKILL: Times(), signal.SIGSTOP: Times()}
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(url, max_tokens=60)) for _ in range(PEOPLE)]
        for number, blow in enumerate(blows, start=1):
            await ask_all(people, "Tell me about the sea.", "audio")
            await asyncio.sleep(chance.uniform(0.0, 0.8))
            await strike(url, pid, people, blow, times[blow])
            last = times[blow]
            figures = ", ".join(
                f"{values[-1]:.2f} s" for values in (last.noticed, last.told, last.answering, last.replying)
            )
            print(f"{number} of {len(blows)}, {blow.name}: {figures}", file=sys.stderr, flush=True)
            await asyncio.sleep(PAUSE_S)
        marks = [len(somebody.events) for somebody in people]
        for somebody, mark in zip(people, marks, strict=True):
            await somebody.client.say("Tell me about the moon.")
            assert await somebody.wait("reply_done", mark, 60.0), "the last turn did not work"
            await somebody.wait("turn_done", mark, 5.0)
        load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
        rows = times[signal.SIGKILL].rows("killed") + times[signal.SIGSTOP].rows("stopped")
        title = (
            f"engine killed {kills} and stopped {stops} times under {PEOPLE} conversations, {machine()}, load {load}"
        )
        table(title, ["seconds", "median", "95 %", "most", "limit"], rows)
        for somebody in people:
            events, closed = [event for _, event in somebody.events], somebody.client.close_code
            report(events, closed, await history(somebody))


async def ask_all(people: Sequence[Person], text: str, answer: str) -> list[float]:
    """Let everybody say a text; return when the first event of this name came to each."""
    marks = [len(somebody.events) for somebody in people]
    for somebody in people:
        await somebody.client.say(text)
    found = [await somebody.wait(answer, mark, 120.0) for somebody, mark in zip(people, marks, strict=True)]
    assert all(found), f"no {answer} came"
    return [event[0] for event in found if event is not None]


async def strike(url: str, pid: int, people: Sequence[Person], blow: signal.Signals, times: Times) -> None:
    """Kill or stop the engine; measure what follows."""
    marks = [len(somebody.events) for somebody in people]
    watching = asyncio.Event()
    watch = asyncio.create_task(noticed(url, watching))
    await watching.wait()
    struck_s = time.perf_counter()
    os.kill(engine_of(pid), blow)
    faults = [await somebody.wait("error", mark, 30.0) for somebody, mark in zip(people, marks, strict=True)]
    assert all(faults), "no error message came"
    told_s = [fault[0] for fault in faults if fault is not None]
    answering = asyncio.create_task(answered(url))
    replied_s = await ask_all(people, "Tell me about the sea.", "reply_text")
    noticed_s = min(await watch, *told_s)  # the poll may come later than the message
    times.noticed.append(noticed_s - struck_s)
    times.told.append(max(told_s) - noticed_s)
    begin_s = struck_s if blow is signal.SIGKILL else noticed_s
    times.answering.append(await answering - begin_s)
    times.replying.append(max(replied_s) - begin_s)


async def noticed(url: str, watching: asyncio.Event) -> float:
    """Return when the server says that it is not ready."""
    async with httpx.AsyncClient(verify=False) as client:
        while True:
            answer = await client.get(f"{url}/readyz")
            if answer.status_code != 200:
                return time.perf_counter()
            watching.set()
            await asyncio.sleep(POLL_S)


async def answered(url: str) -> float:
    """Return when a chat request is answered; it is sent again while it is refused."""
    async with httpx.AsyncClient(verify=False, timeout=120.0) as client:
        while True:
            answer = await client.post(f"{url}/v1/chat/completions", json=QUESTION)
            if answer.status_code == 200:
                return time.perf_counter()
            await asyncio.sleep(POLL_S)


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
    """Return the process number of the engine that serves: the template's fork, or the server's child."""
    template = children(pid)[0]
    return next(iter(children(template)), template)


def children(pid: int) -> list[int]:
    """Return the numbers of a process's children."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def shares(pid: int) -> str:
    """Return how much memory the template and the engine take; what they share is counted half for each."""
    found = {"template": children(pid)[0], "engine": engine_of(pid)}
    return ", ".join(f"{name} {proportional_mib(one)} MiB" for name, one in found.items())


def proportional_mib(pid: int) -> int:
    """Return a process's proportional share of memory in MiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    size = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    assert size is not None
    return int(size[1]) // 1024


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
        "child processes": len(children(pid)),
        "their children": sum(len(children(child)) for child in children(pid)),
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
    kept = [line for line in told if line[0] == "user"]  # of a long conversation, the last turns
    right = bool(kept) and kept == said[len(said) - len(kept) :]
    print(
        f"  turns begun {len(begun)}, ended {len(ended)}, ended twice {len(ended) - len(set(ended))}, "
        f"gaps in the sequence {gaps}, socket {'open' if closed is None else closed}, "
        f"the history has the last {len(kept)} turns {'as they were said' if right else 'WRONG'}, "
        f"{len(wrong)} of its answers were not heard so"
    )


def main() -> None:
    """Run it against a real server."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--stops", type=int, default=5)
    arguments = parser.parse_args()
    with server_process() as (url, pid):
        before = holdings(url, pid)
        asyncio.run(conversation(url, pid, arguments.kills, arguments.stops))
        deadline_s = time.monotonic() + 15.0
        while (after := holdings(url, pid)) != before and time.monotonic() < deadline_s:
            time.sleep(0.5)
        for name, held in after.items():
            print(f"  {name}: {before[name]} before, {held} after")
        print(f"  memory: {shares(pid)}")


if __name__ == "__main__":
    main()

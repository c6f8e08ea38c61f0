"""What tests of several cells share: clients that resume elsewhere, a crowd that talks through a fault, and figures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from cells import Balancer
from lasting_talk import MessageCount, Talker
from peer import Peer, eventually


def figures(values_s: Sequence[float]) -> str:
    """Return the median and the most of some times, in milliseconds."""
    ordered = sorted(values_s)
    return f"median {ordered[len(ordered) // 2] * 1e3:.0f} ms, most {ordered[-1] * 1e3:.0f} ms, of {len(ordered)}"


def gaps(talkers: list[Talker]) -> list[float]:
    """Return the times from the end of a connection to `ready` on the next one, of those that had any."""
    return [gap for talker in talkers for gap in talker.gaps_s]


class Waits:
    """How long a crowd waits until it is told its turns, by parts of a test."""

    def __init__(self, talkers: list[Talker]) -> None:
        self._talkers = talkers
        self._parts: list[tuple[str, list[float]]] = []
        self._seen = [0] * len(talkers)

    def mark(self, name: str) -> None:
        """Name the part that ends now."""
        found = [one for talker, seen in zip(self._talkers, self._seen, strict=True) for one in talker.waits_s[seen:]]
        self._seen = [len(talker.waits_s) for talker in self._talkers]
        self._parts.append((name, found))

    async def each_says(self, number: int) -> None:
        """Wait until each has said so much more."""
        wanted = [len(talker.waits_s) + number for talker in self._talkers]
        await eventually(
            lambda: all(len(talker.waits_s) >= one for talker, one in zip(self._talkers, wanted, strict=True))
        )

    def tell(self) -> None:
        """Print the figures of the parts that have a name."""
        for name, waits_s in self._parts:
            if name:
                print(f"from a turn to its message, {name}: {figures(waits_s)}")


def weight(balancer: Balancer, name: str) -> int:
    """Return the weight of a cell that is up, 0 if it is not, or takes nothing new."""
    state, _, number = balancer.states()[name].partition(" ")
    return int(number) if state == "UP" else 0


def last_of(peer: Peer) -> int:
    return max((message[1] for message in peer.seen if message[0] != "ready"), default=0)


async def resume(url: str, peer: Peer, at: str | None) -> Peer:
    await peer.socket.wait_closed()  # it was dropped; its tasks end
    return await Peer.open(url, {"resume": peer.ready["token"], "last_seq": last_of(peer)}, at=at)


def said(peer: Peer) -> list[str]:
    return [message["content"] for message in peer.ready["history"] if message["role"] == "user"]


async def leave(peer: Peer) -> None:
    """Say good-bye, and let the tasks of the connection end."""
    await peer.bye()
    await asyncio.sleep(0)


async def close_code(peer: Peer, hello: dict[str, Any]) -> int:
    await peer.send("hello", hello)
    return await peer.closed()


async def talking(
    talkers: list[Talker], count: MessageCount, faults: Callable[[], Any], messages: int = 20
) -> list[int]:
    """Let all talk, do `faults` among it, and check everybody's history; return how often each had to resume before."""
    enough, resumed = asyncio.Event(), [0] * len(talkers)

    async def talk(place: int, talker: Talker) -> None:
        while not enough.is_set():
            await talker.talk(2)
        await talker.talk(1)
        resumed[place] = talker.resumed
        await talker.finish()

    async with asyncio.TaskGroup() as group:
        for place, talker in enumerate(talkers):
            group.create_task(talk(place, talker))
        await eventually(lambda: all(talker.at for talker in talkers))
        await count.wait_more(messages * len(talkers))
        await faults()
        await count.wait_more(messages * len(talkers))
        enough.set()
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})  # connections end a moment later
    found = [fault for talker in talkers for fault in talker.faults]
    assert not found, "\n".join(found)
    return resumed


def crowd(number: int, *urls: str) -> tuple[list[Talker], MessageCount]:
    count = MessageCount()
    return [Talker(f"talker {one}", urls[0], random.Random(one), count, *urls[1:]) for one in range(number)], count


async def told(peer: Peer, name: str) -> None:
    """Read on until a message of this name was seen."""
    if name not in [message[0] for message in peer.seen]:
        await peer.until(name)


async def resumable(peer: Peer) -> None:
    """Read on until the store has everything again."""
    while not ([peer.ready["resumable"]] + [message[2] for message in peer.seen if message[0] == "resumable"])[-1]:
        await peer.until("resumable")


async def retried(url: str, peer: Peer, at: str) -> Peer:
    """Resume; try again as long as the server says that it cannot be checked."""
    await peer.socket.wait_closed()
    hello = {"resume": peer.ready["token"], "last_seq": last_of(peer)}
    while True:
        again = await Peer.open(url, at=at)
        await again.send("hello", hello)
        if (await again.next())[0] == "ready":
            return again
        assert await again.closed() == 1013

"""The engine dies again and again under conversations: no socket closes, every turn ends once, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import pytest
from house import ENGINE_COMMAND, start
from peer import Peer, eventually, speech

from voxlane.server.engine_client.engine_process import RestartBudget

PEOPLE, KILLS = 4, 10
HELLO: dict[str, Any] = {"config": {"turns": {"mode": "manual"}, "voice": "two", "buffer_s": 0.2}}


async def converse(peer: Peer, chance: random.Random, done: asyncio.Event) -> None:
    """Speak and type, wait for answers or not, until told to stop."""
    while not done.is_set():
        if chance.random() < 0.5:
            await peer.send("text", "size")
            await peer.until(chance.choice(["turn_done", "user_turn"]))
        else:
            await peer.send("start")
            await peer.send("audio", speech("size", 0.01))
            await peer.send("end")
            await peer.until("turn_done")
    await peer.send("ping", 1)
    await peer.until("pong")


@pytest.mark.usefixtures("no_leaks")
async def test_the_engine_is_killed_ten_times() -> None:
    chance = random.Random(7)
    async with start(command=ENGINE_COMMAND, restarts=RestartBudget(most=1000, window_s=0.0)) as running:
        link, metrics = running.service.engine, running.service.metrics
        peers = [await Peer.open(running.url, HELLO) for _ in range(PEOPLE)]
        done = asyncio.Event()
        talks = [asyncio.create_task(converse(peer, random.Random(n), done)) for n, peer in enumerate(peers)]
        for _ in range(KILLS):
            ended = sum(metrics.turns.labels(how)._value.get() for how in ("done", "interrupted", "failed"))
            wanted = ended + chance.randrange(1, 6)

            def busy(wanted: float = wanted) -> bool:
                turns = sum(metrics.turns.labels(how)._value.get() for how in ("done", "interrupted", "failed"))
                return turns >= wanted and link.pid is not None and link.state == "ready"

            await eventually(busy)
            killed = link.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await eventually(lambda killed=killed: link.state != "ready" or link.pid not in (None, killed))
        await link.wait_ready()
        done.set()
        await asyncio.gather(*talks)
        for peer in peers:
            # The scripted engine answers with all that was said since the last answer: too long to hear it out.
            await peer.send("config", {"speaks": False})
            await peer.send("text", "size please")
            turn = await peer.until("user_turn", lambda message: message[3] == "size please")
            end = await peer.until("turn_done", lambda message, turn=turn[2]: message[2] == turn)
            assert end[3] == "done"
            assert peer.of("error")
            ends = [message[2] for message in peer.of("turn_done")]
            assert len(ends) == len(set(ends))
            begun = {message[2] for message in peer.of("user_turn") + peer.of("speech_started")}
            assert begun <= set(ends)
            assert [message[1] for message in peer.seen] == list(range(1, len(peer.seen) + 1))
            await peer.bye()
        assert not link._channels
        assert len(running.service.sessions.conversations) == 0
        await eventually(lambda: metrics.engine_requests.labels("running")._value.get() == 0)

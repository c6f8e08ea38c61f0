"""/livez, /readyz and /healthz, and what is refused while there is no engine."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from peer import MANUAL, Peer, eventually
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from voxlane.engine.api import EngineConfig
from voxlane.server.commands.serve import drain

TOLD = re.compile(r"The engine is not ready\. It (is starting|was lost and is starting again); try again in (\d+) s\.")


class Kept:
    """A running server whose engine can be taken away and brought back."""

    def __init__(self, running: Any) -> None:
        self.engine, self._running = running.service.engine, running
        self._config = self.engine._config

    async def lose(self) -> None:
        self.engine._config = EngineConfig("never-ready")
        self._running.kill_engine()
        await eventually(lambda: self.engine.state == "restarting" and self.engine._pipe is not None)

    async def bring_back(self) -> None:
        self.engine._config = self._config
        self._running.kill_engine()
        await eventually(lambda: self.engine.state == "ready")


async def status_of(running: Any) -> dict[str, int]:
    paths = ("/livez", "/readyz", "/healthz")
    return {path: (await running.client.get(path)).status_code for path in paths}


async def test_all_is_well(serving: Any) -> None:
    async with serving() as running:
        assert await status_of(running) == {"/livez": 200, "/readyz": 200, "/healthz": 200}
        alive = (await running.client.get("/livez")).json()
        assert (alive["status"], alive["key_needed"]) == ("alive", False)
        ready = (await running.client.get("/readyz")).json()
        assert (ready["status"], ready["at"]) == ("ready", running.service.config.server.at)


async def test_everyone_may_know_that_a_key_is_needed(serving: Any) -> None:
    async with serving(api_key="k") as running:
        assert (await running.client.get("/livez")).json()["key_needed"]
        assert (await running.client.get("/v1/models")).status_code == 401


async def test_without_an_engine_the_process_lives_and_is_not_ready(serving: Any) -> None:
    async with serving(model="never-ready", wait=False) as running:
        assert await status_of(running) == {"/livez": 200, "/readyz": 503, "/healthz": 503}
        for answer in (await running.client.get("/readyz"), await running.chat("hello")):
            told = TOLD.fullmatch(answer.json()["error"]["message"])
            assert told is not None
            assert answer.headers["retry-after"] == told[2]
            assert answer.json()["error"]["code"] == "engine_not_ready"


async def test_a_draining_server_lives_and_is_not_ready(serving: Any) -> None:
    async with serving() as running:
        running.service.request_limit.closed = True
        assert await status_of(running) == {"/livez": 200, "/readyz": 503, "/healthz": 503}
        assert (await running.client.get("/readyz")).json()["error"]["code"] == "draining"


@pytest.mark.parametrize(("path", "subprotocol"), [("/v1/voice", "voxlane.v1"), ("/v1/realtime", "realtime")])
async def test_a_new_conversation_is_refused_before_the_upgrade(serving: Any, path: str, subprotocol: str) -> None:
    async with serving() as running:
        kept = Kept(running)
        await kept.lose()
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{running.url.replace('http', 'ws')}{path}", subprotocols=[Subprotocol(subprotocol)])
        answer = refused.value.response
        assert answer.status_code == 503
        told = TOLD.fullmatch(json.loads(answer.body or b"")["error"]["message"])
        assert told is not None
        assert answer.headers["retry-after"] == told[2]
        await kept.bring_back()
        peer = await Peer.open(running.url, MANUAL)
        assert (await peer.say("hello again"))[-1][3] == "done"
        await peer.bye()


async def test_a_running_conversation_stays_and_can_be_resumed_while_there_is_no_engine(serving: Any) -> None:
    async with serving() as running:
        kept = Kept(running)
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("remember this")
        await kept.lose()
        await peer.until("error")
        await peer.send("ping", 1)
        await peer.until("pong")
        peer.socket.transport.abort()
        back = await Peer.open(running.url, {**MANUAL, "resume": peer.ready["token"], "last_seq": len(peer.seen)})
        other = await Peer.open(running.url)  # the address has a conversation, so that its sockets are let in
        await other.send("hello", MANUAL)
        assert await other.closed() == 1013
        assert other.seen[-1][2] == "engine_not_ready"
        await kept.bring_back()
        told = await back.say("history")
        assert "user=remember this" in "".join(message[3] for message in told if message[0] == "reply_text")
        await back.bye()


async def test_restarts_are_counted_by_cause(serving: Any) -> None:
    async with serving() as running:
        text = (await running.client.get("/metrics")).text
        assert 'voxlane_engine_restarts_total{cause="hung"} 0.0' in text
        running.kill_engine()
        await eventually(lambda: running.service.engine.state != "ready")
        await running.service.engine.wait_ready()
        text = (await running.client.get("/metrics")).text
        assert 'voxlane_engine_restarts_total{cause="died"} 1.0' in text
        took = re.search(r"^voxlane_engine_restart_seconds (\S+)$", text, re.MULTILINE)
        assert took is not None
        assert float(took[1]) > 0


async def test_a_server_that_drains_without_an_engine_ends(serving: Any) -> None:
    async with serving() as running, asyncio.timeout(60):
        await Kept(running).lose()
        await drain(running.service, running.http)
        assert running.service.sessions.conversations.draining
        assert running.service.request_limit.inside == 0

"""The line that a balancer is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from cells import free_port
from peer import MANUAL, Peer, eventually

from voxlane.engine.api import StepStats
from voxlane.server import limits
from voxlane.server.cell.counts import SharedCounts, make_counts
from voxlane.server.cell.seat import CellSeat
from voxlane.server.commands.serve import drain
from voxlane.server.config import RoomConfig, ServerConfig, StoreConfig, load
from voxlane.server.errors import ConfigError
from voxlane.server.room.agent_check import AgentCheck, answer_of


async def asked(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_balancer_is_told_the_room(serving: Any) -> None:
    port = free_port()
    server = ServerConfig(agent_check=f"127.0.0.1:{port}", at="cell1")
    async with serving(server=server, parts={"room": RoomConfig(sure=0, lag_ms=10_000)}) as running:
        service = running.service
        answer = await asked(port)
        up, share, most = answer.split()
        assert answer.endswith("\n")
        assert (up, share[-1]) == ("up", "%")
        assert 0 < int(share[:-1]) <= 100
        assert most.startswith("maxconn:")
        peer = await Peer.open(running.url, MANUAL)
        assert peer.ready["at"] == "cell1"
        sums = (1, 1, 0, 1, 600.0, 0.01, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
        service.room.engines[0].stepped(StepStats(*sums, interval_s=600.0, pressing_s=600.0))
        assert await asked(port) == f"up 0% maxconn:{1 + limits.AGENT_SPARE_CONNECTIONS}\n"  # full
        service.room.engines[0].state_changed("ready")
        assert not (await asked(port)).startswith("up 0%")
        service.sessions.conversations.draining = True
        assert (await asked(port)).startswith("up 0% ")
        service.sessions.conversations.draining = False
        await peer.bye()
        await eventually(lambda: not service.room.conversations())


async def test_a_process_that_drains_answers_for_its_cell(serving: Any, tmp_path: Path) -> None:
    port = free_port()
    make_counts(tmp_path / "counts", 2)
    with contextlib.ExitStack() as opened:
        own, other = (
            opened.enter_context(contextlib.closing(SharedCounts(tmp_path / "counts", 2, number, b"s" * 32)))
            for number in (0, 1)
        )
        server = ServerConfig(agent_check=f"127.0.0.1:{port}")
        async with serving(server=server, seat=CellSeat(own)) as running:
            other.put("serving", 1)
            running.service.sessions.conversations.draining = True
            assert not (await asked(port)).startswith("up 0% ")  # an operator replaces this process alone
            other.put("serving", 0)
            assert (await asked(port)).startswith("up 0% ")  # the cell drains
            running.service.sessions.conversations.draining = False


async def test_conversations_are_handed_over_when_the_balancer_knows(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BALANCER_ASKS_SECONDS", 3600.0)
    port = free_port()
    server = ServerConfig(agent_check=f"127.0.0.1:{port}", drain_s=3600)
    store = StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)
    async with serving(server=server, store=store) as running:
        peer = await Peer.open(running.url, MANUAL)
        ending = asyncio.create_task(drain(running.service, running.http))
        await eventually(lambda: running.service.sessions.conversations.draining)
        assert (await peer.say("still here"))[-1][3] == "done"
        assert (await asked(port)).startswith("up 0% ")
        assert await peer.closed() == 1012
        await ending


async def test_a_server_that_was_not_ready_yet_is_down(serving: Any) -> None:
    port = free_port()
    server = ServerConfig(agent_check=f"127.0.0.1:{port}")
    async with serving(model="never-ready", server=server, wait=False):
        assert await asked(port) == "down\n"
    assert answer_of(None) == "down"


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"server\.agent_check: {address}: "):
            async with AgentCheck(ServerConfig(agent_check=address), lambda: None):
                pass


@pytest.mark.parametrize(("key", "value"), [("agent_check", "9100"), ("at", "cell 1"), ("at", "x" * 65)])
def test_wrong_settings_are_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"server\.{key} must be"):
        load(None, {f"server.{key}": value})

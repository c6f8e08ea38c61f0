"""A conversation that moves between server processes with one store: the newest copy counts, wherever it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from peer import MANUAL, Peer, eventually, speech

from voxlane.server.config import StoreConfig
from voxlane.server.errors import StoreUnavailable
from voxlane.server.store.sqlite import SqliteStore


def stored(tmp_path: Path) -> StoreConfig:
    return StoreConfig("sqlite", str(tmp_path / "conversations.sqlite"), wait_s=10.0)


async def test_a_stale_copy_is_not_preferred_to_the_store(serving: Any, tmp_path: Path) -> None:
    """From A to B and back to A with A's token: B's token never reached the client, and A has an old copy."""
    async with serving(store=stored(tmp_path)) as first, serving(store=stored(tmp_path)) as second:
        peer = await Peer.open(first.url, MANUAL)
        await peer.say("one")
        token = peer.ready["token"]
        peer.drop()
        await eventually(lambda: first.service.sessions.conversations.parked)
        at_second = await Peer.open(second.url, {"resume": token})
        at_second.drop()
        await eventually(lambda: second.service.sessions.conversations.parked)
        again = await Peer.open(first.url, {"resume": token})
        assert [message["content"] for message in again.ready["history"]] == ["one", "one"]
        assert (await again.say("two"))[-1][3] == "done"
        assert len(first.service.sessions.conversations) == 1
        at_last = await Peer.open(second.url, {"resume": again.ready["token"]})
        assert [message["content"] for message in at_last.ready["history"]] == ["one", "one", "two", "two"]
        await again.send("text", "not here any more")  # the next write finds another owner
        assert await again.closed() == 4409
        await at_last.bye()


async def test_a_copy_that_is_still_ours_is_resumed_as_it_is(serving: Any, tmp_path: Path) -> None:
    async with serving(store=stored(tmp_path)) as server:
        peer = await Peer.open(server.url, MANUAL)
        await peer.say("one")
        (before,) = server.service.sessions.conversations.values()
        peer.drop()
        await eventually(lambda: server.service.sessions.conversations.parked)
        again = await Peer.open(server.url, {"resume": peer.ready["token"]})
        assert list(server.service.sessions.conversations.values()) == [before]
        assert not server.service.sessions.conversations.parked
        await again.bye()


async def test_a_process_lets_go_of_a_conversation(serving: Any, tmp_path: Path) -> None:
    async with serving(store=stored(tmp_path)) as server:
        sessions = server.service.sessions
        live, parked = await Peer.open(server.url, MANUAL), await Peer.open(server.url, MANUAL)
        parked.drop()
        await eventually(lambda: sessions.conversations.parked)
        for peer in (live, parked):
            await sessions.moving.let_go(peer.ready["session"])
        assert await live.closed() == 4409
        assert len(sessions.conversations) == 0
        again = await Peer.open(server.url, {"resume": parked.ready["token"]})  # the record stays
        await again.bye()


async def test_what_was_told_is_stored_before_a_conversation_is_let_go(serving: Any, tmp_path: Path) -> None:
    async with serving(store=stored(tmp_path)) as first, serving(store=stored(tmp_path)) as second:
        peer = await Peer.open(first.url, MANUAL)
        await peer.send("start")
        await peer.send("audio", speech("hello there"))
        await peer.send("ping", 1)
        heard_s = (await peer.until("pong"))[3]
        assert heard_s > 0
        await first.service.sessions.moving.let_go(peer.ready["session"])
        again = await Peer.open(second.url, {"resume": peer.ready["token"]})
        await again.send("ping", 2)
        assert (await again.until("pong"))[3] == heard_s
        await again.bye()


async def test_a_store_that_has_failed_is_tried_once_more_before_a_conversation_is_let_go(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailable

    async with serving(store=stored(tmp_path)) as first, serving(store=stored(tmp_path)) as second:
        peer = await Peer.open(first.url, MANUAL)
        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "write", fail)
            await peer.say("one")  # told all the same: the client knows that it is not in the store
            assert not any(one.movable for one in first.service.sessions.conversations.values())
        await first.service.sessions.moving.let_go(peer.ready["session"])
        again = await Peer.open(second.url, {"resume": peer.ready["token"]})
        assert [message["content"] for message in again.ready["history"]] == ["one", "one"]
        await again.bye()

"""A conversation passes from one connection to another in the very turn of the event loop in which more happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from peer import MANUAL, Peer, eventually

from voxlane.server.protocols.dialect import Hello, Packet, ServerPong
from voxlane.server.sessions.connection import Connection
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.outbound import Outbound, TooSlow


async def test_who_is_still_being_seen_off_does_not_take_the_conversation_along(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, leaving, may_leave = Connection._serve, asyncio.Event(), asyncio.Event()

    async def slowly(self: Connection, *work: Any) -> Any:
        try:
            return await served(self, *work)
        finally:  # a few turns of the event loop, made as long as is wanted
            leaving.set()
            await may_leave.wait()

    monkeypatch.setattr(Connection, "_serve", slowly)
    async with serving() as running:
        registry = running.service.sessions
        peer = await Peer.open(running.url, MANUAL)
        peer.drop()
        await leaving.wait()
        again = await Peer.open(running.url, {"resume": peer.ready["token"]})
        may_leave.set()
        await eventually(lambda: registry.limits.sockets.total() == 1)
        assert not registry.conversations.parked
        assert (await again.say("still me"))[-1][3] == "done"
        await again.bye()


async def test_what_is_said_while_another_takes_over_is_not_for_the_old_connection(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = Connection._take_over

    def after_a_word(self: Connection, hello: Hello) -> Conversation:
        for conversation in self._registry.conversations.values():
            conversation.send(ServerPong(7, 0.0))  # the old connection's writer wakes before the new one's is there
        return take_over(self, hello)

    monkeypatch.setattr(Connection, "_take_over", after_a_word)
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        again = await Peer.open(running.url)
        await again.send("hello", {"resume": peer.ready["token"], "last_seq": 1})
        assert await peer.closed() == 4409
        assert [message[0] for message in peer.seen] == ["ready", "error"]
        await again.until("pong", lambda message: message[2] == 7)
        assert again.ready["resumed"]
        await again.bye()


def test_who_comes_back_to_much_sound_is_not_a_slow_reader() -> None:
    box = Outbound(1.5)
    for place in range(500):  # ten seconds, which a dead line swallowed
        box.put(Packet(("audio",), 1, (place + 1) * 480, 0.02))
        assert box.next() is not None
    box.rewind(0)
    box.put_first(Packet(("ready",)))
    box.put(Packet(("pong",)))
    box.put(Packet(("audio",), 1, 501 * 480, 0.02))
    assert len(box) == 503
    for place in range(170):
        box.put(Packet(("audio",), 1, (502 + place) * 480, 0.02))
    with pytest.raises(TooSlow):  # of what is new no more may wait than before
        box.put(Packet(("audio",), 1, 1000 * 480, 0.2))


async def test_a_token_that_is_worth_nothing_is_told_from_a_key(serving: Any) -> None:
    async with serving(api_key="secret") as running:
        peer = await Peer.open(running.url, {**MANUAL, "key": "secret"})
        used = peer.ready["token"]
        again = await Peer.open(running.url, {"key": "secret", "resume": used})
        await again.send("ping", 1)
        await again.until("pong")
        for token in (used, "x" * 43):
            late = await Peer.open(running.url)
            await late.send("hello", {"key": "secret", "resume": token})
            assert await late.closed() == 4401
            _, _, code, message, retryable, *_ = late.seen[-1]
            assert (code, retryable) == ("invalid_resume_token", False)
            assert "resume token" in message
            assert message.endswith("begin a new one without it.")
        await again.bye()


async def test_a_line_that_breaks_before_ready_costs_no_conversation(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        token = peer.ready["token"]
        unheard = await Peer.open(running.url, {"resume": token})
        again = await Peer.open(running.url, {"resume": token})  # its `ready` is taken for lost
        assert (again.ready["session"], again.ready["resumed"]) == (peer.ready["session"], True)
        assert await unheard.closed() == 4409
        late = await Peer.open(running.url)
        await late.send("hello", {"resume": unheard.ready["token"]})
        assert await late.closed() == 4401
        await again.bye()

"""Conversations that outlive their server process: records in a store, claims, stale owners, a store that fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from peer import MANUAL, Peer, eventually, speech
from redis_server import RedisServer, redis_binary

from voxlane.server import limits
from voxlane.server.commands.serve import drain
from voxlane.server.config import ServerConfig, StoreConfig, VoiceConfig
from voxlane.server.conversation.client_events import TextTurn
from voxlane.server.errors import StoreUnavailable, VoxlaneError
from voxlane.server.sessions.connection import Connection
from voxlane.server.store.sqlite import SqliteStore

SLOW: dict[str, Any] = {"config": {"voice": "two", "turns": {"mode": "manual"}, "buffer_s": 0.5}}


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    """A store that is slow to give up, since the machine may be busy."""
    return StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)


def history(ready: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in ready["history"]]


async def vanish(running: Any) -> None:
    """Let a server forget everything at once and write nothing more, as if it was killed."""
    sessions = running.service.sessions
    for conversation in list(sessions.conversations.values()):
        sessions.conversations.release(conversation)


async def resume(url: str, peer: Peer, **more: Any) -> Peer:
    last = max((message[1] for message in peer.seen if message[0] != "ready"), default=0)
    return await Peer.open(url, {"resume": peer.ready["token"], "last_seq": last, **more})


@pytest.fixture
def redis_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreConfig]:
    """A true Redis or Valkey server as the store."""
    try:
        binary = redis_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    yield StoreConfig("redis", url=server.url, wait_s=10.0)
    server.stop()


async def test_another_machine_goes_on_with_a_conversation(serving: Any, redis_store: StoreConfig) -> None:
    async with serving(store=redis_store) as old, serving(store=redis_store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("hello")
        again = await resume(new.url, peer)
        assert history(again.ready) == [("user", "hello"), ("assistant", "hello")]
        await peer.send("text", "am I still here")
        assert await peer.closed() == 4409
        assert (await again.say("and on"))[-1][2:] == [2, "done"]
        await again.bye()


async def test_another_process_goes_on_with_a_conversation(serving: Any, store: StoreConfig) -> None:
    hello = {"config": {**MANUAL["config"], "instructions": "Be kind.", "voice": "two", "max_tokens": 77}}
    hello["output"] = {"codec": "mulaw", "rate": 8000}
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, hello)
        await peer.say("my name is Anna")
        await peer.send("start")
        await peer.send("audio", speech("hello there"))
        await peer.send("end")
        await peer.until("turn_done")
        await peer.send("ping", 1)
        heard_s = (await peer.until("pong"))[3]
        await vanish(old)
        again = await resume(new.url, peer)
        ready = again.ready
        assert (ready["resumed"], ready["session"], ready["resumable"]) == (True, peer.ready["session"], True)
        assert ready["config"] == {**peer.ready["config"]}
        assert (ready["input"], ready["output"]) == (peer.ready["input"], peer.ready["output"])
        said = [("user", "my name is Anna"), ("assistant", "my name is Anna")]
        said += [("user", "hello there"), ("assistant", "hello there")]
        assert history(ready) == said
        await again.send("ping", 2)
        assert (await again.until("pong"))[3] == heard_s
        told = await again.say("and history")
        assert told[0][:1] + told[0][2:] == ["user_turn", 3, "and history"]
        assert "user=hello there;" in next(message[3] for message in told if message[0] == "reply_done")
        numbers = [message[1] for message in again.seen if message[0] != "ready"]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > max(message[1] for message in peer.seen if message[0] != "ready")
        await again.bye()


async def test_an_open_reply_ends_once_with_what_was_heard(serving: Any, store: StoreConfig) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(store=store)) for _ in range(3)]
        peer = await Peer.open(servers[0].url, SLOW)
        await peer.send("text", "one two three four")
        await peer.until("reply_text", lambda message: message[3] == "four")
        await peer.until("audio", lambda message: bool(message[5]))
        await vanish(servers[0])
        peer.drop()
        played = [1, 24_000 * 8 // 20]  # "one two" and the space
        # The second server dies before the client has read a word: the third one tells it, once.
        lost = await Peer.open(servers[1].url)
        at = peer.seen[-1][1]
        await lost.send("hello", {"resume": peer.ready["token"], "last_seq": at, "played": played})
        await eventually(lambda: len(servers[1].service.sessions.conversations))
        await vanish(servers[1])
        lost.drop()
        again = await Peer.open(servers[2].url, {"resume": peer.ready["token"], "last_seq": at, "played": played})
        assert history(again.ready) == [("user", "one two three four"), ("assistant", "one two")]
        interrupted = await again.until("interrupted")
        assert interrupted[2:4] == [1, "one two"]
        assert (await again.until("turn_done"))[2:] == [1, "interrupted"]
        told = await again.say("next")
        assert [message[2:] for message in told if message[0] == "turn_done"] == [[2, "done"]]
        await again.bye()


async def test_a_turn_without_an_answer_fails_once(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.send("text", "stall")
        await peer.until("reply")
        speaking = await Peer.open(old.url, MANUAL)
        await speaking.send("start")
        await speaking.until("speech_started")
        await vanish(old)
        again = await resume(new.url, peer)
        assert (await again.until("error"))[2:5] == ["server_lost", "the server was restarted; please repeat", True]
        assert (await again.until("turn_done"))[2:] == [1, "failed"]
        assert history(again.ready) == [], "they are said again"
        await again.bye()
        again = await resume(new.url, speaking)
        assert (await again.until("turn_done"))[2:] == [1, "failed"]
        assert (await again.say("typed"))[0][2] == 2
        await again.bye()


async def test_messages_that_were_never_sent_come_from_the_record(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        told = await peer.say("hello")
        await vanish(old)
        known = next(message[1] for message in told if message[0] == "reply")
        again = await Peer.open(new.url, {"resume": peer.ready["token"], "last_seq": known})
        await again.send("ping", 1)
        await again.until("pong")
        repeated = [message for message in told if message[0] in ("reply_done", "turn_done")]
        assert [message for message in again.seen if message[0] not in ("ready", "pong")] == repeated
        await again.bye()


async def test_a_stale_owner_is_refused_and_its_socket_closed(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("hello")
        again = await resume(new.url, peer)
        await peer.send("text", "am I still here")
        assert await peer.closed() == 4409
        assert peer.seen[-1][2] == "resumed_elsewhere"
        assert "am I still here" not in [message[3] for message in peer.of("user_turn")]
        assert len(old.service.sessions.conversations) == 0
        await again.say("and I go on")
        await again.bye()


async def test_a_token_works_once_and_not_after_the_end(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        first = peer.ready["token"]
        again = await Peer.open(new.url, {"resume": first})
        await again.say("the token has arrived")
        await eventually(lambda: len(new.service.sessions.conversations.tokens._names) == 1)
        await eventually(lambda: not new.service.sessions.conversations.writes)
        late = await Peer.open(old.url)
        await late.send("hello", {"resume": first})
        # The old process still has the conversation in memory: the store tells it that it is not its own.
        assert await late.closed() in (4401, 4409)
        last = again.ready["token"]
        await again.bye()
        await eventually(lambda: not new.service.sessions.conversations.writes)
        for token in (last, first, "voice-0123456789abcdef." + "x" * 43, "nonsense"):
            late = await Peer.open(new.url)
            await late.send("hello", {"resume": token})
            assert await late.closed() == 4401
            assert late.seen[-1][2] == "invalid_resume_token"


async def test_the_file_reveals_nothing(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as running:
        peer = await Peer.open(running.url, {"config": {**MANUAL["config"], "instructions": "Canary instructions."}})
        await peer.say("canary words")
        path = Path(store.path)
        files = [path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")]
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3
        stored = b"".join(file.read_bytes() for file in files)
        assert peer.ready["session"].encode() in stored
        secret = peer.ready["token"].partition(".")[2]
        for word in ("canary", "Canary", secret):
            assert word.encode() not in stored
        await peer.bye()


class FailingStore(SqliteStore):
    """A store that does not answer while it is `down`."""

    down = False

    async def _run(self, work: Any, *, awaited: bool = False) -> Any:
        if self.down:
            raise StoreUnavailable(detail="down")
        return await super()._run(work, awaited=awaited)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FailingStore]:
    """Make every server's store one that can fail."""
    monkeypatch.setattr("voxlane.server.store.sqlite.SqliteStore", FailingStore)
    monkeypatch.setattr(FailingStore, "down", False)
    monkeypatch.setattr("voxlane.server.limits.STORE_RETRY_SECONDS", 0.01)
    return FailingStore


async def test_a_store_that_fails_does_not_end_conversations(
    serving: Any, store: StoreConfig, failing: type[FailingStore]
) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("before")
        failing.down = True
        told = await peer.say("meanwhile")
        assert [message[2:] for message in told if message[0] == "resumable"] == [[False]]
        assert told[-1][2:] == [2, "done"]
        assert old.service.metrics.store_writes.labels("failed")._value.get() > 0
        other = await Peer.open(old.url, MANUAL)
        assert other.ready["resumable"] is False
        # A resume that cannot be checked is never refused for good.
        late = await Peer.open(new.url)
        await late.send("hello", {"resume": peer.ready["token"]})
        assert await late.closed() == 1013
        assert late.seen[-1][2:5:2] == ["store_unavailable", True]
        failing.down = False
        assert (await peer.until("resumable"))[2] is True
        await vanish(old)
        again = await resume(new.url, peer)
        said = [("user", "before"), ("assistant", "before"), ("user", "meanwhile"), ("assistant", "meanwhile")]
        assert history(again.ready) == said
        await again.bye()


async def test_a_call_that_breaks_in_a_drain_while_the_store_fails_is_written_once_more(
    serving: Any, store: StoreConfig, failing: type[FailingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STORE_RETRY_SECONDS", 3600.0)
    async with serving(store=store, server=ServerConfig(drain_s=3600)) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        failing.down = True
        await peer.say("meanwhile")
        ending = asyncio.create_task(drain(old.service, old.http))
        await peer.until("go_away")  # it cannot be handed over
        failing.down = False
        peer.drop()
        await ending
        again = await resume(new.url, peer)
        assert history(again.ready) == [("user", "meanwhile"), ("assistant", "meanwhile")]
        await again.bye()


async def test_an_emptied_store_is_no_lost_ownership(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("before")
        database = sqlite3.connect(store.path, timeout=10)
        with database:
            database.execute("DELETE FROM sessions")
        database.close()
        assert (await peer.say("after"))[-1][2:] == [2, "done"]
        await vanish(old)
        again = await resume(new.url, peer)
        assert [content for _, content in history(again.ready)] == ["before", "before", "after", "after"]
        await again.bye()


async def test_a_parked_conversation_waits_in_the_store_too(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("hello")
        peer.drop()
        await eventually(lambda: old.service.sessions.conversations.parked)
        again = await resume(new.url, peer)
        assert len(again.ready["history"]) == 2
        await again.bye()


async def test_a_drain_hands_conversations_over_in_a_silence(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store, server=ServerConfig(drain_s=60)) as old, serving(store=store) as new:
        idle = await Peer.open(old.url, MANUAL)
        await idle.say("hello")
        busy = await Peer.open(old.url, SLOW)
        parked = await Peer.open(old.url, MANUAL)
        await parked.say("parked")
        parked.drop()
        await eventually(lambda: old.service.sessions.conversations.parked)
        await busy.send("text", "a few words")
        await busy.until("audio")
        ending = asyncio.create_task(drain(old.service, old.http))
        assert await idle.closed() == 1012
        assert idle.seen[-1][0] == "go_away"
        assert idle.seen[-1][2:] == [0.0, "draining"]
        assert await busy.closed() == 1012
        assert [message[2:] for message in busy.of("turn_done")] == [[1, "done"]]
        assert busy.seen[-1][0] == "go_away"
        await ending
        for peer, words in ((idle, "hello"), (busy, "a few words"), (parked, "parked")):
            again = await resume(new.url, peer)
            assert history(again.ready) == [("user", words), ("assistant", words)]
            assert (await again.say("more"))[-1][2:] == [2, "done"]
            await again.bye()
        assert old.service.metrics.handed_over._value.get() == 2


async def test_what_comes_after_the_decision_to_hand_over_is_left_to_the_next_process(
    serving: Any, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = Connection.end

    def end_and_read(connection: Connection, error: VoxlaneError) -> None:
        end(connection, error)
        assert connection._conversation is not None
        connection._handle(connection._conversation, TextTurn("late"))  # as its reader, which is not stopped yet

    async with serving(store=store, server=ServerConfig(drain_s=60)) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.say("one")
        monkeypatch.setattr(Connection, "end", end_and_read)
        ending = asyncio.create_task(drain(old.service, old.http))
        assert await peer.closed() == 1012
        monkeypatch.undo()
        again = await resume(new.url, peer)
        assert history(again.ready) == [("user", "one"), ("assistant", "one")]
        assert (await again.say("late"))[-1][3] == "done"
        await again.bye()
        await ending


async def test_a_drain_hands_over_a_few_conversations_at_a_time(
    serving: Any, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HAND_OVER_LOOKS", 3)
    monkeypatch.setattr(limits, "SILENCE_LOOK_SECONDS", 3600.0)  # it looks once
    async with serving(store=store, server=ServerConfig(drain_s=3600)) as old:
        peers = [await Peer.open(old.url, MANUAL) for _ in range(5)]
        ending = asyncio.create_task(drain(old.service, old.http))
        assert await asyncio.gather(*(peer.closed() for peer in peers[:2])) == [1012, 1012]
        for peer in peers[2:]:
            await peer.send("ping", 1)
            await peer.until("pong")
        assert len(old.service.sessions.conversations) == 3
        ending.cancel()


async def test_what_outlasts_a_drain_is_cut_told_and_handed_over(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store, server=ServerConfig(drain_s=0.1)) as old, serving(store=store) as new:
        peer = await Peer.open(old.url, MANUAL)
        await peer.send("text", "wait for ever")
        await peer.until("reply_text")
        speaking = await Peer.open(old.url, MANUAL)
        await speaking.send("start")
        await speaking.until("speech_started")
        codes = await asyncio.gather(peer.closed(), speaking.closed(), drain(old.service, old.http))
        assert codes[:2] == [1012, 1012]
        for one in (peer, speaking):
            assert [message[2:] for message in one.of("turn_done")] == [[1, "interrupted"]]
            assert one.seen[-1][0] == "go_away"
            again = await resume(new.url, one)
            await again.send("ping", 1)
            await again.until("pong")
            assert not again.of("turn_done")
            await again.bye()


async def test_idle_callers_who_cannot_be_moved_have_the_whole_drain(serving: Any) -> None:
    async with serving(server=ServerConfig(drain_s=60)) as running:
        peer = await Peer.open(running.url, MANUAL)
        ending = asyncio.create_task(drain(running.service, running.http))
        assert (await peer.until("go_away"))[2:] == [60.0, "draining"]
        assert (await peer.say("one more thing"))[-1][2:] == [1, "done"]
        await peer.bye()
        await ending


async def test_without_a_resume_time_nothing_waits(serving: Any, store: StoreConfig) -> None:
    async with serving(store=store, voice=VoiceConfig(resume_s=0)) as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("hello")
        peer.drop()
        await eventually(lambda: not len(running.service.sessions.conversations))
        await eventually(lambda: not running.service.sessions.conversations.writes)
        late = await Peer.open(running.url)
        await late.send("hello", {"resume": peer.ready["token"]})
        assert await late.closed() == 4401

"""All stores answer alike: the same operations against SQLite and Redis as against the store in memory."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import HealthCheck, example, given, settings
from redis_server import RedisServer, redis_binary

from voxlane.codecs.extras import install_command
from voxlane.server.config import StoreConfig
from voxlane.server.errors import ConfigError, StoreUnavailable
from voxlane.server.store.choice import make_store
from voxlane.server.store.memory import MemoryStore
from voxlane.server.store.redis import RedisStore
from voxlane.server.store.seal import BrokenSeal, SessionKey, hash_token, unwrapped
from voxlane.server.store.sqlite import SCHEMA_VERSION, SqliteStore, open_database
from voxlane.server.store.values import PARTS, TOKEN_BYTES, SessionClaim, SessionStore, SessionWrite

WAIT_S = 10.0
"""How long a test waits for a store: the machine may be busy."""

NAMES, OWNERS, TOKENS = ("voice-a", "voice-b"), ("one", "two"), ("t1", "t2", "t3")


def entry(token: str) -> bytes:
    return hash_token(token).ljust(TOKEN_BYTES, b"\0")


parts = st.dictionaries(st.sampled_from(PARTS), st.binary(max_size=40), max_size=3)
writes = st.tuples(
    st.just("write"),
    st.sampled_from(NAMES),
    st.sampled_from(OWNERS),
    st.none() | st.lists(st.sampled_from(TOKENS), max_size=2),
    parts,
    st.booleans(),
    st.sampled_from((False, False, False, True)),
    st.integers(-1, 1),
)
claims = st.tuples(
    st.just("claim"), st.sampled_from(NAMES), st.sampled_from(OWNERS), st.sampled_from(TOKENS), st.booleans()
)
waits = st.tuples(st.just("wait"), st.sampled_from((1, 50_000, 100_000)))
operations = st.lists(writes | claims | waits, max_size=30)
STALE_FENCE = [
    ("write", "voice-a", "one", ["t1"], {}, True, False, 0),
    ("claim", "voice-a", "two", "t1", False),
    ("claim", "voice-a", "one", "t1", True),
]


async def answers(store: SessionStore, steps: list[tuple[Any, ...]], prefix: str) -> list[object]:
    """Do everything, with a clock of our own; each owner names the fence that it has, or one beside it."""
    now_ms, fences, told = 1_700_000_000_000, dict.fromkeys(OWNERS, 5), []
    for step in steps:
        match step:
            case "wait", waited_ms:
                now_ms += waited_ms
            case "claim", name, owner, token, fenced:
                fence = fences[owner] if fenced else 0
                claim = SessionClaim(prefix + name, hash_token(token), owner, now_ms, now_ms + 90_000, fence=fence)
                claimed = await store.claim(claim)
                if claimed is not None:
                    fences[owner] = claimed.fence
                told.append(claimed)
            case "write", name, owner, tokens, contents, creates, ends, off:
                held = None if tokens is None else b"".join(map(entry, tokens))
                write = SessionWrite(
                    prefix + name,
                    fences[owner] + off,
                    owner,
                    now_ms,
                    now_ms + 90_000,
                    held,
                    contents,
                    creates=creates,
                    ends=ends,
                )
                told.append(await store.write(write))
    return told


def same_answers(make: Callable[[], SessionStore], steps: list[tuple[Any, ...]], prefix: str = "") -> None:
    async def run() -> None:
        store = make()
        await store.open()
        try:
            found = await answers(store, steps, prefix)
        finally:
            await store.aclose()
        assert found == await answers(MemoryStore(), steps, prefix)

    asyncio.run(run())


@pytest.mark.property
@settings(max_examples=examples(300), deadline=None)
@example(steps=STALE_FENCE)
@given(steps=operations)
def test_sqlite_answers_like_memory(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]) -> None:
    path = tmp_path_factory.mktemp("store") / "talk.sqlite"
    same_answers(lambda: SqliteStore(path, WAIT_S), steps)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A true Redis or Valkey server on a socket of its own."""
    try:
        binary = redis_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    server = RedisServer(binary, tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.mark.property
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=operations, number=st.integers(0, 1 << 60))
def test_redis_answers_like_memory(redis_server: RedisServer, steps: list[tuple[Any, ...]], number: int) -> None:
    redis_server.clear()
    same_answers(lambda: RedisStore(redis_server.url, "", WAIT_S), steps, f"{number}-")


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_a_store_that_has_lost_a_claim_still_knows_the_last_owner(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A store may be emptied, or replaced by a copy that is behind: the owner before may then write first."""
    stores: dict[str, Callable[[], SessionStore]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "talk.sqlite", WAIT_S),
        "redis": lambda: RedisStore(request.getfixturevalue("redis_server").url, "", WAIT_S),
    }
    store, name = stores[kind](), "voice-behind"
    await store.open()

    async def write(fence: int, owner: str, **more: Any) -> str:
        return await store.write(SessionWrite(name, fence, owner, 1_000, 100_000, **more))

    old: dict[str, Any] = {"tokens": entry("t1"), "parts": {"recent": b"old", "config": b"old"}, "creates": True}
    new: dict[str, Any] = {"tokens": entry("t2"), "parts": {"recent": b"new"}, "creates": True}
    assert await write(7, "one", **old) == "written"
    assert await write(9, "two", parts={"recent": b"new"}) == "missing"  # the record is not its own: write all of it
    assert await write(9, "two", **new) == "written"
    assert await write(7, "one", **old) == "other_owner"
    assert await write(9, "one", **old) == "other_owner"
    assert await store.claim(SessionClaim(name, hash_token("t1"), "three", 2_000, 100_000)) is None
    looked = await store.claim(SessionClaim(name, hash_token("t2"), "three", 2_000, 100_000, looks=True))
    assert looked is not None
    assert (looked.fence, looked.parts) == (9, {"recent": b"new"})  # nothing of the older record is left
    assert await write(11, "four", ends=True) == "written"  # the last owner may also end it
    assert await write(9, "two", **new) == "other_owner"
    assert await store.claim(SessionClaim(name, hash_token("t2"), "three", 2_000, 100_000)) is None
    await store.aclose()


async def test_a_hung_or_dead_redis_costs_its_wait_and_no_more(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, "", 0.25)
    await store.open()
    write = SessionWrite("voice-a", 1, "one", 1_000, 100_000, b"", {}, creates=True)
    assert await store.write(write) == "written"
    redis_server.hang()
    with pytest.raises(StoreUnavailable):
        await store.write(write)
    redis_server.go_on()
    for _ in range(100):  # the connection that hung is given up, and another one made
        try:
            assert await store.write(write) == "written"
            break
        except StoreUnavailable:
            continue
    else:
        raise AssertionError("the store never came back")
    redis_server.forget_scripts()
    assert await store.write(write) == "written"
    await store.aclose()


async def test_many_writes_share_a_pipeline(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, "", WAIT_S)
    await store.open()
    many = [SessionWrite(f"voice-{one}", 1, "one", 1_000, 100_000, b"", {}, creates=True) for one in range(700)]
    assert set(await asyncio.gather(*map(store.write, many))) == {"written"}
    assert redis_server.connections() <= 2  # ours, and the one that asks
    await store.aclose()


# ---- SQLite alone


async def test_an_sqlite_file_survives_its_process_and_two_share_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "talk.sqlite"
    one, two = SqliteStore(path, WAIT_S), SqliteStore(path, WAIT_S)
    await asyncio.gather(one.open(), two.open())
    write = SessionWrite("voice-a", 7, "one", 1_000, 100_000, entry("t1"), {"recent": b"x"}, creates=True)
    assert await one.write(write) == "written"
    claimed = await two.claim(SessionClaim("voice-a", hash_token("t1"), "two", 2_000, 100_000))
    assert claimed is not None
    assert (claimed.fence, claimed.parts) == (2_000, {"recent": b"x"})
    assert await one.write(write) == "other_owner"
    await asyncio.gather(one.aclose(), two.aclose())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert "store" not in {thread.name for thread in threading.enumerate()}


async def test_expired_records_are_deleted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "talk.sqlite", WAIT_S)
    await store.open()
    await store.write(SessionWrite("voice-a", 1, "one", 1_000_000, 1_090_000, b"", {}, creates=True))
    await store.write(SessionWrite("voice-b", 1, "one", 2_000_000, 2_090_000, b"", {}, creates=True))
    await store.aclose()
    database = sqlite3.connect(tmp_path / "talk.sqlite")
    assert database.execute("SELECT name FROM sessions").fetchall() == [("voice-b",)]
    database.close()


async def test_a_locked_file_is_a_store_that_does_not_answer(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "talk.sqlite", 0.05)
    await store.open()
    other = sqlite3.connect(tmp_path / "talk.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    write = SessionWrite("voice-a", 1, "one", 1_000, 100_000, b"", {}, creates=True)
    with pytest.raises(StoreUnavailable):
        await store.write(write)
    other.execute("ROLLBACK")
    other.close()
    while True:
        try:
            assert await store.write(write) == "written"
            break
        except StoreUnavailable:
            continue
    await store.aclose()


async def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    newer, no_store, folder = tmp_path / "newer", tmp_path / "no_store", tmp_path / "folder"
    database = open_database(newer, 1.0)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    no_store.write_bytes(b"This is a letter." * 100)
    folder.mkdir()
    for path, reason in ((newer, "newer voxlane"), (no_store, "not a file of conversations"), (folder, "store.path")):
        store = SqliteStore(path, 1.0)
        with pytest.raises(ConfigError, match=reason):
            await store.open()
        await store.aclose()


def test_the_configuration_chooses_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_store(StoreConfig()), MemoryStore)
    assert isinstance(make_store(StoreConfig("sqlite", str(tmp_path / "x"))), SqliteStore)
    assert isinstance(make_store(StoreConfig("redis")), RedisStore)
    monkeypatch.setattr("voxlane.server.store.choice.can_seal", lambda: False)
    with pytest.raises(ConfigError, match=re.escape(install_command("store"))):
        make_store(StoreConfig("sqlite"))


# ---- seals


def test_a_token_unwraps_the_key_and_nothing_else_does() -> None:
    key = SessionKey("voice-a")
    sealed = key.seal("history", b"what was said")
    tokens = key.wrapped("first") + key.wrapped("second")
    assert len(tokens) == 2 * TOKEN_BYTES
    assert b"what was said" not in sealed
    assert key.seal("history", b"what was said") != sealed
    for token in ("first", "second"):
        again = unwrapped("voice-a", token, tokens)
        assert again is not None
        assert again.unseal("history", sealed) == b"what was said"
    assert unwrapped("voice-a", "third", tokens) is None
    with pytest.raises(BrokenSeal):  # another conversation's entry under this name
        unwrapped("voice-b", "first", tokens)
    with pytest.raises(BrokenSeal):  # one part in the place of another
        key.unseal("recent", sealed)
    for broken in (sealed[:-1], sealed[:5], b"", sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(BrokenSeal):
            key.unseal("history", broken)

"""Tenants on a running server: over HTTP, in conversations, with client secrets, and when a key is revoked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from peer import MANUAL, Peer, eventually, speech
from websockets.exceptions import InvalidStatus

from voxlane.server import limits
from voxlane.server.config import KeysConfig, ServerConfig, StoreConfig, VoiceConfig
from voxlane.server.tenants.key_file import KeyRecord, change_keys, key_hash, new_key

KEYS = {name: new_key() for name in ("acme", "bolt")}


def record(name: str = "acme", **values: Any) -> KeyRecord:
    return KeyRecord(name=name, hash=key_hash(KEYS[name]), **values)


@pytest.fixture
def keys(tmp_path: Path) -> Any:
    """Write the file of keys; return its configuration."""

    def write(*records: KeyRecord) -> KeysConfig:
        change_keys(tmp_path / "keys.json", lambda _: records)
        return KeysConfig(str(tmp_path / "keys.json"))

    return write


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS.get(name, name)}"}


def hello(key: str, **config: Any) -> dict[str, Any]:
    return {"key": KEYS.get(key, key), "config": {"turns": {"mode": "manual"}, **config}}


async def asked(server: Any, name: str, said: str = "submission", **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": said}], **more}
    return await server.client.post("/v1/chat/completions", json=body, headers=bearer(name))


# ---- HTTP


async def test_each_key_opens_and_no_other(serving: Any, keys: Any) -> None:
    async with serving(api_key="sesame", keys=keys(record("acme"), record("bolt"))) as server:
        for name, status in (("acme", 200), ("bolt", 200), ("sesame", 200), ("nobody", 401), ("", 401)):
            answer = await server.client.get("/v1/models", headers=bearer(name) if name else {})
            assert answer.status_code == status, name
        for shown, names in (("sesame", "acme bolt default"), ("acme", "acme"), ("nobody", ""), ("", "")):
            text = (await server.client.get("/metrics", headers=bearer(shown) if shown else {})).text
            assert (
                re.findall(r'^voxlane_tenant_requests_total{tenant="(\w+)"} 1.0', text, re.MULTILINE) == names.split()
            )
            assert ("acme" in text, "bolt" in text) == ("acme" in names, "bolt" in names)
            assert 'voxlane_engine_state{state="ready"} 1.0' in text  # the rest is for whoever asks


async def test_requests_have_the_salt_of_their_key(serving: Any, keys: Any) -> None:
    async with serving(api_key="sesame", keys=keys(record("acme"), record("bolt"))) as server:
        said = {}
        for name in ("acme", "bolt", "sesame"):
            for salt in ({}, {"cache_salt": "mine"}):
                answer = await asked(server, name, **salt)
                said[name, *salt] = answer.json()["choices"][0]["message"]["content"]
        assert len(set(said.values())) == 6  # the scripted engine says the salt
        again = await asked(server, "acme")
        assert again.json()["choices"][0]["message"]["content"] == said["acme",]


async def test_too_many_requests_are_told_when_to_come_back(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme", requests_per_minute=2), record("bolt"))) as server:
        statuses = [(await server.client.get("/v1/models", headers=bearer("acme"))).status_code for _ in range(2)]
        assert statuses == [200, 200]
        refused = await server.client.get("/v1/models", headers=bearer("acme"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 30
        assert (await server.client.get("/v1/models", headers=bearer("bolt"))).status_code == 200
        text = (await server.client.get("/metrics", headers=bearer("acme"))).text
        assert 'voxlane_tenant_refusals_total{limit="requests_per_minute",tenant="acme"} 1.0' in text


async def test_sound_over_http_is_counted(serving: Any, keys: Any, recording: Any) -> None:
    async with serving(keys=keys(record("acme", audio_minutes_per_minute=0.01))) as server:  # 0.6 s a minute
        file = {"file": ("a.wav", recording("hello", 4.0))}
        heard = await server.client.post("/v1/audio/transcriptions", files=file, headers=bearer("acme"))
        assert heard.status_code == 200
        for path, body in (("transcriptions", {"files": file}), ("speech", {"json": {"input": "Hello."}})):
            refused = await server.client.post(f"/v1/audio/{path}", headers=bearer("acme"), **body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(refused.headers["retry-after"]) > 10
        chat = await asked(server, "acme")
        assert chat.status_code == 200  # it is no sound
        text = (await server.client.get("/metrics", headers=bearer("acme"))).text
        assert 'voxlane_tenant_audio_seconds_total{tenant="acme"} 4.0' in text


@pytest.mark.parametrize(
    ("highest", "right", "asked_for", "status"),
    [
        ("critical", "normal", "critical", 403),
        ("critical", "high", "high", 200),
        ("critical", "high", "critical", 403),
        ("normal", "critical", "high", 403),
    ],
)
async def test_priorities_are_a_right(
    serving: Any, keys: Any, highest: Any, right: str, asked_for: str, status: int
) -> None:
    given = ServerConfig(highest_priority=highest)
    async with serving(server=given, keys=keys(record("acme", priority=right))) as server:
        answer = await asked(server, "acme", priority=asked_for)
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["param"] == "priority"


# ---- conversations


async def test_conversations_are_limited_per_key(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme", conversations=1), record("bolt"))) as server:
        first = await Peer.open(server.url, hello("acme"))
        second = await Peer.open(server.url)
        await second.send("hello", hello("acme"))
        assert await second.closed() == 1013
        assert second.seen[-1][2] == "too_many_conversations"
        other = await Peer.open(server.url, hello("bolt"))
        text = (await server.client.get("/metrics", headers=bearer("acme"))).text
        assert 'voxlane_tenant_conversations{tenant="acme"} 1.0' in text
        await first.bye()
        again = await Peer.open(server.url, hello("acme"))
        for peer in (again, other):
            await peer.bye()
        # OpenAI's dialect is refused before there is a connection.
        held = await Peer.open(server.url, hello("acme"))
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS["acme"], max_retries=0) as client:
            with pytest.raises(InvalidStatus) as refused:
                await client.realtime.connect(model="m").enter()
        assert refused.value.response.status_code == 429
        assert int(refused.value.response.headers["retry-after"]) >= 1
        await held.bye()


async def test_microphones_are_counted_and_end_over_the_limit(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme", audio_minutes_per_minute=0.005), record("bolt"))) as server:  # 0.3 s
        other = await Peer.open(server.url, hello("bolt"))
        peer = await Peer.open(server.url, hello("acme"))
        for _ in range(4):  # the second may overdraw what time has given back; the third cannot
            await peer.send("audio", speech("x", 0.3))
        assert await peer.closed() == 4429
        error = peer.of("error")[-1]
        assert (error[2], error[4]) == ("rate_limit_exceeded", True)
        assert error[5] >= 1
        assert (await other.say("hello"))[-1][3] == "done"
        await other.bye()


async def test_a_revoked_key_ends_its_conversations(serving: Any, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_SECONDS", 0.01)
    async with serving(keys=keys(record("acme"), record("bolt"))) as server:
        stays = await Peer.open(server.url, hello("bolt"))
        ends = await Peer.open(server.url, hello("acme"))
        lost = await Peer.open(server.url, hello("acme"))
        lost.drop()
        await eventually(lambda: len(server.service.sessions.conversations.parked) == 1)
        secret = await server.client.post("/v1/realtime/client_secrets", json={}, headers=bearer("acme"))
        keys(record("bolt"))
        assert await ends.closed() == 4401
        assert ends.of("error")[-1][2] == "key_revoked"
        await eventually(lambda: len(server.service.sessions.conversations) == 1)  # the parked one is gone, too
        assert (await asked(server, "acme")).status_code == 401
        for key in ("acme", secret.json()["value"]):
            peer = await Peer.open(server.url)
            await peer.send("hello", hello(key))
            assert await peer.closed() == 4401
        assert (await stays.say("hello"))[-1][3] == "done"
        await stays.bye()


async def test_a_resume_token_is_of_no_use_to_another_tenant(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme"), record("bolt"))) as server:
        peer = await Peer.open(server.url, hello("acme"))
        thief = await Peer.open(server.url)
        await thief.send("hello", {"key": KEYS["bolt"], "resume": peer.ready["token"]})
        assert await thief.closed() == 4401
        assert thief.seen[-1][2] == "invalid_resume_token"
        assert (await peer.say("hello"))[-1][3] == "done"
        again = await Peer.open(server.url, {"key": KEYS["acme"], "resume": peer.ready["token"]})
        assert again.ready["session"] == peer.ready["session"]
        await again.bye()


async def test_a_stored_conversation_is_of_no_use_to_another_tenant(serving: Any, keys: Any, tmp_path: Path) -> None:
    store = StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)
    file = keys(record("acme"), record("bolt"))
    async with serving(keys=file, store=store) as old, serving(keys=file, store=store) as new:
        peer = await Peer.open(old.url, hello("acme"))
        await peer.say("hello")
        thief = await Peer.open(new.url)
        await thief.send("hello", {"key": KEYS["bolt"], "resume": peer.ready["token"]})
        assert await thief.closed() == 4401
        assert (await peer.say("again"))[-1][3] == "done"  # where it runs, it goes on
        again = await Peer.open(new.url, {"key": KEYS["acme"], "resume": peer.ready["token"], "last_seq": 0})
        assert [message["content"] for message in again.ready["history"]] == ["hello", "hello", "again", "again"]
        text = (await new.client.get("/metrics", headers=bearer("acme"))).text
        assert 'voxlane_tenant_conversations{tenant="acme"} 1.0' in text
        await again.bye()


async def test_conversations_that_move_count_as_no_new_ones(serving: Any, keys: Any, tmp_path: Path) -> None:
    store = StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)
    async with serving(keys=keys(record("acme")), store=store) as old:
        peers = [await Peer.open(old.url, hello("acme")) for _ in range(3)]
        for peer in peers:
            await peer.say("hello")
        async with serving(keys=keys(record("acme", requests_per_minute=1)), store=store) as new:
            for peer in peers:
                again = await Peer.open(new.url, {"key": KEYS["acme"], "resume": peer.ready["token"]})
                assert len(again.ready["history"]) == 2
                await again.bye()


async def test_an_invented_token_costs_nobody_a_place(serving: Any, tmp_path: Path) -> None:
    store = StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)
    async with serving(store=store, voice=VoiceConfig(sessions=1)) as server:
        peer = await Peer.open(server.url, MANUAL)
        await peer.say("hello")
        peer.drop()
        await eventually(lambda: len(server.service.sessions.conversations.parked) == 1)
        liar = await Peer.open(server.url)
        await liar.send("hello", {"resume": f"voice-{'0' * 16}.{'A' * 43}"})
        assert await liar.closed() == 4401
        again = await Peer.open(server.url, {"resume": peer.ready["token"]})
        assert len(again.ready["history"]) == 2
        await again.bye()


# ---- client secrets on /v1/voice


async def secret_of(server: Any, name: str, session: dict[str, Any], seconds: int = 600) -> str:
    body = {"session": session, "expires_after": {"anchor": "created_at", "seconds": seconds}}
    answer = await server.client.post("/v1/realtime/client_secrets", json=body, headers=bearer(name))
    return str(answer.raise_for_status().json()["value"])


@pytest.mark.parametrize("way", ["hello", "header", "subprotocol"])
async def test_a_client_secret_opens_the_native_dialect(serving: Any, keys: Any, way: str) -> None:
    async with serving(keys=keys(record("acme", conversations=1))) as server:
        session = {"type": "realtime", "instructions": "Be brief.", "temperature": 0.3}
        secret = await secret_of(server, "acme", session)
        options: dict[str, Any] = {}
        if way == "header":
            options = {"additional_headers": {"authorization": f"Bearer {secret}"}}
        if way == "subprotocol":
            options = {"subprotocols": ["voxlane.v1", f"voxlane.key.{secret}"]}
        opened = hello(secret if way == "hello" else "", greeting="Hi.")
        peer = await Peer.open(server.url, opened, **options)
        config = peer.ready["config"]
        assert (config["instructions"], config["temperature"]) == ("Be brief.", 0.3)
        assert config["greeting"] == "Hi."  # what the client says counts, as after session.update
        assert config["turns"]["mode"] == "manual"
        usual = server.service.sessions.offer.defaults
        assert config["barge_in"]["hold"] == usual.barge_in.hold  # what the secret does not say is our own
        (conversation,) = server.service.sessions.conversations.values()
        assert conversation.account.name == "acme"
        second = await Peer.open(server.url)  # the limits are those of the key that made it
        await second.send("hello", hello(secret))
        assert await second.closed() == 1013
        await peer.bye()


async def test_a_conversation_outlives_its_secret(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme"))) as server:
        secret = await secret_of(server, "acme", {})
        peer = await Peer.open(server.url, hello(secret))
        token = peer.ready["token"]
        server.service.sessions.secrets._kept.clear()  # it expires
        fresh = await Peer.open(server.url)
        await fresh.send("hello", hello(secret))
        assert await fresh.closed() == 4401
        peer.drop()
        await eventually(lambda: server.service.sessions.conversations.parked)
        back = await Peer.open(server.url, {"key": secret, "resume": token})
        assert back.ready["resumed"]
        assert (await back.say("hello"))[-1][3] == "done"
        token = back.ready["token"]
        back.drop()
        await eventually(lambda: server.service.sessions.conversations.parked)
        ways = {"subprotocols": ["voxlane.v1", f"voxlane.key.{secret}"]}
        again = await Peer.open(server.url, {"resume": token}, **ways)
        await again.bye()
        refused = await Peer.open(server.url, **ways)
        await refused.send("hello", hello(""))
        assert await refused.closed() == 4401


async def test_a_stale_secret_opens_nothing_on_an_open_server(serving: Any) -> None:
    async with serving() as server:
        for options, key in (({"subprotocols": ["voxlane.v1", "voxlane.key.ek_stale"]}, ""), ({}, "ek_stale")):
            peer = await Peer.open(server.url, **options)
            await peer.send("hello", {**MANUAL, "key": key})
            assert await peer.closed() == 4401


async def test_secrets_of_openais_dialect_belong_to_their_tenant(serving: Any, keys: Any) -> None:
    async with serving(keys=keys(record("acme"))) as server:
        secret = await secret_of(server, "acme", {"type": "realtime"})
        async with (
            AsyncOpenAI(base_url=f"{server.url}/v1", api_key=secret, max_retries=0) as client,
            client.realtime.connect(model="m") as connection,
        ):
            assert (await connection.recv()).type == "session.created"
            (conversation,) = server.service.sessions.conversations.values()
            assert conversation.account.name == "acme"

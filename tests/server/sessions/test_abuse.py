"""What no client should do: each is closed with its code, and a bystander on the same server notices nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from peer import MANUAL, Peer, bystander, eventually
from websockets.exceptions import ConnectionClosed, InvalidStatus

from voxlane.server import limits
from voxlane.server.api import sockets
from voxlane.server.config import VoiceConfig
from voxlane.server.protocols.native import NATIVE
from voxlane.server.sessions import outbound


async def flood(peer: Peer) -> None:
    for mark in range(2000):
        await peer.send("ping", mark)


async def hurry(peer: Peer) -> None:
    for _ in range(10):
        await peer.send("audio", bytes(32_000))


async def heavy(peer: Peer) -> None:
    for _ in range(20):
        await peer.send("text", " " * 16_000)
        await peer.socket.send(msgpack.packb(("config", {"instructions": "é" * 16_000})))


Abuse = Callable[[Peer], Awaitable[None]]
ABUSES: list[tuple[str, Abuse, int, str]] = [
    ("text", lambda peer: peer.socket.send("hello"), 4400, "invalid_request"),
    ("giant", lambda peer: peer.socket.send(bytes(65_537)), 1009, "too_large"),
    ("not msgpack", lambda peer: peer.socket.send(b"\xc1"), 4400, "invalid_request"),
    ("bomb", lambda peer: peer.socket.send(b"\x91" * 60_000), 4400, "invalid_request"),
    ("wide bomb", lambda peer: peer.socket.send(b"\xdd\xff\xff\xff\xff"), 4400, "invalid_request"),
    ("maps", lambda peer: peer.socket.send(b"\xde\x01\x01" + b"\xa1a\x80" * 257), 4400, "invalid_request"),
    ("empty", lambda peer: peer.socket.send(b""), 4400, "invalid_request"),
    ("unknown", lambda peer: peer.send("shout"), 4400, "invalid_request"),
    ("hello again", lambda peer: peer.send("hello", {}), 4400, "invalid_request"),
    ("odd audio", lambda peer: peer.send("audio", b"123"), 4400, "invalid_request"),
    ("text audio", lambda peer: peer.send("audio", "123"), 4400, "invalid_request"),
    ("nan", lambda peer: peer.send("config", {"temperature": float("nan")}), 4400, "invalid_request"),
    ("flood", flood, 4429, "too_fast"),
    ("bytes", heavy, 4429, "too_fast"),
    ("too fast", hurry, 4429, "too_fast"),
]


@pytest.mark.parametrize(("abuse", "code", "said"), [row[1:] for row in ABUSES], ids=[row[0] for row in ABUSES])
async def test_abuse_is_closed_with_its_code(
    serving: Any, monkeypatch: pytest.MonkeyPatch, abuse: Abuse, code: int, said: str
) -> None:
    # What may come at once is all that may come: however slowly a busy machine sends it, the rest is too much.
    rates = replace(NATIVE.rate_limits, frames_per_s=0.0, bytes_per_s=0.0, audio_rate=0.0)
    monkeypatch.setattr(sockets, "NATIVE", replace(NATIVE, rate_limits=rates))
    async with serving() as running, bystander(running):
        peer = await Peer.open(running.url, MANUAL)
        with suppress(ConnectionClosed):
            await abuse(peer)
        assert await peer.closed() == code
        assert peer.seen[-1][0] == "error"
        assert peer.seen[-1][2] == said
        assert len(running.service.sessions.conversations) == 1


async def test_a_frame_beyond_all_limits_is_not_even_read(serving: Any) -> None:
    async with serving() as running, bystander(running):
        peer = await Peer.open(running.url, MANUAL)
        await peer.socket.send(bytes(limits.SOCKET_FRAME_BYTES + 1))
        assert await peer.closed() == 1009
        await eventually(lambda: len(running.service.sessions.conversations) == 1)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (("audio", bytes(640)), 4400),
        (("hello", {"resume": "x" * 43}), 4401),
        (("hello", {"surprise": 1}), 4400),
        (("hello", {"input": {"codec": "mp3"}}), 4400),
        (("hello", {"input": {"codec": "pcm16", "rate": 44_100}}), 4400),
        (("hello", {"config": {"speed": 9.0}}), 4400),
        (("hello", {"config": {"voice": "nobody"}}), 4400),
    ],
)
async def test_a_bad_beginning(serving: Any, first: tuple[Any, ...], code: int) -> None:
    async with serving() as running, bystander(running):
        peer = await Peer.open(running.url)
        await peer.send(*first)
        assert await peer.closed() == code
        assert peer.seen[-1][:2] == ["error", 0]


async def test_who_says_nothing_is_closed(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(voice=VoiceConfig(idle_s=0.2)) as running:
        with monkeypatch.context() as hasty:
            hasty.setattr(limits, "VOICE_HELLO_SECONDS", 0.05)
            silent = await Peer.open(running.url)
            assert await silent.closed() == 4408
        idle = await Peer.open(running.url, MANUAL)  # no limit on its hello
        assert await idle.closed() == 4408
        assert idle.seen[-1][2] == "timed_out"


async def test_the_time_limit_is_announced(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VOICE_WARNING_SECONDS", 3.0)  # longer than a busy machine stands still
    async with serving(voice=VoiceConfig(session_s=3.1)) as running:
        peer = await Peer.open(running.url, MANUAL)
        warning = await peer.until("go_away")
        assert 0 < warning[2] <= 3.0
        assert warning[3] == "session_limit"
        assert await peer.closed() == 4440


async def test_a_slow_reader_is_closed(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "WAITING_PACKETS", 64)
    monkeypatch.setattr(limits, "SOCKET_WRITE_SECONDS", 0.5)
    rates = replace(NATIVE.rate_limits, frames_burst=1 << 20, bytes_burst=1 << 30)
    monkeypatch.setattr(sockets, "NATIVE", replace(NATIVE, rate_limits=rates))
    async with serving() as running, bystander(running):
        peer = await Peer.open(running.url, MANUAL, max_queue=1)
        config = {"instructions": "x" * 16_000}
        closed = running.service.metrics.sockets_closed.labels("4408")
        while not closed._value.get():  # it asks and does not read: answers of 16 kB pile up
            try:
                await asyncio.wait_for(peer.send("config", config), 0.2)
            except (TimeoutError, ConnectionClosed):
                continue
        peer.drop()


# ---- admission


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"subprotocols": ["other"]}, 400),
        ({"additional_headers": {"Authorization": "Bearer wrong"}}, 401),
        ({"subprotocols": ["voxlane.v1", "voxlane.key.wrong"]}, 401),
    ],
)
async def test_refused_before_the_upgrade(serving: Any, options: dict[str, Any], status: int) -> None:
    async with serving(api_key="secret") as running:
        with pytest.raises(InvalidStatus) as refused:
            await Peer.open(running.url, **options)
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"")["error"]["message"]


async def test_keys_in_three_places(serving: Any) -> None:
    async with serving(api_key="secret", voice=VoiceConfig(origins=("https://app.example",))) as running:
        for options, hello in (
            ({"additional_headers": {"Authorization": "Bearer secret"}}, MANUAL),
            ({"subprotocols": ["voxlane.v1", "voxlane.key.secret"]}, MANUAL),
            ({"origin": "https://app.example"}, {**MANUAL, "key": "secret"}),
        ):
            peer = await Peer.open(running.url, hello, **options)
            assert peer.socket.subprotocol == "voxlane.v1"
            await peer.bye()
        peer = await Peer.open(running.url)
        await peer.send("hello", {"key": "guess"})
        assert await peer.closed() == 4401


@pytest.mark.parametrize("voice", [VoiceConfig(sessions=2), VoiceConfig(sessions_per_address=2)])
async def test_a_full_house_says_when_to_come_back(serving: Any, voice: VoiceConfig) -> None:
    async with serving(voice=voice) as running:
        peers = [await Peer.open(running.url, MANUAL) for _ in range(2)]
        with pytest.raises(InvalidStatus) as refused:
            await Peer.open(running.url)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"]
        for peer in peers:
            await peer.bye()
        await (await Peer.open(running.url, MANUAL)).bye()


async def _left(running: Any, address: str) -> str:
    """Open a conversation from an address, break its connection, and return the token that resumes it."""
    before = len(running.service.sessions.conversations.parked)
    peer = await Peer.open(running.url, MANUAL, local_addr=(address, 0))
    token = peer.ready["token"]
    peer.drop()
    await eventually(lambda: not running.service.sessions.limits.sockets)
    assert len(running.service.sessions.conversations.parked) in (before, before + 1)
    return str(token)


async def _resumes(running: Any, token: str) -> bool:
    peer = await Peer.open(running.url)
    await peer.send("hello", {"resume": token})
    resumed = (await peer.next())[0] == "ready"
    await (peer.bye() if resumed else peer.closed())
    return resumed


@pytest.mark.parametrize(
    ("voice", "floods"),
    [
        (VoiceConfig(sessions=1024, sessions_per_address=4), ("127.0.0.1",)),
        (VoiceConfig(sessions=6, sessions_per_address=6), ("127.0.0.1",)),
        (VoiceConfig(sessions=6, sessions_per_address=3), ("127.0.0.1", "127.0.0.3")),
    ],
    ids=["its own share", "a full house", "two floods"],
)
async def test_parked_conversations_of_one_address_push_out_no_other(
    serving: Any, voice: VoiceConfig, floods: tuple[str, ...]
) -> None:
    async with serving(voice=voice) as running:
        other = await _left(running, "127.0.0.2")
        for _ in range(8):
            mine = [await _left(running, address) for address in floods]
        assert len(running.service.sessions.conversations) <= voice.sessions_per_address * len(floods) + 1
        assert await _resumes(running, other)
        assert await _resumes(running, mine[-1])


async def test_an_address_that_opens_and_drops_conversations_is_slowed_down(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPENS_PER_SECOND", 0.0)
    monkeypatch.setattr(limits, "VOICE_SESSIONS_PER_ADDRESS", 2)
    async with serving(voice=VoiceConfig(sessions_per_address=2)) as running:
        for _ in range(2):
            await _left(running, "127.0.0.1")
        peer = await Peer.open(running.url)
        await peer.send("hello", {})
        name, *rest = await peer.next()
        assert name == "error"
        assert "full" in str(rest)
        await peer.closed()
        await _left(running, "127.0.0.2")


async def test_an_address_with_all_its_conversations_connected_evicts_none(serving: Any) -> None:
    async with serving(voice=VoiceConfig(sessions=3, sessions_per_address=2)) as running:
        other = await _left(running, "127.0.0.2")
        peers = [await Peer.open(running.url, MANUAL) for _ in range(2)]
        with pytest.raises(InvalidStatus):
            await Peer.open(running.url)
        for peer in peers:
            await peer.bye()
        assert await _resumes(running, other)


async def test_nobody_compresses(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL, compression="deflate")
        assert "sec-websocket-extensions" not in peer.socket.response.headers
        await peer.bye()


async def test_a_close_code_of_a_clients_own_is_no_label(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.socket.close(4321)
        await eventually(lambda: not running.service.sessions.limits.sockets)
        (closed,) = running.service.metrics.sockets_closed.collect()
        assert {sample.labels["code"] for sample in closed.samples} == {"other"}

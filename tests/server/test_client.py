"""The reference client and its player, against a real server; and `voxlane talk` around them."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given
from peer import eventually
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from voxlane.codecs.wav import decode_wav, encode_wav
from voxlane.server.client import SUBPROTOCOL, VoiceClient
from voxlane.server.client.player import Ack, Player
from voxlane.server.commands.serve import drain
from voxlane.server.commands.talk import OUTPUT_RATE, TalkOptions, run_talk, voice_url
from voxlane.server.config import ServerConfig, StoreConfig, VoiceConfig
from voxlane.server.errors import ConfigError, ConversationFailed

RATE = 24_000
CONFIG: dict[str, Any] = {"turns": {"mode": "manual"}, "voice": "two"}


def voice(running: Any) -> str:
    return f"{running.url.replace('http', 'ws', 1)}/v1/voice"


def letters(pcm: bytes) -> str:
    """Return what the scripted voice said: 50 ms a character, silence left out."""
    return "".join(chr(sample) for sample in array("h", pcm)[::1200] if sample)


# ---- the player


def pcm(start: int, count: int) -> bytes:
    return array("h", (1 + (start + number) % 30_000 for number in range(count))).tobytes()


def audio(epoch: int, offset: int, count: int) -> tuple[str, dict[str, Any]]:
    return "audio", {"epoch": epoch, "offset": offset, "data": pcm(offset, count)}


def test_silence_where_there_is_nothing() -> None:
    player = Player(RATE)
    assert player.pull(4) == bytes(8)
    assert player.acks() == []


def test_acks_fall_due_and_say_when_all_is_played() -> None:
    player = Player(RATE)
    player.handle(*audio(1, 0, 6000))
    assert player.pull(2000) == pcm(0, 2000)
    assert player.acks() == []
    player.pull(2000)
    assert player.acks() == [Ack(1, 4000, 2000)]
    assert player.pull(3000) == pcm(4000, 2000) + bytes(2000)
    assert player.acks() == [Ack(1, 6000, 0)]


def test_every_reply_is_acked_as_often() -> None:
    player, acks = Player(RATE), {1: 0, 2: 0}
    for epoch in acks:
        player.handle("audio", {"epoch": epoch, "offset": 0, "data": bytes(2 * 2 * RATE)})
        for _ in range(95):  # 1.9 s
            player.pull(RATE // 50)
            for ack in player.acks():
                acks[ack.epoch] += 1
        player.handle("interrupted", {"epoch": epoch})
        player.acks()
    assert acks[1] == acks[2] > 10


def test_hold_keeps_the_sample_and_release_goes_on_with_it() -> None:
    player = Player(RATE)
    player.handle(*audio(1, 0, 1000))
    player.pull(300)
    player.handle("hold", {"epoch": 1})
    assert player.acks() == [Ack(1, 300, 700)]
    assert player.pull(100) == bytes(200)
    player.handle("release", {"epoch": 1})
    assert player.pull(100) == pcm(300, 100)


def test_a_lowered_reply_goes_on_and_comes_back() -> None:
    player = Player(RATE)
    loud = np.full(RATE, 10_000, "<i2")
    for epoch in (1, 2):
        player.handle("audio", {"epoch": epoch, "offset": 0, "data": loud.tobytes()})

    def play(seconds: float) -> np.ndarray:
        return np.frombuffer(player.pull(round(seconds * RATE)), "<i2")

    assert (play(0.1) == 10_000).all()
    player.handle("duck", {"epoch": 1, "gain": 0.2})
    lowered = play(0.3)
    assert (lowered[round(0.015 * RATE) :] == 2000).all()
    assert np.abs(np.diff(lowered.astype(int))).max() < 50
    assert player.position == round(0.4 * RATE)
    player.handle("release", {"epoch": 1})
    raised = play(0.1)
    assert raised[0] < 2100
    assert (raised[round(0.015 * RATE) :] == 10_000).all()
    player.handle("duck", {"epoch": 1, "gain": 0.2})
    play(0.5)
    assert player.epoch == 1
    assert (play(0.2)[round(0.015 * RATE) :] == 10_000).all()  # the next reply is not lowered
    assert player.epoch == 2
    player.handle("duck", {"epoch": 1, "gain": 0.2})  # late
    assert (play(0.1) == 10_000).all()


def test_an_interruption_empties_the_queue_and_its_late_sound_is_ignored() -> None:
    player = Player(RATE)
    player.handle(*audio(1, 0, 1000))
    player.pull(300)
    player.handle("hold", {"epoch": 1})
    player.handle("interrupted", {"epoch": 1, "heard": "", "samples": 300})
    player.handle(*audio(1, 1000, 500))
    assert player.pull(100) == bytes(200)
    assert player.queued == 0
    player.handle(*audio(2, 0, 100))
    assert player.pull(100) == pcm(0, 100)


def test_the_next_reply_waits_for_the_end_of_this_one() -> None:
    player = Player(RATE)
    player.handle(*audio(1, 0, 100))
    player.handle(*audio(2, 0, 100))
    assert player.pull(150) == pcm(0, 100) + pcm(0, 50)
    assert player.acks() == [Ack(1, 100, 100)]
    player.handle("interrupted", {"epoch": 1, "heard": "", "samples": 100})
    assert player.pull(50) == pcm(50, 50)


@given(st.lists(st.tuples(st.sampled_from("prhb"), st.integers(1, 700)), max_size=60))
def test_whatever_happens_no_sample_is_lost_or_repeated(steps: list[tuple[str, int]]) -> None:
    player, heard, sent = Player(RATE), b"", 0
    for what, count in [*steps, ("r", 1), ("p", 100_000)]:
        match what:
            case "p":
                heard += player.pull(count).rstrip(b"\0") if not player.held else b""
            case "r":
                player.handle("release", {"epoch": 1})
                player.handle(*audio(1, sent, count))
                sent += count
            case "h":
                player.handle("hold", {"epoch": 1})
            case "b":  # the connection breaks, and all from somewhat before the player's sample is sent again
                player.handle("ready", {"resumed": True, "state": "held" if player.held else "speaking"})
                first = max(0, player.position - count)
                player.handle(*audio(1, first, sent - first))
    # No sample of `pcm` ends in a zero byte but multiples of 256: compare without them.
    assert heard.replace(b"\0", b"") == pcm(0, sent).replace(b"\0", b"")


# ---- the client


async def play(client: VoiceClient, until: Callable[[Any], bool]) -> bytes:
    """Play whatever comes at once, until an event."""
    assert client.player is not None
    heard = b""
    async for event in client:
        heard += client.player.pull(client.player.queued)
        await client.send_acks()
        if until(event):
            return heard
    raise AssertionError("the server left")


async def test_a_conversation(serving: Any) -> None:
    async with serving() as running:
        async with VoiceClient(voice(running), config=CONFIG, player=Player(RATE)) as client:
            assert client.ready["session"].startswith("voice-")
            await client.say("hello you")
            heard = await play(client, lambda event: event.name == "turn_done")
            assert letters(heard) == "hello you"
            await client.start_turn()
            await client.send_audio(array("h", map(ord, "and you")).tobytes())
            await client.end_turn()
            assert letters(await play(client, lambda event: event.name == "turn_done")) == "and you"
            await client.configure(voice="one")
            await play(client, lambda event: event.name == "configured")
            await client.ping(3)
            await play(client, lambda event: event.name == "pong" and event["mark"] == 3)
        assert [event async for event in client] == []
        assert client.close_code == 1000


async def test_a_broken_connection_is_not_heard(serving: Any) -> None:
    async with serving() as running:
        text = "a reply that is not to be heard twice or with holes in it"
        async with VoiceClient(voice(running), config=CONFIG, player=Player(RATE)) as client:
            await client.say(text)
            heard, breaks = b"", 0
            async for event in client:
                assert client.player is not None
                heard += client.player.pull(min(client.player.queued, 4000))
                await client.send_acks()
                if event.name == "audio" and len(heard) > breaks * 30_000 and breaks < 3:
                    breaks += 1
                    assert client._socket is not None
                    client._socket.transport.abort()
                if event.name == "turn_done":
                    break
            heard += client.player.pull(client.player.queued) if client.player else b""
        assert breaks == 3
        assert letters(heard) == text
        assert running.service.metrics.resumed._value.get() >= 1  # the last break may fall behind the end


async def test_a_server_that_sends_one_away(serving: Any) -> None:
    async with serving(api_key="secret") as running:
        with pytest.raises(InvalidStatus):
            await VoiceClient(voice(running), key="wrong").connect()
        with pytest.raises(ConnectionClosed) as closed:
            await VoiceClient(voice(running), key="secret", config={"speed": 100}).connect()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400
        async with VoiceClient(voice(running), key="secret") as client:
            await client.tool_result("nobody", "x")
            await client._send("nonsense")
            with pytest.raises(ConnectionClosed):
                await play(VoiceClientWithPlayer(client), lambda event: False)
            assert client.close_code == 4400


class VoiceClientWithPlayer(VoiceClient):
    """The same client, with a player that was not there at first."""

    def __new__(cls, client: VoiceClient) -> Any:
        client.player = Player(RATE)
        return client


async def test_who_is_gone_for_too_long_is_told(serving: Any) -> None:
    async with serving(voice=VoiceConfig(resume_s=0)) as running:
        client = VoiceClient(voice(running))
        await client.connect()
        assert client._socket is not None
        client._socket.transport.abort()
        with pytest.raises(ConnectionClosed) as closed:
            async for _ in client:
                pass
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


async def test_a_line_that_breaks_again_right_behind_ready_loses_nothing(serving: Any) -> None:
    async with serving() as running, VoiceClient(voice(running), config=CONFIG) as client:
        await client.say("hi")
        await play_nothing(client, "user_turn")
        (conversation,) = running.service.sessions.conversations.values()
        kept = conversation.outbound._kept
        await eventually(lambda: any(item.packet.fields[0] == "turn_done" for item in kept))
        for _ in range(2):
            assert client._socket is not None
            client._socket.transport.abort()
            assert (await client._come_back()).name == "ready"
        await client.ping(5)
        told = await play_nothing(client, "pong")
        assert [name for name in told if name in ("reply", "reply_done", "turn_done")] == [
            "reply", "reply_done", "turn_done",
        ]  # fmt: skip


async def play_nothing(client: VoiceClient, until: str) -> list[str]:
    """Return the names of what comes, up to an event."""
    seen: list[str] = []
    async for event in client:
        seen.append(event.name)
        if event.name == until:
            return seen
    raise AssertionError("the server left")


async def test_a_line_that_breaks_while_one_comes_back_is_tried_again() -> None:
    greeting: dict[str, Any] = {"token": "t", "limits": {"resume_s": 30}, "resumed": False}
    visits = []

    async def serve_badly(socket: ServerConnection) -> None:
        visits.append(msgpack.unpackb(await socket.recv()))
        if len(visits) != 2:
            await socket.send(msgpack.packb(("ready", len(visits), greeting | {"resumed": len(visits) > 1})))
        if len(visits) < 3:
            socket.transport.abort()

    async with serve(serve_badly, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        client = VoiceClient(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await client.connect()
        assert [event.sequence async for event in client] == [1, 3]
    assert [visit[1].get("resume") for visit in visits] == [None, "t", "t"]


async def test_a_client_that_resumes_names_its_server() -> None:
    greeting: dict[str, Any] = {"token": "t", "limits": {"resume_s": 30}, "resumed": False, "at": "cell1"}
    addresses: list[str] = []

    async def serve_briefly(socket: ServerConnection) -> None:
        assert socket.request is not None
        addresses.append(socket.request.path)
        await socket.recv()
        await socket.send(msgpack.packb(("ready", 1, greeting | {"resumed": len(addresses) > 1})))
        if len(addresses) == 1:
            socket.transport.abort()
        elif len(addresses) == 2:
            await socket.send(msgpack.packb(("go_away", 2, 0, "draining")))
            await socket.close(1012)

    async with serve(serve_briefly, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        client = VoiceClient(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/voice")
        await client.connect()
        assert [event.name async for event in client] == ["ready", "ready", "go_away", "ready"]
    assert addresses == ["/v1/voice", "/v1/voice?at=cell1", "/v1/voice?at="]


# ---- voxlane talk


async def test_talking_from_file_to_file(serving: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.wav", tmp_path / "out.wav"
    source.write_bytes(encode_wav(np.zeros(4_000, np.float32), 8_000))
    async with serving() as running:
        config = {"greeting": "welcome", "voice": "two"}
        options = TalkOptions(voice(running), str(source), str(target), config=config)
        assert await asyncio.to_thread(run_talk, options) == 0
    samples, rate = decode_wav(target.read_bytes())
    assert rate == OUTPUT_RATE
    spoken = (samples[samples != 0] * 32768).astype(np.int16)
    assert letters(spoken.tobytes()) == "welcome"
    out, err = capsys.readouterr()
    assert out == "assistant: welcome\n"
    assert "[speaking]" in err
    assert "[listening]" in err


def test_talk_says_what_is_wrong(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.wav", tmp_path / "bad.wav"
    good.write_bytes(encode_wav(np.zeros(4_000, np.float32), 16_000))
    bad.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="go together"):
        TalkOptions(source="x")
    for source, target, says in (
        (tmp_path / "none.wav", tmp_path / "o.wav", "No such file"),
        (bad, tmp_path / "o.wav", "none of WAV"),
        (good, tmp_path / "nowhere" / "o.wav", "no such folder"),
    ):
        with pytest.raises(ConfigError, match=says):
            run_talk(TalkOptions(source=str(source), target=str(target)))
    with pytest.raises(ConversationFailed, match=r"127\.0\.0\.1:9"):
        run_talk(TalkOptions("ws://127.0.0.1:9/v1/voice", str(good), str(tmp_path / "o.wav")))


async def test_talk_says_why_the_server_would_not(serving: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "in.wav", tmp_path / "out.wav"
    source.write_bytes(encode_wav(np.zeros(4_000, np.float32), 16_000))
    async with serving(api_key="secret") as running:
        for key, says in (("secret", "The voices are one, two"), ("wrong", "A valid API key is needed")):
            options = TalkOptions(voice(running), str(source), str(target), key, {"voice": "nobody"})
            with pytest.raises(ConversationFailed) as failed:
                await asyncio.to_thread(run_talk, options)
            assert says in failed.value.message
    assert not target.exists()


async def test_a_conversation_that_is_handed_over_goes_on_at_the_next_server(serving: Any, tmp_path: Path) -> None:
    store = StoreConfig("sqlite", str(tmp_path / "talk.sqlite"), wait_s=10.0)
    async with (
        serving(store=store, server=ServerConfig(drain_s=60)) as old,
        serving(store=store) as new,
        VoiceClient(voice(old), config={"turns": {"mode": "manual"}}) as client,
    ):
        events = aiter(client)

        async def until(name: str) -> Any:
            async for event in events:
                if event.name == name:
                    return event
            raise AssertionError(f"no {name}")

        await client.say("hello")
        await until("turn_done")
        client._url = voice(new)  # a port that both share, or a balancer, does this outside of tests
        await asyncio.gather(drain(old.service, old.http), until("ready"))
        assert [one["content"] for one in client.ready["history"]] == ["hello", "hello"]
        await client.say("and on")
        assert (await until("turn_done")).fields == {"turn": 2, "how": "done"}


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/voice"),
        ("https://example.org/", "wss://example.org/v1/voice"),
        ("https://example.org/v1", "wss://example.org/v1/voice"),
        ("ws://[::1]:8000", "ws://[::1]:8000/v1/voice"),
        ("wss://example.org/voices/v1/voice", "wss://example.org/voices/v1/voice"),
    ],
)
def test_talk_takes_the_addresses_that_say_takes(url: str, meant: str) -> None:
    assert voice_url(url) == meant


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://example.org", "http://"])
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="begins with http://"):
        TalkOptions(url)

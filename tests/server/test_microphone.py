"""Quiet pieces share a message while there is nothing to interrupt; a voice, a reply and a button do not wait."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import given
from websockets.asyncio.server import ServerConnection, serve

from voxlane.server.client import SUBPROTOCOL, VoiceClient
from voxlane.server.client.microphone import QuietGatherer

RATE = 16_000
FRAME = 320
MOST = 2 * 960


def piece(samples: int = FRAME, amplitude: int = 0, mark: int = 0) -> bytes:
    """Return a piece whose first sample is `mark`."""
    wave = array("h", [amplitude, -amplitude] * (samples // 2))
    if wave:
        wave[0] = mark
    return wave.tobytes()


QUIET, LOUD = piece(), piece(amplitude=8000)


def test_three_quiet_frames_share_a_message_in_their_order() -> None:
    gatherer = QuietGatherer(RATE)
    frames = [piece(mark=mark) for mark in (1, 2, 3)]
    assert [gatherer.push(frame, calm=True) for frame in frames] == [b"", b"", b"".join(frames)]


def test_a_frame_that_may_be_a_voice_goes_out_at_once_with_those_that_waited() -> None:
    gatherer = QuietGatherer(RATE)
    assert [len(gatherer.push(frame, calm=True)) for frame in (QUIET, LOUD, LOUD, QUIET)] == [0, 1280, 640, 0]


def test_while_something_can_be_interrupted_every_frame_goes_out_at_once() -> None:
    gatherer = QuietGatherer(RATE)
    assert gatherer.push(QUIET, calm=True) == b""
    assert [len(gatherer.push(QUIET, calm=False)) for _ in range(2)] == [1280, 640]


@pytest.mark.parametrize(
    ("room", "voice", "waits"), [(0, 100, True), (0, 300, False), (150, 300, True), (150, 3000, False)]
)
def test_the_room_decides_what_is_quiet(room: int, voice: int, waits: bool) -> None:
    gatherer = QuietGatherer(RATE)
    for _ in range(300):
        gatherer.push(piece(amplitude=room), calm=False)
    assert (gatherer.push(piece(amplitude=voice), calm=True) == b"") is waits


@given(st.lists(st.tuples(st.integers(0, 1500), st.sampled_from([0, 10, 200, 8000]), st.booleans()), max_size=40))
def test_nothing_is_lost_or_reordered_and_nothing_waits_for_long(steps: list[tuple[int, int, bool]]) -> None:
    gatherer, given_, sent = QuietGatherer(RATE), b"", b""
    for mark, (samples, amplitude, calm) in enumerate(steps, 1):
        pcm = piece(samples, amplitude, mark)
        given_ += pcm
        sent += gatherer.push(pcm, calm=calm)
        assert given_.startswith(sent)
        assert len(given_) - len(sent) < MOST
        if pcm and (not calm or amplitude == 8000):
            assert sent == given_
    assert sent + gatherer.flush() == given_
    assert gatherer.flush() == b""


# ---- the client


class Recorder:
    """A server that keeps what it is told, and tells the state that a test wants."""

    def __init__(self, codec: str = "pcm16") -> None:
        self.heard: list[Any] = []
        self._socket: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
        self._greeting = {
            "token": "t", "limits": {"resume_s": 30}, "resumed": False, "state": "listening",
            "input": {"codec": codec, "rate": RATE},
        }  # fmt: skip

    async def serve(self, socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(msgpack.packb(("ready", 1, self._greeting)))
        self._socket.set_result(socket)
        async for message in socket:
            name, *fields = msgpack.unpackb(message)
            self.heard.append(len(fields[0]) if name == "audio" else name)
            if name == "ping":
                await socket.send(msgpack.packb(("pong", 2, fields[0], 0.0)))

    async def tell_state(self, client: VoiceClient, name: str) -> None:
        """Tell a state, and let the client take it."""
        await (await self._socket).send(msgpack.packb(("state", 2, name)))
        async for event in client:
            if event.name == "state":
                return

    async def after(self, client: VoiceClient) -> list[Any]:
        """Return everything that was sent before now, without the ping that asks for it."""
        await client.ping(0)
        async for event in client:
            if event.name == "pong":
                break
        heard, self.heard = self.heard[:-1], []
        return heard


async def test_a_client_gathers_by_the_servers_state() -> None:
    recorder = Recorder()
    async with serve(recorder.serve, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with VoiceClient(url, gathers=True) as client:
            for _ in range(4):
                await client.send_audio(QUIET)
            await client.played(1, 0, 0)  # an ack neither waits for sound nor sends it
            assert await recorder.after(client) == [1920, "played", 640]
            for state in ("hearing", "thinking", "speaking", "held"):
                await recorder.tell_state(client, state)
                for _ in range(2):
                    await client.send_audio(QUIET)
                assert await recorder.after(client) == [640, 640], state
            await recorder.tell_state(client, "listening")
            for _ in range(3):
                await client.send_audio(QUIET)
            assert await recorder.after(client) == [1920]


async def test_what_was_heard_before_the_button_is_sent_before_it() -> None:
    recorder = Recorder()
    async with serve(recorder.serve, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with VoiceClient(url, gathers=True) as client:
            await client.send_audio(QUIET)
            await client.send_audio(QUIET)
            await client.start_turn()
            await client.send_audio(QUIET)
            await client.send_audio(QUIET)
            await client.end_turn()
            await client.send_audio(QUIET)
            assert await recorder.after(client) == [1280, "start", 640, 640, "end", 640]
            await client.send_audio(QUIET)
    assert recorder.heard == [640, "bye"]


@pytest.mark.parametrize(("gathers", "codec"), [(False, "pcm16"), (True, "opus")])
async def test_pieces_stay_apart_without_a_wish_or_with_another_codec(gathers: bool, codec: str) -> None:
    recorder = Recorder(codec)
    async with serve(recorder.serve, "127.0.0.1", 0, subprotocols=[SUBPROTOCOL]) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with VoiceClient(url, gathers=gathers) as client:
            await client.send_audio(QUIET)
            await client.send_audio(QUIET)
            assert await recorder.after(client) == [640, 640]

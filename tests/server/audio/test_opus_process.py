"""Opus of microphones is decoded in another process: it may die or hang, and only the packet at fault pays."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from peer import MANUAL, Peer, bystander, eventually

from voxlane.codecs.errors import InvalidAudio
from voxlane.codecs.opus import OpusDecoder, OpusEncoder
from voxlane.codecs.pcm import encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.server import limits
from voxlane.server.audio.opus_process import OpusProcess

OPUS = {**MANUAL, "input": {"codec": "opus", "rate": 48_000}}
PACKETS = OpusEncoder(48_000).push((0.4 * np.sin(np.arange(48_000) / 20)).astype(np.float32))
BROKEN = bytes([0x0B << 3 | 3, 3]) + bytes(9)  # 180 ms in one packet

# Answers as the real one does, and dies or hangs on packets that say so.
DOUBLE = """
import os, socket, sys, time
line = socket.socket(fileno=int(sys.argv[1]))
while message := line.recv(9000):
    if message[5:] == b"die": os._exit(1)
    if message[5:] == b"hang": time.sleep(3600)
    if message[5:] == b"short": line.send(b"x")
    if message[5:] == b"other": line.send(b"\\xff\\xff\\0\\0" + b"\\0ab")
    if message[5:] == b"odd": line.send(message[:4] + b"\\0abc")
    if message[4] == 0: line.send(message[:4] + b"\\0" + message[5:])
"""


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[OpusProcess]:
    process = OpusProcess(command) if command else OpusProcess()
    try:
        yield process
    finally:
        await process.aclose()


@asynccontextmanager
async def double(tmp_path: Path) -> AsyncIterator[OpusProcess]:
    (tmp_path / "double.py").write_text(DOUBLE)
    async with running(sys.executable, str(tmp_path / "double.py")) as process:
        yield process


async def test_the_sound_is_that_of_a_decoder_in_this_process() -> None:
    decoder, resampler = OpusDecoder(), Resampler(48_000, 16_000)
    wanted = [encode_pcm16(resampler.push(decoder.decode(packet))) for packet in PACKETS]
    async with running() as process:
        one, other = process.stream(), process.stream()
        heard = []
        for packet in PACKETS:
            heard.append(await one.decode(packet))
            await other.decode(PACKETS[0])  # does not disturb it
        assert heard == wanted
        one.close()
        assert await other.decode(PACKETS[1])


async def test_a_packet_that_cannot_be_decoded_is_refused_and_the_process_goes_on() -> None:
    async with running() as process:
        stream = process.stream()
        await stream.decode(PACKETS[0])
        pid = process.pid
        with pytest.raises(InvalidAudio):
            await stream.decode(BROKEN)
        assert await stream.decode(PACKETS[1])
        assert process.pid == pid


async def test_the_process_has_no_key_and_can_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXLANE_API_KEY", "a secret")
    async with running() as process:
        await process.stream().decode(PACKETS[0])
        proc = Path(f"/proc/{process.pid}")
        assert b"a secret" not in (proc / "environ").read_bytes()
        text = (proc / "limits").read_text().splitlines()
        rows = {line[:26].strip(): line[26:].split()[0] for line in text}
        assert rows["Max open files"] == "0"
        assert rows["Max file size"] == "0"
        assert rows["Max processes"] == "0"
        assert rows["Max address space"].isdigit()


async def test_the_packet_that_ends_the_process_is_refused_and_the_others_are_decoded(tmp_path: Path) -> None:
    async with double(tmp_path) as process:
        streams = [process.stream() for _ in range(5)]
        assert await streams[0].decode(b"aa") == b"aa"
        before = process.pid
        said = [b"first ", b"die", b"third ", b"fourth", b"fifth "]
        told = await asyncio.gather(*map(type(streams[0]).decode, streams, said), return_exceptions=True)
        assert isinstance(told[1], InvalidAudio)
        assert [told[0], *told[2:]] == [said[0], *said[2:]]
        assert process.pid != before


@pytest.mark.parametrize("said", [b"short", b"other", b"odd"])
async def test_a_process_that_answers_nonsense_is_replaced(tmp_path: Path, said: bytes) -> None:
    async with double(tmp_path) as process:
        one, other = process.stream(), process.stream()
        await one.decode(b"even")
        before = process.pid
        with pytest.raises(InvalidAudio):
            await one.decode(said)
        assert await other.decode(b"bb") == b"bb"
        assert process.pid != before


async def test_a_process_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPUS_SECONDS", 0.3)
    async with double(tmp_path) as process:
        one, other = process.stream(), process.stream()
        await one.decode(b"begin ")
        hanging = asyncio.create_task(one.decode(b"hang"))
        await asyncio.sleep(0)
        assert await other.decode(b"bb") == b"bb"
        with pytest.raises(InvalidAudio):
            await hanging


async def test_a_client_that_leaves_with_its_packet_on_the_way_blames_no_other(tmp_path: Path) -> None:
    async with double(tmp_path) as process:
        one, other = process.stream(), process.stream()
        await one.decode(b"begin ")
        leaving = asyncio.create_task(one.decode(b"die"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await other.decode(b"bb") == b"bb"


async def test_it_is_killed_and_started_again_between_packets() -> None:
    async with running() as process:
        stream = process.stream()
        for _ in range(2):
            assert await stream.decode(PACKETS[0])
            pid = process.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: process._line is None)


# ---- in a server


async def test_the_server_decodes_no_opus_itself(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded in the server")

    monkeypatch.setattr(OpusDecoder, "__init__", never)
    async with serving() as server, bystander(server):
        peer = await Peer.open(server.url, OPUS)
        for packet in PACKETS:
            await peer.send("audio", packet)
        await peer.send("ping", 7)
        assert (await peer.until("pong"))[3] == pytest.approx(1.0)
        assert server.service.sessions.opus.pid is not None
        await peer.bye()


@pytest.mark.parametrize("packet", [b"", BROKEN, bytes(4001)], ids=["empty", "too long a time", "too large"])
async def test_a_packet_with_wrong_framing_never_reaches_a_decoder(serving: Any, packet: bytes) -> None:
    async with serving() as server, bystander(server):
        peer = await Peer.open(server.url, OPUS)
        await peer.socket.send(msgpack.packb(("audio", packet)))
        assert await peer.closed() == 4400
        assert server.service.sessions.opus.pid is None


async def test_a_decoder_that_dies_ends_one_conversation(serving: Any) -> None:
    async with serving() as server, bystander(server):
        peers = [await Peer.open(server.url, OPUS) for _ in range(2)]
        for peer in peers:
            await peer.send("audio", PACKETS[0])
            await peer.send("ping", 1)
            await peer.until("pong")
        pid = server.service.sessions.opus.pid
        os.kill(pid, signal.SIGSTOP)
        for peer in peers:
            await peer.send("audio", PACKETS[1])
        await eventually(lambda: len(server.service.sessions.opus._waiting) == 2)
        os.kill(pid, signal.SIGKILL)
        assert await peers[0].closed() == 4400
        await peers[1].send("ping", 2)
        await peers[1].until("pong", lambda message: message[2] == 2)
        await peers[1].bye()

"""Audio files from strangers: whatever is in them, samples or a clear error, and nothing left behind."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import numpy as np
import pytest
from cell_process import runs
from peer import eventually

from voxlane.codecs.encode import SpeechFormat, encoder
from voxlane.codecs.errors import InvalidAudio
from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.engine.api import LISTEN_RATE
from voxlane.server import limits
from voxlane.server.audio import decoding
from voxlane.server.audio.clip import limits_for, to_listening
from voxlane.server.audio.decoding import AudioDecoder
from voxlane.server.errors import BadAudio, Overloaded, TooLarge, VoxlaneError

TONE = (0.5 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000)).astype(np.float32)


def wav(tag: int, channels: int, bits: int, data: bytes, *, declared: int | None = None) -> bytes:
    width = channels * bits // 8
    layout = struct.pack("<HHIIHH", tag, channels, 16_000, 16_000 * width, width, bits)
    size = len(data) if declared is None else declared
    return (
        b"RIFF"
        + struct.pack("<I", size + 36)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + layout
        + b"data"
        + (struct.pack("<I", size) + data)
    )


def encoded(kind: SpeechFormat) -> bytes:
    one = encoder(kind, 24_000)
    return one.push(TONE) + one.finish()


async def decode(data: bytes, seconds: float = 60) -> bytes:
    async with AudioDecoder(seconds, 1) as decoder:
        return await decoder.decode(data)


def forks_that(code: str) -> tuple[str, ...]:
    """Return the command of a decoder whose forks run this code, as `serve` does, with the server at `peer`."""
    module = "from voxlane.server.audio import decode_child\n"
    serve = f"def serve(request, peer):\n    import os, pathlib, sys, time\n    {code}\n"
    return (decoding.CHILD[0], "-P", "-c", f"{module}{serve}decode_child.serve = serve\ndecode_child.main()")


async def test_a_second_of_sound_is_a_second_of_samples() -> None:
    kinds: tuple[SpeechFormat, ...] = ("wav", "mp3", "opus", "flac", "aac")
    async with AudioDecoder(60, 1) as decoder:
        for kind in kinds:
            samples = decode_pcm16(await decoder.decode(encoded(kind)))
            assert abs(len(samples) - LISTEN_RATE) < 0.15 * LISTEN_RATE, kind
            assert 0.3 < np.abs(samples[4000:12000]).max() < 0.7, kind


async def test_thread_and_child_give_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_wav(TONE, 24_000)
    here = await decode(data)
    monkeypatch.setattr(limits, "SMALL_WAV_BYTES", 0)
    assert await decode(data) == here == b"".join(to_listening(data, limits_for(60)))


ONE_KB = bytes(1024)


ODD = [
    ("100 MB header on 1 KB", wav(1, 1, 16, ONE_KB, declared=100 * 1024 * 1024), 512),
    ("truncated", encode_wav(TONE, 16_000)[:1001], 478),
    ("8 bits", wav(1, 1, 8, b"\x80" * 1000), 1000),
    ("7 channels", wav(1, 7, 16, bytes(1400)), 100),
    ("no samples", wav(1, 1, 16, b""), 0),
]


@pytest.mark.parametrize("in_child", [False, True])
async def test_odd_files_give_what_is_in_them(in_child: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_child:
        monkeypatch.setattr(limits, "SMALL_WAV_BYTES", 0)
    async with AudioDecoder(60, 1) as decoder:
        for name, data, samples in ODD:
            assert len(await decoder.decode(data)) == samples * 2, name


NAN = np.full(100, np.nan, dtype="<f4").tobytes()
MP3 = encoded("mp3")


BAD: list[tuple[bytes, type[VoxlaneError], str]] = [
    (b"", BadAudio, "The audio is empty"),
    (b"RIFF", BadAudio, "none of WAV, MP3"),
    (encode_wav(TONE, 16_000)[:30], BadAudio, "WAV file"),
    (wav(3, 1, 32, NAN), BadAudio, "not finite"),
    (wav(1, 9, 16, bytes(1800)), BadAudio, "1 to 8 channels"),
    (wav(1, 1, 16, bytes(32_000 * 61)), TooLarge, "longer than 60 s"),
    (b"#EXTM3U\nfile:///etc/passwd\n", BadAudio, "none of WAV, MP3"),
    (b"fLaC" + bytes(1000), BadAudio, "broken"),
    (b"OggS" + b"\xff" * 1000, BadAudio, "broken"),
    (b"\x1aE\xdf\xa3" + b"\x01" * 1000, BadAudio, "broken"),
    (b"ID3\x04" + bytes(1000), BadAudio, "broken"),
    (MP3[:20], BadAudio, "broken"),
    (MP3 * 70, TooLarge, "longer than 60 s"),
]


async def test_bad_files_are_named() -> None:
    async with AudioDecoder(60, 1) as decoder:
        for data, error, says in BAD:
            with pytest.raises(error, match=says) as caught:
                await decoder.decode(data)
            assert caught.value.param == "file"


async def test_a_file_that_takes_too_long_is_given_up() -> None:
    async with AudioDecoder(60, 1, 0.001) as decoder:
        with pytest.raises(BadAudio, match="too long to decode"):
            await decoder.decode(MP3)


@pytest.mark.parametrize(
    "code",
    ["os.abort()", "peer.sendall(b'x' * 10_000_000)", "sys.exit(3)", "pass", "peer.sendall(bytes(3)); os.abort()"],
)
async def test_a_decoder_that_breaks_is_a_broken_file(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHILD", forks_that(code))
    with pytest.raises(BadAudio, match="broken"):
        await decode(MP3)


@pytest.mark.parametrize("code", ["import os; os.abort()", "pass"])
async def test_a_decoder_that_does_not_start_says_nothing_about_the_file(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "CHILD", (decoding.CHILD[0], "-c", code))
    with pytest.raises(Overloaded):
        await decode(MP3)


async def test_a_crash_ends_one_file_and_the_next_is_decoded() -> None:
    async with AudioDecoder(60, 2) as decoder:
        whole = await decoder.decode(MP3)
        process = decoder._parent
        with pytest.raises(BadAudio, match="broken"):
            await decoder.decode(MP3[:20])
        assert await asyncio.gather(decoder.decode(MP3), decoder.decode(MP3)) == [whole, whole]
        assert decoder._parent is process  # one process forked for all of them
        assert process is not None
        process._process.kill()  # it may take one more request, and die with it
        assert await decoder.decode(MP3) == whole
        assert decoder._parent is not process


async def test_a_client_that_leaves_ends_its_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(600)"
    monkeypatch.setattr(decoding, "CHILD", forks_that(code))
    async with AudioDecoder(60, 1) as decoder:
        task = asyncio.create_task(decoder.decode(MP3))
        await eventually(lambda: started.exists() and bool(started.read_text()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fork = int(started.read_text())
        await eventually(lambda: not runs(fork))
        monkeypatch.undo()
        await decoder.aclose()
        assert await decoder.decode(MP3)  # its slot is free again


async def test_a_decoder_is_ended_though_nobody_read_what_it_wrote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    # Once all this is sent, asyncio has taken more than the 128 KiB at which it stops reading.
    code = f"peer.sendall(b'x' * 230_000); pathlib.Path({str(written)!r}).touch(); time.sleep(600)"
    monkeypatch.setattr(decoding, "CHILD", forks_that(code))

    async def refuse(stdout: asyncio.StreamReader, most: int) -> bytearray:
        await eventually(written.exists)
        raise InvalidAudio("the audio file is broken")

    monkeypatch.setattr(decoding, "_take", refuse)
    with pytest.raises(BadAudio, match="broken"):
        await decode(MP3)


def test_the_child_can_open_nothing_and_grow_little() -> None:
    import subprocess
    import sys

    code = """
import sys
from voxlane.server.audio.decode_child import confine
confine(64 * 1024 * 1024, 10)
try:
    bytearray(256 * 1024 * 1024)
except MemoryError:
    print("bounded")
try:
    open("/etc/passwd")
except OSError:
    print("closed")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["bounded", "closed"]

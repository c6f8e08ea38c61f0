"""Recordings: what was heard, sample by sample; kept for a while, bounded, private, and no conversation's trouble."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import MANUAL, Peer, eventually, speech

from voxlane.codecs.wav import decode_wav
from voxlane.server import config as configuration
from voxlane.server.config import RecordingsConfig
from voxlane.server.conversation.server_events import Interrupted, ItemCut, ReplyDone, ReplyStarted, Speech
from voxlane.server.errors import ConfigError
from voxlane.server.watching import disk_thread
from voxlane.server.watching import recordings as room
from voxlane.server.watching.heard_sound import HeardCut, HeardPiece, HeardReplies, Timeline
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.recordings import Recordings
from voxlane.server.watching.stereo_file import HEADER_BYTES, RATE, StereoFile, header, repair
from voxlane.server.watching.watched_call import CallEnd, WatchedCall

CALL = WatchedCall("voice-0123456789abcdef", "native", 1_763_416_800.0)
NAME = "20251117T220000Z-voice-0123456789abcdef"


def pcm(*samples: int) -> bytes:
    return np.array(samples, "<i2").tobytes()


def stereo(path: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    data = path.read_bytes()
    assert data[:HEADER_BYTES] == header(len(data) - HEADER_BYTES)
    both = np.frombuffer(data[HEADER_BYTES:], "<i2").reshape(-1, 2)
    return both[:, 0], both[:, 1]


def files(folder: Path) -> tuple[Path, Path]:
    """Return the only recording and the only transcript."""
    (sound,), (words,) = folder.glob("*.wav"), folder.glob("*.jsonl")
    return sound, words


def all_on(folder: Path, **options: Any) -> RecordingsConfig:
    return RecordingsConfig(audio=True, transcripts=True, folder=str(folder), **options)


# ---- which samples were heard, and when


def test_sound_that_follows_joins_and_sound_behind_a_pause_does_not() -> None:
    line = Timeline()
    assert line.place(0.02, 0.02) == (0.0, True)
    assert line.place(0.02, 0.13) == (0.02, True)  # late by jitter
    at_s, joins = line.place(0.02, 5.0)
    assert (round(at_s, 6), joins) == (4.98, False)
    assert line.place(0.5, 5.1) == (5.0, True)  # faster than real time: it follows all the same


def pieces_of(heard: HeardReplies, event: Any, now: float) -> list[Any]:
    return list(heard.follow(event, now))


def test_an_interrupted_reply_is_heard_up_to_the_sample_that_the_ledger_says() -> None:
    heard = HeardReplies(RATE)
    assert pieces_of(heard, ReplyStarted(1, 1, "r1"), 0.0) == []
    assert pieces_of(heard, Speech(1, 0, pcm(*range(1, 101))), 0.0) == []
    (piece,) = pieces_of(heard, Interrupted(1, "", 40), 1.0)
    assert piece.pcm == pcm(*range(1, 41))
    assert pieces_of(heard, Speech(1, 100, pcm(7)), 1.0) == []
    assert pieces_of(heard, ReplyDone(1, ""), 1.0) == []


def test_a_finished_reply_was_heard_whole_until_the_client_says_otherwise() -> None:
    heard = HeardReplies(RATE)
    pieces_of(heard, ReplyStarted(1, 1, "r1"), 0.0)
    pieces_of(heard, Speech(1, 0, pcm(*range(100))), 0.0)
    (piece,) = pieces_of(heard, ReplyDone(1, "text"), 1.0)
    assert len(piece.pcm) == 200
    assert pieces_of(heard, ItemCut("r1", 30 / RATE, "te"), 2.0) == [HeardCut(1, 30)]
    assert pieces_of(heard, ItemCut("r1", 50 / RATE, "te"), 2.0) == []  # less than that was heard


def test_an_aside_is_not_recorded() -> None:
    heard = HeardReplies(RATE)
    pieces_of(heard, ReplyStarted(1, 0, ""), 0.0)
    pieces_of(heard, Speech(1, 0, pcm(1)), 0.0)
    assert pieces_of(heard, ReplyDone(1, ""), 1.0) == []


# ---- the file


def test_both_channels_lie_where_they_were_heard(tmp_path: Path) -> None:
    file = StereoFile(tmp_path / "a.wav", RATE)
    file.write([HeardPiece(0.0, pcm(*[5] * 100), True), HeardPiece(50 / RATE, pcm(*[7] * 100), False, 1)])
    file.close()
    left, right = stereo(tmp_path / "a.wav")
    assert left.tolist() == [5] * 100 + [0] * 50
    assert right.tolist() == [0] * 50 + [7] * 100


def test_a_cut_silences_what_was_not_heard_and_nothing_of_the_caller(tmp_path: Path) -> None:
    file = StereoFile(tmp_path / "a.wav", RATE)
    first = HeardPiece(0.0, pcm(*[7] * 60), True, 1)
    second = HeardPiece(100 / RATE, pcm(*[8] * 60), False, 1)  # it was on hold in between
    file.write([HeardPiece(0.0, pcm(*[5] * 200), True), first, second])
    file.write([HeardCut(1, 70)])
    file.write([HeardPiece(0.0, pcm(*[9] * 10), True, 2)])
    file.close()
    left, right = stereo(tmp_path / "a.wav")
    assert left.tolist() == [5] * 200
    assert right.tolist()[:170] == [7] * 60 + [0] * 40 + [8] * 10 + [0] * 50 + [9] * 10


def test_a_reply_at_another_rate_keeps_its_length_and_its_cut(tmp_path: Path) -> None:
    file = StereoFile(tmp_path / "a.wav", 24_000)
    tone = (8000 * np.sin(np.arange(24_000) * 2 * np.pi * 440 / 24_000)).astype("<i2")
    for start in range(0, 24_000, 960):
        file.write([HeardPiece(0.0, tone[start : start + 960].tobytes(), True, 1)])
    file.write([HeardCut(1, 12_000)])
    file.close()
    _, right = stereo(tmp_path / "a.wav")
    assert len(right) == 16_000
    wanted = 8000 * np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000)
    assert np.abs(right[100:7_900] - wanted[100:7_900]).max() < 20
    assert not right[8_000:].any()


@settings(max_examples=examples(600))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300), st.integers(1, 200), st.booleans()), max_size=20))
def test_no_sample_of_a_channel_is_lost_or_twice(moves: list[tuple[bool, int, int, bool]]) -> None:
    folder = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")
    path = folder / f"voxlane-test-{os.getpid()}.wav"
    path.unlink(missing_ok=True)
    file, sent = StereoFile(path, RATE), {0: [], 1: []}
    try:
        for right, frame, count, joins in moves:
            samples = [1 + len(sent[right]) + number for number in range(count)]
            sent[right] += samples
            file.write([HeardPiece(frame / RATE, pcm(*samples), joins, int(right))])
        file.close()
        for channel, found in enumerate(stereo(path)):
            assert found[found != 0].tolist() == sent[channel]
    finally:
        path.unlink()


@pytest.mark.parametrize("cut", [0, 10, HEADER_BYTES, HEADER_BYTES + 3, HEADER_BYTES + 401])
def test_a_file_that_a_crash_left_is_repaired(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    file = StereoFile(path, RATE)
    file.write([HeardPiece(0.0, pcm(*[5] * 200), True)])
    os.close(file._file)
    os.truncate(path, cut)
    assert repair(path)
    left, _ = stereo(path)
    assert left.tolist() == [5] * (max(0, cut - HEADER_BYTES) // 4)
    assert not repair(path)


def test_the_file_is_valid_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from voxlane.server.watching.heard_sound import HeardPiece\n"
        "from voxlane.server.watching.stereo_file import StereoFile\n"
        "file = StereoFile(Path(sys.argv[1]), 16000)\n"
        "file.write([HeardPiece(0.0, b'\\1\\0' * 1600, True)])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    samples, rate = decode_wav(path.read_bytes(), mono=False)
    assert (samples.shape, rate) == ((1600, 2), RATE)


# ---- the folder


def old(folder: Path, name: str, days: float, size: int = 1000) -> Path:
    path = folder / name
    path.write_bytes(header(0) + bytes(size))
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def named(number: int, end: str = "wav") -> str:
    return f"20251117T220000Z-voice-{number:016x}.{end}"


async def test_old_files_are_deleted_and_only_ours(tmp_path: Path) -> None:
    gone = [old(tmp_path, named(1), 31), old(tmp_path, named(2, "jsonl"), 31)]
    kept = [old(tmp_path, named(3), 29), old(tmp_path, "notes.wav", 99), old(tmp_path, "x" + named(4), 99)]
    (tmp_path / named(5)).symlink_to(kept[1])
    one = Recordings(all_on(tmp_path, keep_days=30), Metrics(), free_bytes=0)
    await one.start()
    await one.settled()
    await one.aclose()
    assert [path.exists() for path in gone] == [False, False]
    assert [path.exists() for path in kept] == [True, True, True]
    assert (tmp_path / named(5)).is_symlink()


async def test_the_oldest_make_room_when_all_are_too_large(tmp_path: Path) -> None:
    files = [old(tmp_path, named(number), 10 - number, 600_000) for number in range(4)]
    metrics = Metrics()
    one = Recordings(all_on(tmp_path, most_mib=1), metrics, free_bytes=0)
    await one.start()
    await one.settled()
    await one.aclose()
    assert [path.exists() for path in files] == [False, False, False, True]
    assert 0 < (metrics.registry.get_sample_value("voxlane_recordings_bytes") or 0) <= 1 << 20


async def test_what_a_crash_left_is_repaired_at_the_start(tmp_path: Path) -> None:
    path = old(tmp_path, named(1), 0.5, 402)
    one = Recordings(all_on(tmp_path), Metrics(), free_bytes=0)
    await one.start()
    await one.settled()
    await one.aclose()
    left, _ = stereo(path)
    assert len(left) == 100


def stopped(metrics: Metrics, reason: str) -> float:
    return metrics.registry.get_sample_value("voxlane_recordings_stopped_total", {"reason": reason}) or 0.0


async def test_calls_that_go_on_cannot_exceed_the_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    one = Recordings(all_on(tmp_path, most_mib=1), metrics, free_bytes=0)
    await one.start()
    call = one.open(CALL, RATE)
    assert call is not None
    second = bytes(range(1, 201)) * 160
    for number in range(1, 100):
        call.heard(second, float(number))
        call._flush()
    await one.settled()
    call.close("done")
    await one.aclose()
    assert stopped(metrics, "EDQUOT") == 1
    assert (tmp_path / f"{NAME}.wav").stat().st_size < 2 << 20
    assert "recording stopped" in caplog.text
    stereo(tmp_path / f"{NAME}.wav")


async def test_a_full_disk_stops_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    one = Recordings(all_on(tmp_path), metrics, free_bytes=0)
    await one.start()
    call = one.open(CALL, RATE)
    assert call is not None
    call.heard(pcm(1, 2, 3), 0.1)
    call._flush()
    await one.settled()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        call.heard(pcm(4, 5, 6), 0.2)
        call._flush()
        call.heard(pcm(7), 0.3)
        await one.settled()
        call.close("done")
        await one.settled()
    await one.aclose()
    assert stopped(metrics, "ENOSPC") == 1
    left, _ = stereo(tmp_path / f"{NAME}.wav")
    assert left[:3].tolist() == [1, 2, 3]


async def test_others_keep_some_of_the_disk(tmp_path: Path) -> None:
    metrics = Metrics()
    one = Recordings(all_on(tmp_path), metrics, free_bytes=1 << 60)
    await one.start()
    call = one.open(CALL, RATE)
    assert call is not None
    call.heard(pcm(1), 0.1)
    call.close("done")
    await one.aclose()
    assert stopped(metrics, "ENOSPC") == 1


async def test_a_disk_that_hangs_stops_recordings_and_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_thread, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(room, "PENDING_BYTES", 10_000)
    metrics, hangs = Metrics(), threading.Event()
    one = Recordings(all_on(tmp_path), metrics, free_bytes=0)
    await one.start()
    one.do(lambda: (hangs.wait(), None)[1])
    call = one.open(CALL, RATE)
    assert call is not None
    for number in range(20):
        call.heard(bytes(1000), number / 50)
    assert stopped(metrics, "ETIMEDOUT") == 1
    call.close("done")
    await one.aclose()
    hangs.set()
    await eventually(lambda: not any(thread.name == "recordings" for thread in threading.enumerate()))


def test_a_folder_is_needed_and_must_be_usable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recordings\.folder must be given"):
        configuration.load(None, {"recordings.audio": True})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"recordings\.folder"):
        Recordings(all_on(tmp_path / "file" / "below"), Metrics())


# ---- whole conversations


async def test_by_default_nothing_is_recorded_and_the_client_is_told_so(serving: Any, tmp_path: Path) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        assert peer.ready["recorded"] == []
        await peer.bye()


async def test_a_conversation_is_recorded_as_it_was_heard(serving: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    async with serving(parts={"recordings": all_on(folder)}) as running:
        running.service.watch.recordings._free_bytes = 0
        peer = await Peer.open(running.url, MANUAL)
        assert peer.ready["recorded"] == ["audio", "transcript"]
        await peer.send("start")
        await peer.send("audio", speech("what is this"))
        await peer.send("end")
        await peer.until("turn_done")
        await peer.bye()
        await running.service.watch.recordings.settled()
    sound, words = files(folder)
    assert peer.ready["session"] in sound.name
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (sound, words)} == {0o600}
    left, right = stereo(sound)
    heard = [chr(sample) for sample in left if sample]
    assert "".join(heard) == "what is this"
    assert right.any()
    lines = [json.loads(one) for one in words.read_text().splitlines()]
    assert [(one.get("speaker"), one.get("text")) for one in lines[1:-1]] == [
        ("caller", "what is this"),
        ("assistant", "what is this"),
    ]
    assert lines[0]["session"] == peer.ready["session"]
    assert lines[-1]["reason"] == "done"


async def test_a_conversation_leaves_no_file_without_sound_and_none_without_words(serving: Any, tmp_path: Path) -> None:
    ends: list[CallEnd] = []
    async with serving(parts={"recordings": all_on(tmp_path)}) as running:
        watch = running.service.watch
        watch.recordings._free_bytes, watch._ended = 0, ends.append
        peer = await Peer.open(running.url, MANUAL)
        await peer.bye()
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("start")
        await peer.send("audio", speech("not understood"))
        await peer.bye()
        await eventually(lambda: len(ends) == 2)
        await watch.recordings.settled()
    assert [(bool(end.recording), bool(end.transcript)) for end in ends] == [(False, False), (True, False)]
    assert os.listdir(tmp_path) == [ends[1].recording]


async def test_of_an_interrupted_reply_only_the_heard_part_is_kept(serving: Any, tmp_path: Path) -> None:
    hello = {"config": {"voice": "two", "turns": {"mode": "manual"}}, "output": {"codec": "pcm16", "rate": 24_000}}
    text = "one two three four five six seven eight nine ten"
    async with serving(parts={"recordings": all_on(tmp_path)}) as running:
        running.service.watch.recordings._free_bytes = 0
        peer = await Peer.open(running.url, hello)
        await peer.send("text", text)
        await peer.until("audio")
        await peer.send("played", 1, 12_000, 100)
        await peer.send("stop")
        interrupted = await peer.until("interrupted")
        heard_text, samples = interrupted[3], interrupted[4]
        await peer.until("turn_done")
        await peer.bye()
        await running.service.watch.recordings.settled()
    sound, words = files(tmp_path)
    _, right = stereo(sound)
    assert samples >= 12_000
    # A voice of 50 ms a character at 24 kHz: the recording ends with the last sample that was heard.
    assert abs(len(right) - samples * RATE / 24_000) < 0.4 * RATE
    assert right.any()
    lines = [json.loads(one) for one in words.read_text().splitlines()]
    said = next(one for one in lines if one.get("speaker") == "assistant")
    assert (said["text"], said["whole"]) == (heard_text, False)
    assert len(heard_text) < len(text)


async def test_a_conversation_goes_on_when_its_recording_cannot(serving: Any, tmp_path: Path) -> None:
    async with serving(parts={"recordings": all_on(tmp_path)}) as running:
        running.service.watch.recordings._free_bytes = 1 << 60
        peer = await Peer.open(running.url, MANUAL)
        assert (await peer.say("hello"))[-1][3] == "done"
        assert (await peer.say("again"))[-1][3] == "done"
        await eventually(lambda: stopped(running.service.metrics, "ENOSPC"))
        await peer.bye()
        assert stopped(running.service.metrics, "ENOSPC") == 1

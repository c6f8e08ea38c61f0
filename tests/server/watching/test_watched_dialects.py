"""Every dialect is watched: the line of a turn, the announcement of a recording, the end of a call."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer import MANUAL, Peer, eventually
from phone_caller import calling
from websockets.asyncio.client import connect

from voxlane.server.config import PhoneConfig, RecordingsConfig, VoiceConfig
from voxlane.server.log import LogLine
from voxlane.server.watching.stereo_file import HEADER_BYTES
from voxlane.server.watching.watched_call import CallEnd

QUIET = PhoneConfig(voice="two", digits_s=0.1, silence_s=0)


def turn_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record.msg for record in caplog.records if record.name.endswith("turn_log")]
    assert all(isinstance(one, LogLine) and one.event == "turn" for one in found)
    return [dict(one.fields) for one in found]


def ends_of(running: Any) -> list[CallEnd]:
    """Return the ends of calls as the webhook would be told, from now on."""
    found: list[CallEnd] = []
    watch = running.service.watch
    watch._ended = found.append
    return found


async def test_a_turn_has_a_line_without_its_words(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "voxlane")
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("canary zebra")
        await peer.bye()
    (told,) = turn_lines(caplog)
    assert told["session"] == peer.ready["session"]
    assert (told["turn"], told["dialect"], told["end"]) == (1, "native", "done")
    assert (told["words"], told["reply_words"]) == (2, 2)
    stages = [told[f"{name}_ms"] for name in ("turn_end", "words", "first_token", "first_sample", "first_frame")]
    assert stages == sorted(stages)
    assert {"prompt_tokens", "output_tokens", "ms"} <= set(told)
    assert told["tenant"] == "default"
    assert "canary" not in caplog.text


async def test_a_turn_that_is_interrupted_or_left_says_so(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "voxlane")
    async with serving() as running:
        ends = ends_of(running)
        peer = await Peer.open(running.url, {"config": {"voice": "two", "turns": {"mode": "manual"}}})
        await peer.send("text", "a long answer that takes some time")
        await peer.until("audio")
        await peer.send("stop")
        await peer.until("turn_done")
        await peer.send("text", "another one that is never heard to its end")
        await peer.until("audio")
        await peer.bye()
        assert [(end.turns, end.interruptions, end.reason) for end in ends] == [(2, 1, "done")]
    assert [line["end"] for line in turn_lines(caplog)] == ["interrupted", "left"]


async def test_who_does_not_come_back_has_left(serving: Any) -> None:
    async with serving(voice=VoiceConfig(resume_s=0.01)) as running:
        ends = ends_of(running)
        peer = await Peer.open(running.url, MANUAL)
        peer.drop()
        await eventually(lambda: ends)
        assert ends[0].reason == "left"


async def test_openais_dialect_is_told_that_it_is_recorded(
    serving: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "voxlane")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello to you"}]}
    for audio in (False, True):
        parts = {"recordings": RecordingsConfig(audio=audio, transcripts=audio, folder=str(tmp_path))}
        async with serving(parts=parts) as running:
            if audio:
                running.service.watch.recordings._free_bytes = 0
            url = running.url.replace("http", "ws", 1) + "/v1/realtime?model=m"
            async with connect(url) as socket:
                created = json.loads(await socket.recv())
                assert created["type"] == "session.created"
                assert created.get("recorded") == (["audio", "transcript"] if audio else None)
                assert "recorded" not in created["session"]
                for event in ({"type": "conversation.item.create", "item": item}, {"type": "response.create"}):
                    await socket.send(json.dumps(event))
                while json.loads(await socket.recv())["type"] != "response.done":
                    pass
            await eventually(lambda running=running: len(running.service.sessions.conversations) == 0)
    assert {line["dialect"] for line in turn_lines(caplog)} == {"realtime"}
    assert sorted(Path(one).suffix for one in os.listdir(tmp_path)) == [".jsonl", ".wav"]
    (words,) = [one for one in os.listdir(tmp_path) if one.endswith(".jsonl")]
    lines = [json.loads(one) for one in (tmp_path / words).read_text().splitlines()]
    said = [(one["speaker"], one["text"]) for one in lines if "speaker" in one]
    assert said == [("caller", "hello to you"), ("assistant", "hello to you")]


async def test_a_telephone_call_is_watched_and_its_caller_masked(
    serving: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "voxlane")
    parts = {"recordings": RecordingsConfig(audio=True, transcripts=True, folder=str(tmp_path))}
    async with serving(phone=QUIET, parts=parts) as running:
        running.service.watch.recordings._free_bytes = 0
        ends = ends_of(running)
        numbers = {"from": "+491712345689"}
        async with calling(str(running.client.base_url), numbers) as caller:
            await caller.press("42")
            words = "I pressed 4 2 on my telephone."
            await eventually(lambda: len(caller.played) >= len(words) * 400)
            await eventually(lambda: turn_lines(caplog))
            await caller.stop()
            await caller.gone()
        await eventually(lambda: ends)
        await running.service.watch.recordings.settled()
    (end,) = ends
    assert (end.call.dialect, end.call.system, end.reason) == ("phone", "twilio", "left")
    assert end.call.caller == "...89"
    assert end.recording.endswith(".wav")
    assert turn_lines(caplog)[0]["dialect"] == "phone"
    assert "5689" not in caplog.text
    data = (tmp_path / end.recording).read_bytes()
    right = np.frombuffer(data[HEADER_BYTES:], "<i2").reshape(-1, 2)[:, 1]
    # 50 ms a character; what the line had played when it was over.
    assert np.count_nonzero(np.trim_zeros(right)) > 0.5 * len(words) * 800
    assert len(np.trim_zeros(right)) == pytest.approx(len(words) * 800, rel=0.25)
    assert "I pressed 4 2" in (tmp_path / end.transcript).read_text()

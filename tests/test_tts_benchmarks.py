"""The listeners of the TTS benchmark in virtual time, and the random checkpoint they listen to."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from voxlane.engine.api import Cancel, Finished, RequestStats, Samples, Submit
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.weights.files import open_weights

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from support import random_talkers
from support.tts import load, tables

RATE, FRAME_S = 24_000, 0.08
NOTHING = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


class Mouths:
    """An engine of voices: a frame for every request each `step_s`; a cancelled request ends."""

    def __init__(self, step_s: float) -> None:
        self.ready = SimpleNamespace(speak_rate=RATE)
        self.receivers: dict[str, Any] = {}
        self.step_s = step_s
        self._speaking: dict[str, None] = {}
        self._over: list[str] = []

    def send(self, *messages: Any) -> None:
        for message in messages:
            match message:
                case Submit(name):
                    self._speaking[name] = None
                case Cancel(name) if name in self._speaking:
                    del self._speaking[name]
                    self._over.append(name)
                case _:
                    pass

    def step(self, now: float) -> None:
        over, self._over = self._over, []
        for name in list(self._speaking):
            self.receivers[name.partition("/")[0]](Samples(name, 0, 0, bytes(2 * round(FRAME_S * RATE)), ()), now)
        for name in over:
            self.receivers[name.partition("/")[0]](Finished(name, 0, "cancelled", NOTHING), now)


def listen(step_s: float, seconds: float, count: int) -> tuple[Mouths, load.Voices, load.Listeners]:
    engine = Mouths(step_s)
    voices = load.Voices(engine, 1)  # type: ignore[arg-type]
    listeners = load.Listeners.join(voices, count, 0.0, 1.0)
    for step in range(round(seconds / step_s)):
        listeners.tick(step * step_s)
        engine.step(step * step_s)
    return engine, voices, listeners


def test_listeners_who_are_served_in_time_hear_one_utterance_after_the_other() -> None:
    _, voices, _ = listen(0.02, 30.0, 3)
    found = load.heard(voices.utterances, 2.0, 29.0)
    assert (found.underruns, found.dry, found.silence_ms, found.unserved) == (0, 0, 0.0, 0)
    assert found.frame_ms["p50"] == pytest.approx(20.0)
    assert found.pace_p50 == pytest.approx(4.0)
    assert not voices.failures
    for session in ("listener0", "listener1", "listener2"):
        own = [one for one in voices.utterances if one.session == session]
        assert len(own) >= 3
        assert all(after.asked_s >= one.heard_until_s for one, after in itertools.pairwise(own))
        assert all(one.speech_s == pytest.approx(one.wanted_s, abs=FRAME_S / 2) for one in own if one.done)


def test_listeners_who_are_served_too_late_run_dry_and_a_stall_counts_as_well() -> None:
    _, voices, _ = listen(0.1, 12.0, 2)  # a frame of 80 ms every 100 ms
    found = load.heard(voices.utterances, 0.0, 12.0)
    assert found.dry == found.listeners > 0
    assert found.silence_ms == pytest.approx(20.0 * found.underruns, rel=0.05)
    assert found.pace_p50 == pytest.approx(0.8)
    stalled = load.Utterance("v/say", "", 0.0, 4.0)
    stalled.take(1.0, FRAME_S)
    found = load.heard([stalled], 0.0, 3.0)
    assert (found.underruns, found.dry) == (1, 1)
    assert found.silence_ms == pytest.approx(1920.0)


def test_the_random_checkpoint_loads_as_a_published_one_does(tmp_path: Path) -> None:
    random_talkers.write("tiny", tmp_path)
    talker = Qwen3TTS.load(open_weights(tmp_path), "float32")
    assert talker.config.speakers == {random_talkers.SPEAKER: 256 + 900}
    codec = Qwen3TTSCodec.load(open_weights(tmp_path / "speech_tokenizer"))
    assert codec.frame_samples == RATE * FRAME_S
    words = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert len(words) == talker.config.text.start - 1


def test_only_what_was_heard_by_somebody_without_a_gap_counts_as_streams_in_real_time() -> None:
    """A level counts if it served requests and neither it nor a lower level had underruns."""
    _, voices, _ = listen(0.02, 8.0, 3)
    good = load.heard(voices.utterances, 2.0, 7.0)
    refused = replace(good, asked=64, unserved=64, listeners=0)
    dry = replace(good, underruns=1)

    def met(*levels: tuple[int, load.Heard], failed: tuple[str, ...] = ()) -> bool:
        rows = [tables.Row("1.7b", count, 0.0, heard, {}, 0.0, 0.0) for count, heard in levels]
        return tables.bars(rows, failed)[-1].endswith("True")

    assert met((1, good), (64, good))
    assert not met((1, good), (64, refused))
    assert not met((1, good), (32, dry), (64, good))
    assert not met((64, good), failed=("1.7b",))


def test_frames_are_timed_until_a_listener_is_a_second_ahead() -> None:
    """What comes later comes when it is wanted: it says nothing of how fast frames can be made."""
    one = load.Utterance("v/say", "", 0.0, 8.0)
    for at, frames in ((0.01, 1), (0.02, 1), (0.04, 2), (0.12, 8), (0.14, 4), (0.84, 8)):
        one.take(at, frames * FRAME_S)
    assert one.frame_times() == pytest.approx([0.01, *[0.01] * 2, *[0.01] * 8, *[0.005] * 4])
    found = load.heard([one], 0.0, 1.0)
    assert found.left_ms["p99"] == pytest.approx(70.0)  # when the second packet came

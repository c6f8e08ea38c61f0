"""The engine listens: streams together, in pieces, paused and resumed, hear what each whole clip says."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from examples import SOAK
from speech_clips import clip

from voxlane.engine.api import (
    LISTEN_RATE,
    Append,
    EndInput,
    EngineConfig,
    Finished,
    ListenParams,
    Pause,
    Priority,
    Resume,
    Submit,
    Words,
)
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.weights.store import resolve

pytestmark = pytest.mark.weights

CLIPS = [("clone-test", 0, 5), ("two_cities", 4, 10), ("beckett", 0, 10), ("endgame_nagg_nell", 11, 17)]
CLIPS = CLIPS if SOAK else CLIPS[:2]


@pytest.fixture(scope="module")
def engine() -> Assembly:
    return assemble(EngineConfig(model="", tts_model=""))


def pcm(name: str, start_s: float, end_s: float) -> bytes:
    samples = clip(Path(resolve("speech-samples")) / f"{name}.wav", start_s, end_s).numpy()
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def transcripts(messages: list) -> dict[str, str]:
    texts: dict[str, str] = {}
    for message in messages:
        if isinstance(message, Words):
            texts[message.request_id] = texts.get(message.request_id, "") + message.settled
    return texts


def run(engine: Assembly, messages: list) -> list:
    while engine.core.busy:
        messages += engine.core.step()
    messages += engine.core.idle()
    return messages


@pytest.fixture(scope="module")
def whole(engine: Assembly) -> dict[str, str]:
    messages: list = []
    for name, start_s, end_s in CLIPS:
        engine.core.handle([Submit(name, "asr", listen=ListenParams(partials=False))])
        messages += engine.core.handle([Append(name, audio=pcm(name, start_s, end_s)), EndInput(name)])
        run(engine, messages)
    return transcripts(messages)


def test_streams_together_in_pieces_hear_what_each_whole_clip_says(engine, whole):
    assert "it was the age of foolishness" in whole["two_cities"]
    random = np.random.default_rng(7)
    core, messages = engine.core, []
    left = {name: pcm(name, start_s, end_s) for name, start_s, end_s in CLIPS}
    for number, name in enumerate(left):
        messages += core.handle([Submit(name, "asr", priority=Priority(number % 3))])
    while left:
        name = str(random.choice(sorted(left)))
        size = int(random.integers(160, 16_000)) * 2
        messages += core.handle([Append(name, audio=left[name][:size])])
        left[name] = left[name][size:]
        if not left[name]:
            del left[name]
            messages += core.handle([EndInput(name)])
        if random.random() < 0.1:
            messages += core.handle([Pause((name,))])
        for _ in range(int(random.integers(0, 6))):
            if core.busy:
                messages += core.step()
        if random.random() < 0.5:
            messages += core.handle([Resume(other) for other, _, _ in CLIPS])
    messages += core.handle([Resume(name) for name, _, _ in CLIPS])
    run(engine, messages)
    assert transcripts(messages) == whole
    ends = {message.request_id: message for message in messages if isinstance(message, Finished)}
    assert all(ends[name].reason == "eos" for name, _, _ in CLIPS)
    assert all(-1.0 < end.stats.logprob_sum / end.stats.scored_tokens < 0.0 for end in ends.values())


def test_words_have_times_in_order_within_their_segments(engine):
    messages = engine.core.handle([Submit("a", "asr", listen=ListenParams(word_times=True))])
    sound = pcm("two_cities", 0, 6) + bytes(3 * LISTEN_RATE) + pcm("two_cities", 20, 26)
    messages += engine.core.handle([Append("a", audio=sound), EndInput("a")])
    run(engine, messages)
    segments = [segment for message in messages if isinstance(message, Words) for segment in message.segments]
    assert len(segments) >= 2
    for segment in segments:
        assert " ".join(word.text for word in segment.words) == segment.text
        times = [time for word in segment.words for time in (word.start_s, word.end_s)]
        assert times == sorted(times)
        assert segment.start_s <= times[0] <= times[-1] <= segment.end_s + 0.1
        assert segment.language == "en"
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(segments))


def test_what_is_no_speech_is_an_empty_transcript(engine):
    random = np.random.default_rng(3)
    seconds = np.arange(4 * LISTEN_RATE) / LISTEN_RATE
    sounds = {
        "silence": np.zeros_like(seconds),
        "noise": random.normal(0, 0.1, len(seconds)),
        "hum": 0.3 * np.sin(2 * np.pi * 50 * seconds),
        "chord": sum(0.15 * np.sin(2 * np.pi * pitch * seconds) for pitch in (261.6, 329.6, 392.0)),
        "clicks": np.where(np.arange(len(seconds)) % 4000 < 20, 0.8, 0.0),
    }
    messages: list = []
    for name, samples in sounds.items():
        messages += engine.core.handle([Submit(name, "asr")])
        audio = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        messages += engine.core.handle([Append(name, audio=audio), EndInput(name)])
    run(engine, messages)
    assert transcripts(messages) == dict.fromkeys(sounds, "")


def test_half_a_sample_and_nothing_at_all_are_heard_as_nothing(engine):
    messages = engine.core.handle([Submit("a", "asr"), EndInput("a"), Submit("b", "asr")])
    messages += engine.core.handle([Append("b", audio=b"\x01"), EndInput("b")])
    run(engine, messages)
    assert sorted(m.request_id for m in messages if isinstance(m, Finished) and m.reason == "eos") == ["a", "b"]

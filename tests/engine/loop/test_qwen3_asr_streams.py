"""A model that has clips among its tokens, under the engine: streams together, in pieces, paused, short of blocks.

The checkpoint is random, so the words are nonsense; what counts is that a stream's words are those of the whole clip,
whatever happens around it. Loudness stands for speech.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from qwen3_asr_cases import reference, write_authors
from speech_simulation import PretendVoicing

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    EngineConfig,
    Finished,
    FromEngine,
    ListenParams,
    Pause,
    Priority,
    Resume,
    Segment,
    Submit,
    Words,
)
from voxlane.engine.build.assemble import assemble
from voxlane.engine.build.model_part import build_resources
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_asr.model import Qwen3ASR
from voxlane.engine.models.recognition import DETECTING
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser
from voxlane.engine.runners.recogniser import Recogniser
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import Limits
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.weights.files import open_weights

RATE = 16_000
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model that is sure of what it says, and comes to an end."""
    peer = reference(11)
    with torch.no_grad():
        peer.model.language_model.norm.weight.fill_(3.0)
    return write_authors(peer, tmp_path_factory.mktemp("qwen3-asr"))


@pytest.fixture(scope="module")
def model(path: Path) -> Qwen3ASR:
    model = load_recogniser(open_weights(path), "float32")
    assert isinstance(model, Qwen3ASR)
    model.eos_ids |= frozenset(range(0, 400, 23))
    assert model.restrictions is not None
    model.restrictions[DETECTING, model.nobody] = -torch.inf
    return model


def sounds(count: int) -> dict[str, bytes]:
    """Return streams of loud stretches with silence between them."""
    source = np.random.default_rng(4)
    streams: dict[str, bytes] = {}
    for number in range(count):
        parts = []
        for _ in range(2):
            loud = source.normal(0, 0.3, int(source.uniform(1.0, 3.5) * RATE))
            parts += [np.zeros(int(source.uniform(0.1, 0.5) * RATE)), loud, np.zeros(int(1.9 * RATE))]
        streams[f"s{number}"] = (np.clip(np.concatenate(parts), -1, 1) * 32767).astype("<i2").tobytes()
    return streams


class Ears:
    """The model under a scheduler, with so many blocks."""

    def __init__(self, model: Qwen3ASR, blocks: int = 200, *, device: bool = False) -> None:
        self.cache = KVCache(model.spec.pages, blocks, 8, torch.float32)
        self.resources = build_resources(self.cache, prefix_cache=False, encoder=CostModel())
        runner = CudaRecogniser(model, self.cache, CPU, max_rows=6) if device else Recogniser(model, self.cache)
        self.core = Core(
            Scheduler({"asr": self.resources}, Limits(max_batch=6)),
            {"asr": runner},
            {"asr": TranscribeJobFactory(model, self.resources.pool, PretendVoicing)},
            clock=time.monotonic,
            max_waiting=100,
        )
        self.messages: list[FromEngine] = []

    def handle(self, *commands: object) -> None:
        self.messages += self.core.handle(list(commands))  # type: ignore[arg-type]

    def run(self) -> None:
        while self.core.busy:
            self.messages += self.core.step()
        self.messages += self.core.idle()
        assert self.resources.pool.used == 0

    @property
    def segments(self) -> dict[str, list[Segment]]:
        found: dict[str, list[Segment]] = {}
        for message in self.messages:
            if isinstance(message, Words):
                found.setdefault(message.request_id, []).extend(message.segments)
        return found

    def said(self, name: str) -> list[tuple[str, float, float, str]]:
        return [(one.text, one.start_s, one.end_s, one.language) for one in self.segments.get(name, [])]

    def settled(self, name: str) -> str:
        return "".join(one.settled for one in self.messages if isinstance(one, Words) and one.request_id == name)


@pytest.fixture(scope="module")
def whole(model: Qwen3ASR) -> dict[str, list[tuple[str, float, float, str]]]:
    """Return what each stream says when it is heard alone, at once and as a whole."""
    found = {}
    for name, pcm in sounds(4).items():
        ears = Ears(model)
        ears.handle(Submit(name, "asr", listen=ListenParams(partials=False)), Append(name, audio=pcm), EndInput(name))
        ears.run()
        found[name] = ears.said(name)
    assert len({text for said in found.values() for text, *_ in said}) > 4, "the model says the same of everything"
    return found


@pytest.mark.parametrize(("seed", "blocks", "device"), [(1, 200, False), (2, 200, True), (3, 20, False), (4, 20, True)])
def test_streams_together_in_pieces_hear_what_each_whole_clip_says(
    model: Qwen3ASR, whole: dict[str, list], seed: int, blocks: int, device: bool
) -> None:
    """With 20 blocks there is room for one of the longest clips: others are dropped, and heard again."""
    source = random.Random(seed)
    ears, left = Ears(model, blocks, device=device), sounds(4)
    for number, name in enumerate(left):
        ears.handle(Submit(name, "asr", priority=Priority(number % 3)))
    while left:
        name = source.choice(sorted(left))
        size = 2 * source.randint(1, RATE)
        ears.handle(Append(name, audio=left[name][:size]))
        left[name] = left[name][size:]
        if not left[name]:
            del left[name]
            ears.handle(EndInput(name))
        if source.random() < 0.2:
            ears.handle(Pause((name,)))
        for _ in range(source.randint(0, 4)):
            if ears.core.busy:
                ears.messages += ears.core.step()
        if source.random() < 0.5:
            ears.handle(*(Resume(other) for other in whole))
    ears.handle(*(Resume(name) for name in whole))
    ears.run()
    assert {name: ears.said(name) for name in whole} == whole
    for name, said in whole.items():
        assert ears.settled(name).split() == " ".join(text for text, *_ in said).split()
    ends = [message.reason for message in ears.messages if isinstance(message, Finished)]
    assert ends == ["eos"] * len(whole)


def test_a_cancelled_stream_leaves_nothing_and_disturbs_nobody(model: Qwen3ASR, whole: dict[str, list]) -> None:
    ears, streams = Ears(model), sounds(2)
    for name, pcm in streams.items():
        ears.handle(Submit(name, "asr"), Append(name, audio=pcm), EndInput(name))
    for _ in range(5):
        ears.messages += ears.core.step()
    ears.handle(Cancel("s0"))
    ears.run()
    assert ears.said("s1") == whole["s1"]
    assert sum(isinstance(message, Finished) for message in ears.messages) == 2


@pytest.mark.parametrize("device", [False, True])
def test_segments_have_a_language_and_words_in_their_order(model: Qwen3ASR, device: bool) -> None:
    ears = Ears(model, device=device)
    listen = ListenParams(word_times=True, language="de")
    ears.handle(Submit("a", "asr", listen=listen), Append("a", audio=sounds(1)["s0"]), EndInput("a"))
    ears.run()
    for segment in ears.segments["a"]:
        assert segment.language == "de"
        times = [time for word in segment.words for time in (word.start_s, word.end_s)]
        assert times == sorted(times)
        assert all(segment.start_s <= time <= segment.end_s for time in times)
    assert any(segment.words for segment in ears.segments["a"])


def test_an_engine_is_assembled_around_a_directory(path: Path) -> None:
    """The real detector, the real start: a model by its path, and nothing said in noise."""
    engine = assemble(EngineConfig(model="", tts_model="", asr_model=str(path), weights="float32"))
    assert engine.ready.asr_languages == ("en", "zh", "de")
    hiss = np.random.default_rng(3).normal(0, 3000, 2 * RATE).astype("<i2").tobytes()
    messages = engine.core.handle([Submit("a", "asr"), Append("a", audio=hiss), EndInput("a")])
    while engine.core.busy:
        messages += engine.core.step()
    assert [message.reason for message in messages if isinstance(message, Finished)] == ["eos"]
    assert "".join(message.settled for message in messages if isinstance(message, Words)) == ""


def test_silence_is_an_empty_transcript(model: Qwen3ASR) -> None:
    ears = Ears(model)
    ears.handle(Submit("a", "asr"), Append("a", audio=bytes(4 * RATE)), EndInput("a"))
    ears.run()
    assert ears.settled("a") == ""
    assert ears.segments["a"] == []


def test_a_model_that_names_nobodys_language_says_nothing(model: Qwen3ASR, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.restrictions is not None
    forced = model.restrictions.clone()
    forced[DETECTING] = -torch.inf
    forced[DETECTING, model.nobody] = 0.0
    monkeypatch.setattr(model, "restrictions", forced)
    ears = Ears(model)
    ears.handle(Submit("a", "asr"), Append("a", audio=sounds(1)["s0"]), EndInput("a"))
    ears.run()
    assert ears.settled("a") == ""

"""The talker as it runs on a device, here on a CPU: frame by frame, sample by sample what the host's Talker makes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from noise_talker import noise_codec, noise_talker
from numpy.typing import NDArray

from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import NOTHING, SPEAKER, Clone, Codes, Utterance, open_utterance
from voxlane.engine.runners.codec_tts import CodecTTS, FrameOutcome, UtteranceStream
from voxlane.engine.runners.cuda import codec_graphs
from voxlane.engine.runners.cuda.codec_graphs import CodecGraphs, FramePiece
from voxlane.engine.runners.cuda.codec_tts import CudaCodecTTS
from voxlane.engine.runners.cuda.codec_tts_graphs import FrameGraphs, Streams
from voxlane.engine.runners.cuda.frame_rings import RING
from voxlane.engine.runners.cuda.staged_graphs import Size
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

BLOCK, BLOCKS, SLOTS, ROWS, TOKENS = 8, 200, 6, 6, 700


@pytest.fixture(scope="module")
def model() -> Qwen3TTS:
    return noise_talker()


@pytest.fixture(scope="module")
def codec() -> Qwen3TTSCodec:
    return noise_codec()


@dataclass(slots=True)
class Speaker:
    """One request and what came of it."""

    request: Request
    stream: UtteranceStream
    frames: list[Codes] = field(default_factory=list)
    samples: list[NDArray[np.float32]] = field(default_factory=list)
    over: bool = False

    @property
    def sound(self) -> NDArray[np.float32]:
        return np.concatenate(self.samples) if self.samples else np.zeros(0, np.float32)


class Stage:
    """An engine, requests and a plan for each step: a seed decides which request comes when, in which chunks."""

    def __init__(self, engine: CodecTTS, seed: int, chunks: tuple[int, ...] = (3, 100)) -> None:
        self.engine = engine
        self.chunks = chunks
        self.pool = BlockPool(BLOCKS, BLOCK, prefix_cache=False)
        self.random = random.Random(seed)
        self.speakers: list[Speaker] = []

    def enter(self, number: int, *, lead: int = 0) -> None:
        own = random.Random(number)
        config = self.engine.model.config
        utterance = open_utterance(config, [1, 2, 3], language="english")
        if number % 3 == 0:  # a voice out of a clip
            voice = torch.randn(config.talker.hidden_size, generator=torch.Generator().manual_seed(number))
            head = [(1, NOTHING), (config.text.pad, SPEAKER), (config.text.bos, config.codec.pad)]
            utterance = Utterance(config, head, Clone(voice), whole_text=False)
        utterance.append(own.choices(range(5, 140), k=own.randint(1, 9)))
        utterance.end()
        sampling = SpeechSampling(0.9, 20, 1.0, 1.3, 0.9, 10, 0.9 if number % 2 else 1.0)
        frames = tuple(tuple(own.choices(range(48), k=16)) for _ in range(lead))
        stream = UtteranceStream(utterance, sampling, number, frames, self.engine.slots.take())
        table = BlockTable(self.pool)
        request = Request(str(number), "tts", [], 0, table, model="tts", payload=stream)
        self.speakers.append(Speaker(request, stream))

    def row(self, speaker: Speaker) -> Row:
        utterance, table = speaker.stream.utterance, speaker.request.table
        start = table.length
        count = min(utterance.available - start, self.random.choice(self.chunks))
        assert count > 0
        speaker.request.tokens = [0] * utterance.available
        table.append(count)
        return Row(speaker.request, start, count)

    def step(self) -> None:
        going = [one for one in self.speakers if not one.over]
        some = [one for one in going if self.random.random() < 0.8] or going
        for one in some:
            one.stream.chunk, one.stream.keep = self.random.choice((1, 2, 3, 8)), self.random.choice((0, 0, 1))
        self.told(some, self.engine.run(ModelBatch([self.row(one) for one in some])))

    def told(self, some: list[Speaker], outcomes: list[object]) -> None:
        for one, spoken in zip(some, outcomes, strict=True):
            assert isinstance(spoken, FrameOutcome)
            if spoken.frame is None:
                if one.stream.utterance.frame_due(one.request.table.length):  # not caught up: the same again
                    assert one.stream.stale
                    one.request.table.rewind(one.request.table.length - 1)
                continue
            one.samples.append(spoken.samples)
            one.stream.decoded += len(spoken.samples) // self.engine.codec.frame_samples
            one.frames.append(spoken.frame)
            one.over = spoken.frame[0] == self.engine.model.end_code
            if not one.over:
                one.stream.utterance.add(spoken.frame)


def talkers(model: Qwen3TTS, codec: Qwen3TTSCodec) -> tuple[CodecTTS, CudaCodecTTS]:
    def cache() -> KVCache:
        talker = model.talker
        return KVCache(talker.spec.pages, BLOCKS, BLOCK, torch.float32)

    device = torch.device("cpu")
    return (
        CodecTTS(model, codec, cache(), slots=SLOTS, max_rows=ROWS),
        CudaCodecTTS(model, codec, cache(), device, slots=SLOTS, max_rows=ROWS, max_tokens=TOKENS),
    )


def play(engine: CodecTTS, seed: int, steps: int) -> Stage:
    """Let streams come and speak; every fourth step one of them is rewound."""
    stage = Stage(engine, seed)
    for number in range(3):
        stage.enter(number, lead=11 if number == 1 else 0)
    for step in range(steps):
        if step in (2, 5, 9):
            stage.enter(step + 10, lead=11 if step == 5 else 0)
        if step % 4 == 3 and (going := [one for one in stage.speakers if not one.over and one.frames]):
            one = stage.random.choice(going)
            spoken = stage.random.randint(0, one.stream.utterance.spoken)
            one.stream.rewind(spoken)
            one.request.table.rewind(min(one.request.table.length, one.stream.utterance.available - 1))
            del one.frames[spoken:]
            one.samples = [one.sound[: one.stream.decoded * engine.codec.frame_samples]]
        if all(one.over for one in stage.speakers):
            break
        stage.step()
    return stage


@pytest.mark.parametrize("seed", [0, 1])
def test_frames_and_samples_are_the_hosts(
    model: Qwen3TTS, codec: Qwen3TTSCodec, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Prompts in chunks, mixed with frames; chunks of any size; rewound streams; voices and frames out of clips."""
    monkeypatch.setattr(CudaCodecTTS, "hears", CodecTTS.hears)
    expected, got = (play(engine, seed, 30) for engine in talkers(model, codec))
    assert any(one.over for one in expected.speakers)
    for one, other in zip(expected.speakers, got.speakers, strict=True):
        assert other.frames == one.frames
        assert other.stream.decoded == one.stream.decoded
        np.testing.assert_allclose(other.sound, one.sound, atol=1e-5)
    assert max(len(one.frames) for one in expected.speakers) > 8


def test_a_prompt_as_long_as_a_step_may_be(model: Qwen3TTS, codec: Qwen3TTSCodec) -> None:
    """It speaks as it does in chunks."""
    found = []
    for chunk in (TOKENS, 100):
        engine = talkers(model, codec)[1]
        stage = Stage(engine, 0, (chunk,))
        stage.enter(1)
        stage.speakers[0].stream.utterance = utterance = open_utterance(model.config, [1, 2, 3], whole_text=True)
        utterance.append([5 + number % 130 for number in range(600)])
        utterance.end()
        while not stage.speakers[0].frames:
            stage.told(stage.speakers, engine.run(ModelBatch([stage.row(stage.speakers[0])])))
        found.append(stage.speakers[0].frames)
    assert found[0] == found[1]


def test_after_a_fault_everything_is_told_again(model: Qwen3TTS, codec: Qwen3TTSCodec) -> None:
    """A step that failed half way leaves nothing that a later one would take for granted."""
    host, engine = talkers(model, codec)
    stages = [Stage(host, 3), Stage(engine, 3)]
    for stage in stages:
        stage.enter(4)
        for _ in range(3):
            stage.told(stage.speakers, stage.engine.run(ModelBatch([stage.row(stage.speakers[0])])))
    launch, engine._calls.launch = engine._calls.launch, _fail  # type: ignore[method-assign]
    row = stages[1].row(stages[1].speakers[0])
    with pytest.raises(RuntimeError, match="no more memory"):
        engine.launch(ModelBatch([row]))
    engine._calls.launch = launch  # type: ignore[method-assign]
    row.request.table.rewind(row.start)
    for stage in stages:
        stage.told(stage.speakers, stage.engine.run(ModelBatch([stage.row(stage.speakers[0])])))
    assert stages[0].speakers[0].frames == stages[1].speakers[0].frames
    np.testing.assert_allclose(stages[1].speakers[0].sound, stages[0].speakers[0].sound, atol=1e-5)


def test_after_a_fault_while_looking_at_what_has_ended_everything_is_told_again(
    model: Qwen3TTS, codec: Qwen3TTSCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, engine = talkers(model, codec)
    stages = [Stage(host, 3), Stage(engine, 3)]
    for stage in stages:
        stage.enter(4, lead=5)
        for _ in range(3):
            stage.told(stage.speakers, stage.engine.run(ModelBatch([stage.row(stage.speakers[0])])))

    def scribble(ticket: object) -> None:
        engine.state.numbers.fill_(0.5)
        raise RuntimeError("no more memory")

    row = stages[1].row(stages[1].speakers[0])
    ticket = engine.launch(ModelBatch([row]))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_look", scribble)
        with pytest.raises(RuntimeError, match="no more memory"):
            engine.done(ticket)
    row.request.table.rewind(row.start)
    for stage in stages:
        for _ in range(2):
            stage.told(stage.speakers, stage.engine.run(ModelBatch([stage.row(stage.speakers[0])])))
    assert stages[0].speakers[0].frames == stages[1].speakers[0].frames
    np.testing.assert_allclose(stages[1].speakers[0].sound, stages[0].speakers[0].sound, atol=1e-5)


def test_many_who_lost_their_places_are_caught_up_together_and_no_step_hears_more_than_it_may(
    model: Qwen3TTS, codec: Qwen3TTSCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault spoils every request's place: each step hears so many frames again, of several requests in a call."""
    host, engine = talkers(model, codec)
    monkeypatch.setattr(CudaCodecTTS, "hears", 24)
    launch, heard = engine._calls.launch, [0]

    def counted(pieces: list[FramePiece]) -> list[list[torch.Tensor]]:
        heard[-1] += sum(piece.count for piece in pieces if piece.source == engine._streams.nobody)
        return launch(pieces)

    monkeypatch.setattr(engine._calls, "launch", counted)
    stages = [Stage(host, 5, (100,)), Stage(engine, 5, (100,))]
    for stage in stages:
        for number in range(5):
            stage.enter(20 + number, lead=9 if number == 2 else 0)
        for step in range(40):
            if step == 20:
                _forget(stage)
            if going := [one for one in stage.speakers if not one.over]:
                for one in going:
                    one.stream.chunk = 1
                stage.told(going, stage.engine.run(ModelBatch([stage.row(one) for one in going])))
                heard.append(0)
    assert max(heard) == 24
    for one, other in zip(*(stage.speakers for stage in stages), strict=True):
        length = min(len(one.frames), len(other.frames))  # the host hears less in a step
        assert one.over == other.over or length > 20
        assert other.frames[:length] == one.frames[:length]
        length = min(len(one.sound), len(other.sound))
        np.testing.assert_allclose(other.sound[:length], one.sound[:length], atol=1e-4)  # calls of other shapes


def _forget(stage: Stage) -> None:
    """Let every place hold something else."""
    stage.engine.state.numbers.fill_(0.5)
    for one in stage.speakers:
        one.stream.stale = True


def test_there_is_a_graph_for_every_step_there_may_be(model: Qwen3TTS) -> None:
    """More rows than prompts usually need, and up to the most tokens of a step: none goes launch by launch."""
    rows, most, device, talker = 300, 4000, torch.device("cpu"), model.talker
    cache = KVCache(talker.spec.pages, 8, BLOCK, torch.float32)
    graphs = FrameGraphs(
        *(model, cache, Streams(rows, model, device), model.predictor.scratch(rows), device),
        max_rows=rows,
        max_tokens=most,
        context_tokens=64,
    )
    for tokens, members in ((rows, rows), (5 * rows, rows), (576, 64), (most, 1), (most, rows)):
        size = graphs.size(tokens, members, wide=True)
        assert size.rows >= members
        assert size.tokens >= tokens
        assert len(graphs.packet(size).host["lengths"]) == size.rows
    assert graphs.size(576, 64, wide=True) == Size(1024, 64, wide=True)


def _fail(pieces: object) -> list[list[torch.Tensor]]:
    raise RuntimeError("no more memory")


def test_more_streams_than_a_call_takes(codec: Qwen3TTSCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come in several calls of one size, and of numbers of frames that there is no call for in several more."""
    monkeypatch.setattr(codec_graphs, "STREAMS", (1, 2))
    monkeypatch.setattr(codec_graphs, "MOST_FRAMES", 8)
    frames = torch.randint(0, 48, (8, RING, 16), generator=torch.Generator().manual_seed(5))
    counts, state = (3, 1, 9, 8, 3, 1, 1), codec.state(8, 8)
    calls = CodecGraphs(codec, state, frames, max_rows=7)
    found = calls.launch([FramePiece(slot, slot, RING - 2, count) for slot, count in enumerate(counts)])
    for slot, (count, pieces) in enumerate(zip(counts, found, strict=True)):
        codes = frames[slot, torch.arange(RING - 2, RING - 2 + count) % RING]
        wanted = codec.decode(codes[None], codec.state(1, 8), torch.tensor([0]))[0]
        torch.testing.assert_close(torch.cat(pieces), wanted, rtol=1e-4, atol=1e-5)


def test_a_codec_whose_numbers_grow_too_large_for_their_type_is_told_before_it_speaks() -> None:
    codec = noise_codec()
    assert codec.stays_finite()
    codec._weights.table.fill_(3e38)  # sums of sixteen of them are none
    assert not codec.stays_finite()

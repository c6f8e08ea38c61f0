"""The recogniser for CUDA on the CPU: what it hears is what the plain one hears, with references and with Triton."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import MoonshineConfig as MoonshineReference
from transformers import MoonshineForConditionalGeneration, WhisperForConditionalGeneration
from transformers import WhisperConfig as WhisperReference

from voxlane.engine.api import EngineConfig, SamplingParams
from voxlane.engine.build.asr_tts import listening_mode
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.kernels.attention import paged_triton, rope_triton
from voxlane.engine.kernels.attention.clip import clip_attention
from voxlane.engine.kernels.norm import activation_triton, layer_norm_triton
from voxlane.engine.kernels.sampling import sampling_triton
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models import encoder_decoder
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import Whisper
from voxlane.engine.runners.cuda import clips, encoder_decoder_graphs
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionOutcome, TranscriptionPayload, transcription_of
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import ClipStates, Request, RequestState
from voxlane.engine.weights.safetensors import SafetensorsDirectory

CPU = torch.device("cpu")
BLOCK_TOKENS = 8
MAX_ROWS = 6


@pytest.fixture(scope="module")
def moonshine(tmp_path_factory: pytest.TempPathFactory) -> Moonshine:
    """Heads of 36, as the real one has: no power of two."""
    torch.manual_seed(3)
    config = MoonshineReference(
        vocab_size=211,
        hidden_size=72,
        intermediate_size=48,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("moonshine")
    MoonshineForConditionalGeneration(config).save_pretrained(path)
    model = Moonshine.load(SafetensorsDirectory(path), Spelling([b""] * 211, [""] * 211), "float32")
    model.eos_ids = frozenset(range(0, 211, 9))  # so that a random model comes to an end
    return model


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Whisper:
    torch.manual_seed(5)
    config = WhisperReference(
        vocab_size=51_865,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=96,
        max_target_positions=64,
        init_std=0.3,
    )
    path = tmp_path_factory.mktemp("whisper")
    WhisperForConditionalGeneration(config).save_pretrained(path)
    names = [""] * 51_865
    names[50_259:50_358] = [f"<|{a}{b}|>" for a in "abcdefghij" for b in "klmnopqrst"][:99]
    model = Whisper.load(SafetensorsDirectory(path), Spelling([b""] * len(names), names), "float32")
    model.eos_ids = frozenset(range(0, 51_865, 9))
    return model


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch, interpreter: None) -> None:
    """Send the model's operations to the Triton kernels, under Triton's interpreter."""
    monkeypatch.setattr(
        encoder_decoder,
        "layer_norm",
        lambda x, weight, bias, eps, dtype: layer_norm_triton.layer_norm(x, weight, bias, eps, dtype),
    )
    monkeypatch.setattr(encoder_decoder, "add_layer_norm", layer_norm_triton.add_layer_norm)
    monkeypatch.setattr(encoder_decoder, "silu_mul", lambda x: activation_triton.gate_mul(x, gelu=False))
    monkeypatch.setattr(
        encoder_decoder, "rope_write", lambda *parts: rope_triton.rope_write(*parts, q_norm=None, k_norm=None, eps=0.0)
    )
    monkeypatch.setattr(encoder_decoder, "paged_attention", paged_triton.paged_attention_triton)
    monkeypatch.setattr(encoder_decoder_graphs, "sample", sampling_triton.sample)


@dataclass
class Stream:
    """One look at a clip, and what came of it."""

    request: Request
    drafts: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    no_speech: float = -1.0
    attention: torch.Tensor | None = None
    done: bool = False


def stream(
    model: Moonshine | Whisper, pool: BlockPool, number: int, samples: int, most: int = 36, *, detects: bool = False
) -> Stream:
    noise = np.random.default_rng(number).normal(0, 0.1, samples).astype(np.float32)
    prompt = model.prompt_tokens("" if detects else model.languages[0])
    request = Request(
        id=str(number),
        task="asr",
        tokens=list(prompt),
        prompt_tokens=len(prompt),
        table=BlockTable(pool),
        sampling=SamplingParams(logprobs=0, max_tokens=most),
        model="asr",
        payload=TranscriptionPayload(noise, detects_language=detects, wants_attention=True),
        clip=ClipStates(model.states(samples), BlockTable(pool)),
    )
    return Stream(request)


def row_of(one: Stream) -> Row:
    """Take the places of a stream's next row, its clip's among them the first time."""
    request = one.request
    fresh = request.unencoded
    if fresh:
        assert request.cross is not None
        request.cross.append(request.states)
    start, drafts = request.table.length, one.drafts
    count = len(request.tokens) - start
    request.table.append(count + len(drafts))
    one.drafts = []
    return Row(request, start, count, drafts=drafts, encode=fresh)


def take(one: Stream, row: Row, outcome: TranscriptionOutcome, model: Moonshine | Whisper) -> None:
    """Do with an outcome what a listening job does."""
    request = row.request
    assert not outcome.failed
    if row.encode:
        one.no_speech = outcome.no_speech
    for choice in outcome.choices:
        one.logprobs.append(choice.logprob or 0.0)
        if transcription_of(request).detects_language:
            assert isinstance(model, Whisper)
            assert choice.token in model.tokens.languages
            request.tokens += [choice.token, *model.after_language(choice.token)]
            request.prompt_tokens, transcription_of(request).detects_language = len(request.tokens), False
        elif choice.token in model.eos_ids:
            one.done, one.attention = True, outcome.attention
            break
        else:
            request.tokens.append(choice.token)
    request.table.rewind(min(request.table.length, len(request.tokens) - 1))
    one.done |= request.output_tokens >= request.sampling.max_tokens


def hear(runner: Recogniser, model: Moonshine | Whisper, seed: int, sizes: list[int], most: int = 36) -> list[Stream]:
    """Let streams come one by one, wait and go on, several in a step; return what each heard."""
    source = random.Random(seed)
    pool = BlockPool(runner.cache.num_blocks, BLOCK_TOKENS)
    streams = [
        stream(model, pool, number, samples, most, detects=model.detects_language and number % 2 == 0)
        for number, samples in enumerate(sizes)
    ]
    for one in streams[1::2]:
        one.drafts = [source.randrange(200) for _ in range(20)]
    while live := [one for one in streams if not one.done]:
        some = source.sample(live, source.randint(1, min(len(live), MAX_ROWS)))
        rows = [row_of(one) for one in some]
        for one, row, outcome in zip(some, rows, runner.run(ModelBatch(rows=rows)), strict=True):
            take(one, row, outcome, model)
    return streams


def cache_for(model: Moonshine | Whisper, sizes: list[int]) -> KVCache:
    blocks = sum(-(-model.states(samples) // BLOCK_TOKENS) + 9 for samples in sizes)
    return KVCache(model.spec.pages, blocks, BLOCK_TOKENS, torch.float32)


def on_device(model: Moonshine | Whisper, sizes: list[int]) -> CudaRecogniser:
    return CudaRecogniser(model, cache_for(model, sizes), CPU, max_rows=MAX_ROWS)


def assert_alike(found: list[Stream], wanted: list[Stream]) -> None:
    assert [one.request.tokens for one in found] == [one.request.tokens for one in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
        assert mine.no_speech == pytest.approx(theirs.no_speech, abs=1e-4)
        assert (mine.attention is None) == (theirs.attention is None)
        if mine.attention is not None and theirs.attention is not None:
            torch.testing.assert_close(mine.attention, theirs.attention, rtol=1e-3, atol=1e-4)


MOONSHINE_CLIPS = [16_000, 4_000, 500, 9_000, 30_000, 7_000, 12_345, 2_000]


def test_streams_are_heard_as_on_the_cpu(moonshine: Moonshine) -> None:
    """Clips alone and several at once, drafts that fail and that hold, prompts and decodes in one step."""
    wanted = hear(Recogniser(moonshine, cache_for(moonshine, MOONSHINE_CLIPS)), moonshine, 1, MOONSHINE_CLIPS)
    runner = on_device(moonshine, MOONSHINE_CLIPS)
    assert_alike(hear(runner, moonshine, 2, MOONSHINE_CLIPS), wanted)
    assert len({len(one.request.tokens) for one in wanted}) > 2
    assert sum(one.attention is not None for one in wanted) > 2
    assert {"move", "launch", "wait", "sample", "device"} <= set(runner.phases)


def test_what_must_not_be_written_and_silence_and_languages(whisper: Whisper) -> None:
    sizes = [16_000, 400, 30_000]
    wanted = hear(Recogniser(whisper, cache_for(whisper, sizes)), whisper, 1, sizes)
    assert_alike(hear(on_device(whisper, sizes), whisper, 2, sizes), wanted)
    assert all(one.no_speech > 0 for one in wanted)


@pytest.mark.usefixtures("interpreted")
def test_streams_are_heard_the_same_through_the_kernels(moonshine: Moonshine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "CLIP_ROWS", (8, 16))
    monkeypatch.setattr(clips, "MOST_CLIPS", 2)
    sizes = [4_000, 1_500]
    found = hear(on_device(moonshine, sizes), moonshine, 2, sizes, 4)
    monkeypatch.undo()
    wanted = hear(Recogniser(moonshine, cache_for(moonshine, sizes)), moonshine, 1, sizes, 4)
    assert_alike(found, wanted)
    assert any(one.attention is not None for one in wanted)


def test_more_clips_than_a_graph_takes_go_in_several(moonshine: Moonshine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "MOST_CLIPS", 2)
    runner = on_device(moonshine, MOONSHINE_CLIPS)
    wanted = hear(Recogniser(moonshine, cache_for(moonshine, MOONSHINE_CLIPS)), moonshine, 1, MOONSHINE_CLIPS)
    assert_alike(hear(runner, moonshine, 4, MOONSHINE_CLIPS), wanted)


@pytest.mark.parametrize("sizes", [[16_000, 300, 5_001], [895], [895 + 383, 895 + 384, 20_000, 1]])
def test_joined_clips_are_seen_as_they_are_alone(moonshine: Moonshine, whisper: Whisper, sizes: list[int]) -> None:
    sounds = [torch.randn(size, generator=torch.Generator().manual_seed(size)) * 0.1 for size in sizes]
    for model in (moonshine, whisper):
        joined = model.join(sizes)
        states = sum(model.states(size) for size in sizes)
        rows, most = (states, len(sizes)) if model is whisper else (states + 5, len(sizes) + 1)
        run = torch.zeros(model.joined_samples(rows, most))
        assert joined.samples <= len(run)
        for start, sound in zip(joined.starts, sounds, strict=True):
            run[start : start + len(sound)] = sound
        parts = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in model.stem_parts(rows, most).items()}
        for name, numbers in joined.numbers.items():
            parts[name].fill_(-1 if name == "owners" else 0)[: len(numbers)] = torch.from_numpy(numbers)
        with torch.inference_mode():
            found, wanted = model.stem_joined(run, parts)[:states], torch.cat(model.stem(sounds))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_attention_within_clips_sees_the_whole_clip_and_no_other() -> None:
    count, rows, heads, head_dim = 3, 7, 2, 16
    qkv = torch.randn((count * rows, 3 * heads * head_dim), generator=torch.Generator().manual_seed(1))
    found = clip_attention(qkv, heads, rows, 0.3).view(count, rows, heads, head_dim)
    for clip, seen in zip(qkv.view(count, rows, 3, heads, head_dim), found, strict=True):
        q, k, v = clip.unbind(1)
        weights = torch.softmax(torch.einsum("thd,shd->hts", q, k) * 0.3, dim=-1)
        torch.testing.assert_close(seen, torch.einsum("hts,shd->thd", weights, v), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="is not contiguous clips"):
        clip_attention(qkv, heads, 5, 0.3)


def test_a_request_that_was_cancelled_in_flight_is_not_asked_where_it_looked(moonshine: Moonshine) -> None:
    sizes = [4_000]
    runner = on_device(moonshine, sizes)
    pool = BlockPool(runner.cache.num_blocks, BLOCK_TOKENS)
    one = stream(moonshine, pool, 0, sizes[0])
    ticket = runner.launch(ModelBatch(rows=[row_of(one)]))
    one.request.free()
    one.request.state = RequestState.FINISHED
    assert len(runner.collect(ticket)) == 1


def test_a_row_that_is_not_finite_fails_alone(moonshine: Moonshine) -> None:
    sizes = [4_000, 4_000]
    runner = on_device(moonshine, sizes)
    pool = BlockPool(runner.cache.num_blocks, BLOCK_TOKENS)
    some = [stream(moonshine, pool, number, size) for number, size in enumerate(sizes)]
    transcription_of(some[0].request).clip[100] = np.nan
    outcomes = runner.run(ModelBatch(rows=[row_of(one) for one in some]))
    assert [outcome.failed for outcome in outcomes] == [True, False]


def test_steps_are_as_small_as_they_can_be(moonshine: Moonshine) -> None:
    steps = encoder_decoder_graphs.StepGraphs(moonshine, cache_for(moonshine, [500]), CPU, max_rows=20)
    assert [steps.size(tokens, 1) for tokens in (1, 3, 17, 20)] == [(1, False), (4, False), (20, False), (20, False)]
    assert [steps.size(tokens, 17) for tokens in (17, 33, 1025)] == [(32, True), (64, True), (2048, True)]
    assert steps.size(21, 16) == (32, True)  # more tokens than narrow steps have


@pytest.mark.parametrize(
    ("device", "weights", "settings", "mode"),
    [
        ("cpu", "auto", {"hidden_size": 288}, "packed"),
        ("cuda", "auto", {"hidden_size": 288}, "float32"),
        ("cuda", "auto", {"d_model": 512}, "float32"),
        ("cuda", "auto", {"d_model": 1280}, "bfloat16"),
        ("cuda", "float32", {"d_model": 1280}, "float32"),
    ],
)
def test_small_models_are_not_rounded_on_a_gpu(device: str, weights: str, settings: dict, mode: str) -> None:
    config = EngineConfig(weights=weights)  # type: ignore[arg-type]
    assert listening_mode(config, settings, torch.device(device)) == mode


def test_packed_weights_are_for_cpus() -> None:
    with pytest.raises(EngineConfigError, match=r"engine\.weights"):
        listening_mode(EngineConfig(weights="packed"), {}, torch.device("cuda"))

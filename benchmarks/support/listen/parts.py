"""Models with their recognisers, clips, timing, and the same models in transformers, for gpu_listen.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from support import stand_ins
from support.gpu import interpreter
from support.gpu.clock import copy_bandwidth as copy_bandwidth
from support.gpu.clock import time_device
from support.replace import put
from torch import Tensor

assert stand_ins.MISSING is not None  # imported first: voxlane needs the packages

from support.random_models import SHAPES, RandomWeights  # noqa: E402

from voxlane.engine.api import SamplingParams  # noqa: E402
from voxlane.engine.memory.blocks import BlockPool, BlockTable  # noqa: E402
from voxlane.engine.memory.pages import KVCache  # noqa: E402
from voxlane.engine.models import encoder_decoder  # noqa: E402
from voxlane.engine.models.loading import Mode  # noqa: E402
from voxlane.engine.models.moonshine import Moonshine  # noqa: E402
from voxlane.engine.models.spelling import Spelling  # noqa: E402
from voxlane.engine.models.whisper import Whisper, WhisperTokens  # noqa: E402
from voxlane.engine.runners.cuda import encoder_decoder_graphs  # noqa: E402
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser  # noqa: E402
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionPayload  # noqa: E402
from voxlane.engine.schedule.plan import ModelBatch, Row  # noqa: E402
from voxlane.engine.schedule.request import ClipStates, Request  # noqa: E402

Model = Moonshine | Whisper

RATE = 16_000
CONTEXT = 24
"""Tokens of a stream when its decode step is timed: some seconds of speech."""

BLOCK_TOKENS = 64


def interpret_kernels() -> None:
    """Send CPU tensors to the Triton kernels, under Triton's interpreter."""
    from voxlane.engine.kernels.attention import rope_triton
    from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton
    from voxlane.engine.kernels.norm import activation_triton, layer_norm_triton
    from voxlane.engine.kernels.sampling import sampling_triton

    interpreter.mend()
    put(
        encoder_decoder,
        layer_norm=layer_norm_triton.layer_norm,
        add_layer_norm=layer_norm_triton.add_layer_norm,
        silu_mul=partial(activation_triton.gate_mul, gelu=False),
        rope_write=partial(rope_triton.rope_write, q_norm=None, k_norm=None, eps=0.0),
        paged_attention=paged_attention_triton,
    )
    put(encoder_decoder_graphs, sample=sampling_triton.sample)


def matrix_rate(mode: str, device: torch.device) -> float:
    """Return the operations a second of a large matrix product of random numbers."""
    size = 8192 if device.type == "cuda" else 128
    a, b = (torch.randn((size, size), device=device, dtype=getattr(torch, mode)) for _ in range(2))
    return 2 * size**3 / time_device(lambda: a @ b, 5, device)


def make_model(shape: str, mode: Mode, device: torch.device, drawn_on: str = "", context_tokens: int = 0) -> Model:
    """Return a model with random weights, made in memory; they differ from device to device."""
    config = dict(SHAPES[shape])
    if context_tokens:
        config["max_target_positions"] = config["max_position_embeddings"] = context_tokens
    weights = RandomWeights(config, drawn_on or str(device), getattr(torch, mode))
    vocabulary = config["vocab_size"]
    assert isinstance(vocabulary, int)
    names = [""] * vocabulary
    kind = Whisper if config["model_type"] == "whisper" else Moonshine
    if kind is Whisper:
        names[WhisperTokens.of(vocabulary).languages.start] = "<|en|>"
    spelling = Spelling([b""] * vocabulary, names)
    return kind.load(weights, spelling, mode, device=device)


@dataclass(slots=True)
class Bench:
    """A model with its cache and recogniser."""

    model: Model
    runner: Recogniser
    pool: BlockPool
    device: torch.device
    start_s: float = 0.0  # seconds for compiling and graph capture

    def request(self, name: str, samples: NDArray[np.float32]) -> Request:
        """Return a request that transcribes a clip."""
        prompt = self.model.prompt_tokens(self.model.languages[0])
        return Request(
            id=name,
            task="asr",
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            table=BlockTable(self.pool),
            sampling=SamplingParams(logprobs=0),
            limit=self.model.context_tokens,
            model="asr",
            payload=TranscriptionPayload(samples),
            clip=ClipStates(self.model.states(len(samples)), BlockTable(self.pool)),
        )

    def row(self, request: Request, drafts: Sequence[int] = ()) -> Row:
        """Allocate the positions of a request's next row."""
        fresh = request.unencoded
        if fresh and request.cross is not None:
            request.cross.append(request.states)
        start = request.table.length
        count = len(request.tokens) - start
        request.table.append(count + len(drafts))
        return Row(request, start, count, drafts=list(drafts), encode=fresh)


def make_bench(model: Model, device: torch.device, *, streams: int, plain: bool = False) -> Bench:
    """Return a bench with room for so many streams of the longest clips, its graphs captured."""
    longest = model.states(min(model.max_samples, 30 * RATE))
    blocks = streams * (-(-longest // BLOCK_TOKENS) + -(-model.context_tokens // BLOCK_TOKENS)) + 2
    cache = KVCache(model.spec.pages, blocks, BLOCK_TOKENS, model.dtype, device)
    begin = time.monotonic()
    runner = Recogniser(model, cache) if plain else CudaRecogniser(model, cache, device, max_rows=streams)
    if isinstance(runner, CudaRecogniser) and device.type == "cuda":
        runner.capture()
    return Bench(model, runner, BlockPool(blocks, BLOCK_TOKENS), device, time.monotonic() - begin)


@dataclass(frozen=True, slots=True)
class EncodeTimes:
    """Median seconds of a step that encodes clips and prefills their prompts."""

    encoder: float  # on the device
    device: float  # the whole step on the device
    host: float  # from the plan to the outcomes
    launch: float  # of these, until everything is queued


def noise(seconds: float, seed: int) -> NDArray[np.float32]:
    """Return noise."""
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE)).astype(np.float32)


def encode_times(bench: Bench, seconds: float, batch: int, times: int) -> EncodeTimes:
    """Time steps that encode `batch` clips."""
    clips = [noise(seconds, seed) for seed in range(batch)]
    found: list[tuple[float, ...]] = []
    for number in range(times + 2):
        requests = [bench.request(f"{number}/{index}", clip) for index, clip in enumerate(clips)]
        rows = [bench.row(request) for request in requests]
        begin = time.perf_counter()
        bench.runner.run(ModelBatch(rows=rows))
        host = time.perf_counter() - begin
        spans = {name: stop - start for name, (start, stop) in bench.runner.phases.items()}
        found.append((spans["encode"], spans["device"], host, spans["launch"]))
        for request in requests:
            request.free()
    return EncodeTimes(*(statistics.median(column) for column in zip(*found[2 if times > 1 else 0 :], strict=True)))


def encode_operations(model: Model, seconds: float) -> float:
    """Return the encoder's operations for one clip: products and attention, without convolutions."""
    rows, parts = model.states(int(seconds * RATE)), model._parts
    hidden, layers = model.hidden_size, len(parts.encoder)
    weights = sum(
        matrix.weight.numel()
        for layer in parts.encoder
        for matrix in (layer.qkv, layer.out, layer.up, layer.down)
        if isinstance(matrix.weight, Tensor)
    )
    return 2.0 * rows * weights + 4.0 * layers * rows * rows * hidden


def standing(bench: Bench, streams: int) -> list[Request]:
    """Return streams with some words of a 30 s clip, their pages full of noise."""
    requests = []
    for number in range(streams):
        request = bench.request(str(number), np.zeros(min(30 * RATE, bench.model.max_samples), np.float32))
        assert request.cross is not None
        request.cross.append(request.states)
        request.tokens += [5 + number] * (CONTEXT - len(request.tokens))
        request.table.append(CONTEXT - 1)
        requests.append(request)
    random = torch.Generator(bench.device).manual_seed(1)
    for page in bench.runner.cache.pages:
        for part in (page.k, page.v):
            part.normal_(generator=random)
    if bench.device.type == "cuda":
        torch.cuda.synchronize()  # the recogniser has a stream of its own
    return requests


def step_times(bench: Bench, streams: int, times: int) -> tuple[float, float, float]:
    """Return the median seconds of a decode step: the host's, its launch time, and the graph's own."""
    requests = standing(bench, streams)
    runner = bench.runner
    assert isinstance(runner, CudaRecogniser)
    host, launch = [], []
    for _ in range(times):
        rows = [bench.row(request) for request in requests]
        begin = time.perf_counter()
        ticket = runner.launch(ModelBatch(rows=rows))
        launch.append(time.perf_counter() - begin)
        outcomes = runner.collect(ticket)
        host.append(time.perf_counter() - begin)
        assert not any(outcome.failed for outcome in outcomes)
        for request in requests:
            request.table.rewind(CONTEXT - 1)
    size, wide = runner._steps.size(streams, 1)
    device = time_device(lambda: runner._steps.launch(size, wide=wide), times, bench.device)
    for request in requests:
        request.free()
    return statistics.median(host), statistics.median(launch), device


def step_bytes(bench: Bench, streams: int) -> float:
    """Return the bytes that a decode step must read: the decoder's weights, and the streams' keys and values."""
    model, cache = bench.model, bench.runner.cache
    matrices = [
        matrix.weight
        for layer in model._parts.decoder
        for matrix in (layer.qkv, layer.out, layer.cross_q, layer.cross_out, layer.up, layer.down)
    ]
    weights = sum(matrix.nbytes for matrix in (*matrices, model._parts.head))
    states = model.states(min(30 * RATE, model.max_samples))
    return weights + streams * (states + CONTEXT) * cache.bytes_per_token

"""A model with its cache and runner, requests, a loop without text, and timing, for gpu_engine.py and gpu_parity.py."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from support import stand_ins
from support.gpu.clock import copy_bandwidth as copy_bandwidth
from support.gpu.clock import time_device as time_device

assert stand_ins.MISSING is not None  # imported first: voxlane needs the packages

from support.random_models import RandomWeights  # noqa: E402

from voxlane.engine.api import Finished, Policy, SamplingParams, Submit, Text  # noqa: E402
from voxlane.engine.build.model_part import build_resources  # noqa: E402
from voxlane.engine.jobs.chat import TextJob  # noqa: E402
from voxlane.engine.loop.core import Core  # noqa: E402
from voxlane.engine.memory.blocks import BlockTable  # noqa: E402
from voxlane.engine.memory.pages import KVCache  # noqa: E402
from voxlane.engine.models.decoder import Decoder  # noqa: E402
from voxlane.engine.models.loading import Mode  # noqa: E402
from voxlane.engine.runners.cuda.decoder import CudaRunner  # noqa: E402
from voxlane.engine.runners.decoder import TokenOutcome  # noqa: E402
from voxlane.engine.schedule.plan import TEXT, Limits, ModelBatch, ModelResources, Row  # noqa: E402
from voxlane.engine.schedule.request import Request  # noqa: E402
from voxlane.engine.schedule.scheduler import Scheduler  # noqa: E402
from voxlane.engine.weights.tensors import WeightFile  # noqa: E402

STEP_TOKENS, STEP_BUDGET_S = 16_384, 0.06
CONTEXT_TOKENS = 4096

Work = list[tuple[list[int], int]]
"""Prompts, each with its number of output tokens."""


class Codec:
    """A tokenizer in which every token is the same letter."""

    vocab_size = 1 << 30
    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        """Return a letter."""
        return b"x"


@dataclass(slots=True)
class Bench:
    """A model on a device, ready to step."""

    model: Decoder
    cache: KVCache
    resources: ModelResources
    runner: CudaRunner
    device: torch.device
    start_s: float = 0.0  # seconds for compiling and graph capture

    def request(self, name: str, tokens: list[int], sampling: SamplingParams) -> Request:
        """Return a request for a prompt of tokens."""
        limit = self.model.context_tokens
        table = BlockTable(self.resources.pool)
        return Request(name, "complete", tokens, len(tokens), table, sampling=sampling, limit=limit, seed=7)


def make_model(
    config: dict[str, object], device: str, mode: Mode = "bfloat16", context: int = CONTEXT_TOKENS
) -> Decoder:
    """Return a decoder with random weights, made in memory; they differ from device to device."""
    weights = RandomWeights(config, device, torch.bfloat16 if mode == "bfloat16" else torch.float32)
    return Decoder.load(weights, mode, device=device, context_tokens=context)


def load_model(weights: WeightFile, device: str) -> Decoder:
    """Return a decoder from files."""
    return Decoder.load(weights, "bfloat16", device=device, context_tokens=CONTEXT_TOKENS)


def make_bench(
    model: Decoder,
    tokens: int,
    *,
    max_batch: int,
    block_tokens: int = 64,
    pages: torch.dtype = torch.bfloat16,
    prompts: bool = False,
) -> Bench:
    """Return a bench with a cache for `tokens` tokens, its graphs captured and its steps with `prompts` compiled."""
    device = model._first_norm.device
    blocks = -(-tokens // block_tokens) + max_batch
    cache = KVCache(model.spec.pages, blocks, block_tokens, pages, device)
    runner = CudaRunner(model, cache, device, max_batch=max_batch, context_tokens=model.context_tokens)
    begin = time.monotonic()
    if prompts:
        runner.rehearse(STEP_TOKENS if device.type == "cuda" else 64)
    if device.type == "cuda":
        runner.capture()
    return Bench(
        model,
        cache,
        build_resources(cache, prefix_cache=False, abilities=TEXT),
        runner,
        device,
        start_s=time.monotonic() - begin,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's output after one prompt."""

    tokens: list[int]
    logprobs: list[float]


def ask(bench: Bench, prompts: Sequence[Sequence[int]], outputs: int, chunk: int = 1 << 30) -> list[Answer]:
    """Run prompts as one batch without a scheduler, in chunks, greedily; return `outputs` tokens after each."""
    sampling = SamplingParams(max_tokens=1 << 20, logprobs=0, ignore_eos=True)
    requests = [bench.request(str(n), list(prompt), sampling) for n, prompt in enumerate(prompts)]
    answers = [Answer([], []) for _ in requests]
    while any(len(answer.tokens) < outputs for answer in answers):
        rows = []
        for request, answer in zip(requests, answers, strict=True):
            if len(answer.tokens) < outputs:
                count = min(len(request.tokens) - request.table.length, chunk)
                rows.append(Row(request, request.table.length, count))
                request.table.append(count)
        for row, outcome in zip(rows, bench.runner.run(ModelBatch(rows=rows)), strict=True):
            assert isinstance(outcome, TokenOutcome)
            assert not outcome.failed, "logits are not finite"
            for choice in outcome.choices:
                row.request.tokens.append(choice.token)
                answers[int(row.request.id)].tokens.append(choice.token)
                assert choice.logprob is not None
                answers[int(row.request.id)].logprobs.append(choice.logprob)
    for request in requests:
        request.table.free()
    return answers


def fill(bench: Bench, batch: int, context: int) -> list[Request]:
    """Return requests of `context` tokens whose pages hold noise."""
    source = random.Random(1)
    requests = []
    for number in range(batch):
        tokens = [source.randrange(bench.model.vocab_size) for _ in range(context)]
        request = bench.request(f"row-{number}", tokens, SamplingParams(max_tokens=1 << 20, ignore_eos=True))
        request.table.append(context - 1)
        requests.append(request)
    noise = torch.Generator(bench.device).manual_seed(1)
    for page in bench.cache.pages:
        for part in (page.k, page.v):
            if part.is_floating_point():
                part.normal_(generator=noise)
    return requests


def step(bench: Bench, requests: Iterable[Request]) -> None:
    """Decode one token of each request."""
    rows = []
    for request in requests:
        rows.append(Row(request, request.table.length, 1))
        request.table.append(1)
    for row, outcome in zip(rows, bench.runner.run(ModelBatch(rows=rows)), strict=True):
        assert isinstance(outcome, TokenOutcome)
        row.request.tokens.append(outcome.choices[0].token)


def step_times(bench: Bench, batch: int, context: int, steps: int) -> tuple[float, float]:
    """Return the median seconds of a decode step: the host's with a plan ready, and the graph's own."""
    requests = fill(bench, batch, context)
    for _ in range(3):
        step(bench, requests)
    host = []
    for _ in range(steps):
        begin = time.perf_counter()
        step(bench, requests)
        host.append(time.perf_counter() - begin)
    size = bench.runner._rows.bucket(batch)
    device = time_device(lambda: bench.runner._graphs.launch(size), steps, bench.device)
    for request in requests:
        request.table.free()
    return sorted(host)[len(host) // 2], device


def floor_s(bench: Bench, batch: int, context: int, bandwidth: float) -> float:
    """Return the seconds to read a step's weights and the rows' keys and values once."""
    model = bench.model
    embedding = 0 if model._embedding is model._head else model.vocab_size * model.config.hidden_size
    weights = (model.parameters - embedding) * (2 if model.mode == "bfloat16" else 4)
    return (weights + batch * context * bench.cache.bytes_per_token) / bandwidth


class Desk:
    """Opens jobs for prompts of tokens that were added here before."""

    def __init__(self, bench: Bench, work: Work) -> None:
        self._bench = bench
        self._prompts = {str(number): prompt for number, (prompt, _) in enumerate(work)}
        self.requests: list[Request] = []
        self.submits = [
            Submit(str(number), "complete", sampling=SamplingParams(max_tokens=count, ignore_eos=True))
            for number, (_, count) in enumerate(work)
        ]

    def open(self, submit: Submit, now: float) -> TextJob:
        """Return the job of a prompt."""
        request = self._bench.request(submit.request_id, list(self._prompts[submit.request_id]), submit.sampling)
        request.arrival_s = now
        self.requests.append(request)
        return TextJob(submit, [request], Codec(), now)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Run:
    """The times of a workload."""

    seconds: float
    output_tokens: int
    steps: int
    device_s: float  # of these, with a step on the device
    plan_s: float  # planning, overlapped or not
    prompt_s: float  # steps with prompts
    longest_s: float  # the longest step on the device
    tokens: int  # a hash of all output

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.output_tokens / self.seconds


def run_workload(bench: Bench, work: Work, policy: Policy, max_batch: int) -> Run:
    """Send all work to a core at once and step until it is done."""
    factory, runner = Desk(bench, work), bench.runner
    runner.overlaps = True
    limits = Limits(max_batch=max_batch, max_step_tokens=STEP_TOKENS, step_budget_s=STEP_BUDGET_S, policy=policy)
    core = Core(
        Scheduler({"chat": bench.resources}, limits),
        {"chat": runner},
        {"chat": factory},
        clock=time.monotonic,
        max_waiting=len(work) + 1,
    )
    begin = time.monotonic()
    core.handle(factory.submits)
    spans: dict[str, list[float]] = {name: [] for name in ("device", "prompts")}
    letters, ended, prefilled = 0, 0, 0
    while core.busy:
        told = runner.phases
        messages = core.step()
        if runner.phases is not told:
            start, stop = runner.phases["device"]
            spans["device"].append(stop - start)
            if core._telemetry._meter._prefill != prefilled:
                spans["prompts"].append(spans["device"][-1])
                prefilled = core._telemetry._meter._prefill
        letters += sum(len(message.text) for message in messages if isinstance(message, Text))
        ended += sum(1 for message in messages if isinstance(message, Finished))
    seconds = time.monotonic() - begin
    plan_s = core._telemetry._meter._phases["schedule"]
    core.idle()
    wanted = sum(count for _, count in work)
    assert (letters, ended) == (wanted, len(work)), f"{letters} of {wanted} tokens, {ended} of {len(work)} requests"
    outputs = zlib.crc32(repr([request.tokens for request in factory.requests]).encode())
    return Run(
        *(seconds, wanted, len(spans["device"]), sum(spans["device"]), plan_s),
        *(sum(spans["prompts"]), max(spans["device"]), outputs),
    )


def random_work(count: int, low: int, high: int, vocabulary: int, seed: int = 0) -> Work:
    """Return prompts of `low` to `high` random tokens, each with a random number of outputs in that range."""
    source = random.Random(seed)
    return [
        ([source.randrange(vocabulary) for _ in range(source.randint(low, high))], source.randint(low, high))
        for _ in range(count)
    ]

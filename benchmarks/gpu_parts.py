"""What the GPU benchmarks share: a model with its cache and runner, requests, a loop without text, and timing."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import stand_ins
import torch
from gpu_clock import copy_bandwidth as copy_bandwidth
from gpu_clock import time_device as time_device

assert stand_ins.MISSING is not None  # first, so that what follows can be imported

from random_models import RandomWeights  # noqa: E402

from voxlane.engine.api import Finished, Policy, SamplingParams, Submit, Text  # noqa: E402
from voxlane.engine.build.model_part import build_station  # noqa: E402
from voxlane.engine.jobs.chat import TextJob  # noqa: E402
from voxlane.engine.loop.core import Core  # noqa: E402
from voxlane.engine.memory.blocks import BlockTable  # noqa: E402
from voxlane.engine.memory.pages import KVCache  # noqa: E402
from voxlane.engine.models.decoder import Decoder  # noqa: E402
from voxlane.engine.models.loading import Mode  # noqa: E402
from voxlane.engine.runners.cuda.decoder import CudaRunner  # noqa: E402
from voxlane.engine.runners.decoder import TokenOutcome  # noqa: E402
from voxlane.engine.schedule.plan import Limits, ModelBatch, ModelResources, Row  # noqa: E402
from voxlane.engine.schedule.request import Request  # noqa: E402
from voxlane.engine.schedule.scheduler import Scheduler  # noqa: E402
from voxlane.engine.weights.tensors import WeightFile  # noqa: E402

STEP_TOKENS, STEP_BUDGET_S = 16_384, 0.06
CONTEXT_TOKENS = 4096

Work = list[tuple[list[int], int]]
"""Prompts, each with the number of tokens to be written after it."""


class Codec:
    """A tokenizer whose every token is the same letter."""

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
    station: ModelResources
    runner: CudaRunner
    device: torch.device
    start_s: float = 0.0  # how long compiling and graphs took

    def request(self, name: str, tokens: list[int], sampling: SamplingParams) -> Request:
        """Return a request for a prompt of tokens."""
        limit = self.model.context_tokens
        table = BlockTable(self.station.pool)
        return Request(name, "complete", tokens, len(tokens), table, sampling=sampling, limit=limit, seed=7)


def make_model(
    config: dict[str, object], device: str, mode: Mode = "bfloat16", context: int = CONTEXT_TOKENS, drawn_on: str = ""
) -> Decoder:
    """Return a decoder with random weights that were never on a disk; they depend on the device they are drawn on."""
    weights = RandomWeights(config, drawn_on or device, torch.bfloat16 if mode == "bfloat16" else torch.float32)
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
        model, cache, build_station(cache, prefix_cache=False), runner, device, start_s=time.monotonic() - begin
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote after one prompt."""

    tokens: list[int]
    logprobs: list[float]


def ask(bench: Bench, prompts: Sequence[Sequence[int]], outputs: int, chunk: int = 1 << 30) -> list[Answer]:
    """Run prompts by hand as one batch, cut into chunks, greedily; return `outputs` tokens after each."""
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
    """Return requests that stand at `context` tokens, their pages full of noise."""
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
    """Decode one token of each."""
    rows = []
    for request in requests:
        rows.append(Row(request, request.table.length, 1))
        request.table.append(1)
    for row, outcome in zip(rows, bench.runner.run(ModelBatch(rows=rows)), strict=True):
        assert isinstance(outcome, TokenOutcome)
        row.request.tokens.append(outcome.choices[0].token)


def step_times(bench: Bench, batch: int, context: int, steps: int) -> tuple[float, float]:
    """Return the seconds of a decode step, median: as the host sees it with a plan ready, and the graph's own."""
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
    global _tokens
    _tokens = zlib.crc32(repr([request.tokens[context:] for request in requests]).encode())
    for request in requests:
        request.table.free()
    return sorted(host)[len(host) // 2], device


_tokens = 0


def last_tokens() -> int:
    """Return a hash of what the last measured rows wrote: two ways to the same bits show the same."""
    return _tokens


def floor_s(bench: Bench, batch: int, context: int, bandwidth: float) -> float:
    """Return the seconds it takes to read the weights a step needs and the rows' keys and values once."""
    model = bench.model
    embedding = 0 if model._embedding is model._head else model.vocab_size * model.config.hidden_size
    weights = (model.parameters - embedding) * (2 if model.mode == "bfloat16" else 4)
    return (weights + batch * context * bench.cache.bytes_per_token) / bandwidth


class Desk:
    """Opens jobs for prompts of tokens that were laid down here before."""

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


Overlap = Literal["apart", "told late", "ahead"]
"""How host and device share a step: one after the other; the host tells the last step while the device runs the next;
the host plans the next one meanwhile too, as an engine does."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a workload took."""

    seconds: float
    output_tokens: int
    steps: int
    device_s: float  # of it, the device had a step
    plan_s: float  # planning, whether meanwhile or not
    prompt_s: float  # steps that read prompts
    longest_s: float  # the longest step on the device
    tokens: int  # a hash of all that came out

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.output_tokens / self.seconds


def run_workload(
    bench: Bench,
    work: Work,
    policy: Policy,
    max_batch: int,
    *,
    overlap: Overlap = "ahead",
) -> Run:
    """Send work to a core all at once and step until all of it is done."""
    desk, runner = Desk(bench, work), bench.runner
    runner.overlaps = overlap != "apart"
    limits = Limits(max_batch=max_batch, max_step_tokens=STEP_TOKENS, step_budget_s=STEP_BUDGET_S, policy=policy)
    core = Core(
        Scheduler({"chat": bench.station}, limits),
        {"chat": runner},
        {"chat": desk},
        clock=time.monotonic,
        max_waiting=len(work) + 1,
    )
    vars(runner).pop("samples_on_device", None)  # of a run before this one
    if overlap != "ahead":
        runner.samples_on_device = lambda request: False  # type: ignore[method-assign]
    begin = time.monotonic()
    core.handle(desk.submits)
    spans: dict[str, list[float]] = {name: [] for name in ("device", "prompts")}
    letters, ended, prefilled = 0, 0, 0
    while core.busy:
        told = runner.phases
        messages = core.step()
        if runner.phases is not told:
            start, stop = runner.phases["device"]
            spans["device"].append(stop - start)
            if core._record._meter._prefill != prefilled:
                spans["prompts"].append(spans["device"][-1])
                prefilled = core._record._meter._prefill
        letters += sum(len(message.text) for message in messages if isinstance(message, Text))
        ended += sum(1 for message in messages if isinstance(message, Finished))
    seconds = time.monotonic() - begin
    plan_s = core._record._meter._phases["schedule"]
    core.idle()
    wanted = sum(count for _, count in work)
    assert (letters, ended) == (wanted, len(work)), f"{letters} of {wanted} tokens, {ended} of {len(work)} requests"
    outputs = zlib.crc32(repr([request.tokens for request in desk.requests]).encode())
    return Run(
        *(seconds, wanted, len(spans["device"]), sum(spans["device"]), plan_s),
        *(sum(spans["prompts"]), max(spans["device"]), outputs),
    )


def random_work(count: int, low: int, high: int, vocabulary: int, seed: int = 0) -> Work:
    """Return prompts of low to high random tokens, each with as random a number of outputs."""
    source = random.Random(seed)
    return [
        ([source.randrange(vocabulary) for _ in range(source.randint(low, high))], source.randint(low, high))
        for _ in range(count)
    ]

"""From a configuration to an engine that is loaded, sized and warm. It builds the parts; it runs none of the loop."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from voxlane.engine.api import EngineConfig, Ready
from voxlane.engine.cache import PAGE_DTYPES, KVCache
from voxlane.engine.core import Core
from voxlane.engine.cost import CostModel
from voxlane.engine.intake import Intake
from voxlane.engine.kernels import native
from voxlane.engine.kv import BlockPool, BlockTable
from voxlane.engine.models import Decoder, architecture_of, load_model
from voxlane.engine.request import Request
from voxlane.engine.runner import Runner
from voxlane.engine.scheduler import Limits, Scheduler
from voxlane.engine.tokenizer import Tokenizer
from voxlane.engine.trace import Trace
from voxlane.engine.weights import store
from voxlane.engine.weights.errors import ModelError
from voxlane.engine.weights.files import open_weights

Progress = Callable[[str, float], None]

MEBIBYTE = 1 << 20
WARM_UP_PROMPTS = (16, 128, 32, 16, 64, 16, 16, 16)
WARM_UP_STEPS = 3
"""Prompts that join one by one at start, and steps after each: they touch every kernel, and they show the cost model
what a row, a prompt token and a context token cost apart from each other."""


class EngineConfigError(ModelError):
    """The settings cannot work together or on this machine; str() is one line that names the setting."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine ready to step, and what it says of itself."""

    core: Core
    runner: Runner
    tokenizer: Tokenizer
    ready: Ready
    trace: Trace | None


def assemble(config: EngineConfig, progress: Progress = lambda what, done: None) -> Assembly:
    """Load the model and build the engine around it, or raise ModelError with one line for a person."""
    task = store.task_of(config.model)
    if task not in (None, "chat"):
        raise EngineConfigError(
            f"engine.model: {config.model} is a model for {task}; `voxlane models list` shows those for chat"
        )
    use_threads(config.threads)
    path = store.resolve(config.model, progress=lambda done: progress("fetching the model", done))
    weights = open_weights(path)
    mode = "packed" if config.weights == "auto" else config.weights
    model = load_model(
        weights, mode, lambda done: progress("loading the model", done), context_tokens=config.context_tokens
    )
    tokenizer = Tokenizer.from_weights(weights)
    cache = _cache(config, model, mode)
    limits = Limits(
        max_batch=config.max_batch,
        max_step_tokens=config.max_step_tokens,
        step_budget_s=config.step_budget_ms / 1e3,
        policy=config.policy,
        lookup_tokens=config.lookup_tokens,
        swap_block_s=_swap_block_s(cache),
    )
    pool = BlockPool(
        cache.num_blocks, config.block_tokens, key=secrets.token_bytes(32), prefix_cache=config.prefix_cache
    )
    host = BlockPool(cache.host_blocks, config.block_tokens, prefix_cache=False)
    scheduler = Scheduler(pool, host, CostModel(), limits)
    runner = Runner(model, cache)
    trace = Trace(Path(config.trace)) if config.trace else None
    intake = Intake(
        tokenizer,
        pool,
        vocabulary=model.vocab_size,
        context_tokens=model.context_tokens,
        draw_seed=lambda: secrets.randbits(63),
    )
    progress("warming up", 0.0)
    _warm_up(scheduler, runner, model)
    progress("warming up", 1.0)
    core = Core(
        scheduler,
        runner,
        tokenizer,
        intake,
        clock=time.monotonic,
        max_waiting=config.max_waiting,
        trace=trace,
    )
    ready = _ready(config, architecture_of(weights.config), model, cache)
    return Assembly(core, runner, tokenizer, ready, trace)


def _ready(config: EngineConfig, architecture: str, model: Decoder, cache: KVCache) -> Ready:
    kernels = native.description() if native.load() else f"torch, {torch.get_num_threads()} threads"
    return Ready(
        model=config.model,
        architecture=architecture,
        parameters=model.parameters,
        context_tokens=min(model.context_tokens, cache.num_blocks * config.block_tokens),
        weights=model.mode,
        pages=str(cache.dtype).removeprefix("torch."),
        kv_blocks=cache.num_blocks,
        block_tokens=config.block_tokens,
        page_bytes_per_token=cache.bytes_per_token,
        device=f"cpu, {kernels}",
    )


def use_threads(wanted: int) -> None:
    """Share the cores out: our kernels bring their own threads, and torch's would only fight with them."""
    threads = wanted or len(os.sched_getaffinity(0))
    native.set_threads(threads)
    torch.set_num_threads(1 if native.load() else threads)


def _cache(config: EngineConfig, model: Decoder, mode: str) -> KVCache:
    pages = config.pages
    if pages == "auto":
        pages = "float32" if mode == "float32" else "bfloat16"
    dtype = PAGE_DTYPES[pages]
    block_bytes = model.kv_bytes_per_token(dtype) * config.block_tokens
    blocks = config.kv_memory_mib * MEBIBYTE // block_bytes
    if blocks < 2:
        raise EngineConfigError(
            f"engine.kv_memory_mib: {config.kv_memory_mib} MiB hold {blocks} blocks of {block_bytes} bytes; "
            f"at least {-(-2 * block_bytes // MEBIBYTE)} MiB are needed"
        )
    return KVCache(
        model.layers,
        model.kv_heads,
        model.head_dim,
        blocks,
        config.block_tokens,
        dtype,
        host_blocks=config.swap_memory_mib * MEBIBYTE // block_bytes,
    )


def _swap_block_s(cache: KVCache) -> float:
    """Measure what moving one block to the host costs."""
    count = min(8, cache.num_blocks, cache.host_blocks)
    if count == 0:
        return 0.0
    pairs = [(block, block) for block in range(count)]
    cache.swap_out(pairs)  # the first pass pays for touching the memory
    begin = time.monotonic()
    cache.swap_out(pairs)
    return (time.monotonic() - begin) / count


def _warm_up(scheduler: Scheduler, runner: Runner, model: Decoder) -> None:
    """Run a growing batch of prompts and decodes, so that the first user pays for nothing and costs are known."""
    pool, cost = scheduler.pool, scheduler.cost
    limit = min(model.context_tokens, pool.num_blocks * pool.block_tokens // len(WARM_UP_PROMPTS))
    trial = Scheduler(pool, scheduler.host, cost, replace(scheduler.limits, policy="fcfs", lookup_tokens=0))
    for index, length in enumerate(WARM_UP_PROMPTS[: scheduler.limits.max_batch]):
        tokens = [(index * 7919 + n) % model.vocab_size for n in range(min(length, max(limit - 1, 1)))]
        trial.add(Request(f"warm-up-{index}", "chat", tokens, len(tokens), BlockTable(pool, "warm-up")))
        for _ in range(WARM_UP_STEPS):
            plan = trial.schedule(0.0)
            begin = time.monotonic()
            outcomes = runner.run(plan)
            cost.observe(plan.work, time.monotonic() - begin)
            for row, outcome in zip(plan.rows, outcomes, strict=True):
                row.request.tokens += [choice.token for choice in outcome.choices]
                if len(row.request.tokens) >= limit:
                    trial.remove(row.request)
            if not trial.ready():
                break
    for request in list(trial.requests.values()):
        trial.remove(request)
    cost.anchor()

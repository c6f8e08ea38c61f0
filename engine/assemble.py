"""From a configuration to an engine that is loaded, sized and warm. It builds the parts; it runs none of the loop."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from voxlane.engine.api import EngineConfig, Ready
from voxlane.engine.cache import KVCache
from voxlane.engine.constraint import Grammars
from voxlane.engine.core import Core
from voxlane.engine.cuda.parts import choose_device, describe, device_cache, make_runner
from voxlane.engine.intake import Intake
from voxlane.engine.jobs.text import TextDesk
from voxlane.engine.kernels import native
from voxlane.engine.kv import BlockTable
from voxlane.engine.models import Decoder, architecture_of, load_model
from voxlane.engine.models.loading import Mode
from voxlane.engine.parts import EngineConfigError, Part, Progress, build_station, check_task, make_cache, rehearse
from voxlane.engine.request import ModelName, Request
from voxlane.engine.runner import Runner
from voxlane.engine.scheduler import Limits, Scheduler
from voxlane.engine.tokenizer import Tokenizer
from voxlane.engine.trace import Trace
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

WARM_UP_PROMPTS = (16, 128, 32, 16, 64, 16, 16, 16)
WARM_UP_STEPS = 3
"""Prompts that join one by one at start, and steps after each: they touch every kernel, and they show the cost model
what a row, a prompt token and a context token cost apart from each other."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine ready to step, and what it says of itself."""

    core: Core
    ready: Ready
    trace: Trace | None


def assemble(config: EngineConfig, progress: Progress = lambda what, done: None) -> Assembly:
    """Load the models and build the engine around them, or raise ModelError with one line for a person."""
    if not (config.model or config.asr_model or config.tts_model):
        raise EngineConfigError("engine.model, engine.asr_model and engine.tts_model are all empty: nothing to run")
    use_threads(config.threads)
    parts: dict[ModelName, Part] = {}
    if config.model:
        parts["chat"] = _chat_part(config, progress)
    if config.asr_model or config.tts_model:
        # An engine that only chats need not load what the others stand on.
        from voxlane.engine.speech_parts import listening_part, speaking_part

        if config.asr_model:
            parts["asr"] = listening_part(config, progress)
        if config.tts_model:
            parts["tts"] = speaking_part(config, progress)
    limits = Limits(
        max_batch=config.max_batch,
        max_step_tokens=config.max_step_tokens,
        step_budget_s=config.step_budget_ms / 1e3,
        policy=config.policy,
        lookup_tokens=config.lookup_tokens,
    )
    trace = Trace(Path(config.trace)) if config.trace else None
    core = Core(
        Scheduler({name: part.station for name, part in parts.items()}, limits),
        {name: part.engine for name, part in parts.items()},
        {name: part.desk for name, part in parts.items()},
        clock=time.monotonic,
        max_waiting=config.max_waiting,
        trace=trace,
    )
    return Assembly(core, _ready(parts), trace)


def use_threads(wanted: int) -> None:
    """Share the cores out: our kernels bring their own threads, and torch's would only fight with them."""
    threads = wanted or len(os.sched_getaffinity(0))
    native.set_threads(threads)
    torch.set_num_threads(1 if native.load() else threads)


def _ready(parts: dict[ModelName, Part]) -> Ready:
    kernels = native.description() if native.load() else f"torch, {torch.get_num_threads()} threads"
    told: dict[str, object] = {
        "device": f"cpu, {kernels}",
        "model": "",
        "architecture": "",
        "weights": "",
        "pages": "",
        "parameters": 0,
        "context_tokens": 0,
        "kv_blocks": 0,
        "block_tokens": 0,
        "page_bytes_per_token": 0,
    }
    for part in parts.values():
        told |= part.ready
    return Ready(**told)  # type: ignore[arg-type]  # every part tells its own fields


def _chat_part(config: EngineConfig, progress: Progress) -> Part:
    check_task("model", config.model, "chat")
    path = store.resolve(config.model, progress=lambda done: progress("fetching the model", done))
    weights = open_weights(path)
    device = choose_device(config)
    mode = _mode(config, device)
    model = load_model(
        *(weights, mode, lambda done: progress("loading the model", done), device), context_tokens=config.context_tokens
    )
    tokenizer = Tokenizer.from_weights(weights)
    cache, runner = _engine(config, model, device, progress)
    station = build_station(cache, prefix_cache=config.prefix_cache)
    intake = Intake(
        tokenizer,
        station.pool,
        vocabulary=model.vocab_size,
        context_tokens=model.context_tokens,
        draw_seed=lambda: secrets.randbits(63),
    )
    progress("warming up", 0.0)
    grammars = Grammars(tokenizer, model.vocab_size)
    desk = TextDesk(intake, tokenizer, grammars)
    ready = _chat_ready(config, weights.config, model, cache)
    if device.type == "cuda":
        ready["device"] = describe(device, config)
    part = Part(station, runner, desk, ready)
    _warm_up(part, model, config.max_batch)
    grammars.warm_up()
    progress("warming up", 1.0)
    return part


def _mode(config: EngineConfig, device: torch.device) -> Mode:
    if config.weights == "auto":
        return "packed" if device.type == "cpu" else "bfloat16"
    if config.weights == "packed" and device.type != "cpu":
        raise EngineConfigError("engine.weights: packed weights are for CPUs; a GPU takes bfloat16 or float32")
    return config.weights


def _engine(config: EngineConfig, model: Decoder, device: torch.device, progress: Progress) -> tuple[KVCache, Runner]:
    """Return a cache for the model and what runs the two together."""
    pages = _pages(config, model.mode)
    if device.type == "cpu":
        cache = make_cache(config, model, "kv_memory_mib", pages, host_mib=config.swap_memory_mib)
        return cache, Runner(model, cache)
    cache = device_cache(config, model, pages, device)
    return cache, make_runner(config, model, cache, device, progress)


def _pages(config: EngineConfig, mode: str) -> str:
    if config.pages != "auto":
        return config.pages
    return "float32" if mode == "float32" else "bfloat16"


def _chat_ready(config: EngineConfig, settings: dict[str, object], model: Decoder, cache: KVCache) -> dict[str, object]:
    return {
        "model": config.model,
        "architecture": architecture_of(settings),
        "parameters": model.parameters,
        "context_tokens": min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        "weights": model.mode,
        "pages": str(cache.dtype).removeprefix("torch."),
        "kv_blocks": cache.num_blocks,
        "block_tokens": cache.block_tokens,
        "page_bytes_per_token": cache.bytes_per_token,
    }


def _warm_up(part: Part, model: Decoder, max_batch: int) -> None:
    """Run a growing batch of prompts and decodes, so that the first user pays for nothing and costs are known."""
    pool = part.station.pool
    limit = min(model.context_tokens, pool.num_blocks * pool.block_tokens // len(WARM_UP_PROMPTS))
    requests = []
    for index, length in enumerate(WARM_UP_PROMPTS[:max_batch]):
        tokens = [(index * 7919 + n) % model.vocab_size for n in range(min(length, max(limit - 1, 1)))]
        requests.append(
            Request(f"warm-up-{index}", "chat", tokens, len(tokens), BlockTable(pool, "warm-up"), limit=limit)
        )
    rehearse("chat", part, requests, WARM_UP_STEPS)

"""Builds an engine from a configuration: loads the models, sizes their caches and warms them up."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from msgspec import structs

from voxlane.engine.api import AUTO_MODEL, EngineConfig, Priority, Ready
from voxlane.engine.build.defaults import pages_of, settle_adapter, weights_of
from voxlane.engine.build.device import choose_device, describe, device_cache, make_runner, settle_for, trial
from voxlane.engine.build.listener_choice import choose_listener
from voxlane.engine.build.model_choice import choose_model
from voxlane.engine.build.model_part import (
    MODEL_KEYS,
    ModelPart,
    Progress,
    build_resources,
    check_models,
    check_task,
    make_cache,
    rehearse,
)
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.jobs.admission import Intake
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.kernels import native
from voxlane.engine.loop.core import Core
from voxlane.engine.loop.trace import Trace
from voxlane.engine.memory.blocks import DIGEST_BYTES, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.registry import ChatModel, architecture_of, chat_spec, load_model
from voxlane.engine.models.sampling_defaults import defaults_of
from voxlane.engine.runners.cuda.selfcheck import check_kernels
from voxlane.engine.runners.decoder import Runner
from voxlane.engine.schedule.plan import TEXT, Limits
from voxlane.engine.schedule.request import ModelName, Request
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.text.constraint import Grammars
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.adapter import SHIPPED, AdaptedWeights, Adapter, locate, shipped
from voxlane.engine.weights.files import OpenedWeights, open_weights
from voxlane.engine.weights.tensors import WeightFile

log = logging.getLogger(__name__)

WARM_UP_PROMPTS = (16, 96, 32, 16)
WARM_UP_STEPS = 3
"""Lengths of prompts that join one by one at start, and the steps after each: they run every kernel, and the cost model
learns what a row, a prompt token and a context token cost."""

WARM_UP_CROWD = (16, 512, 128, 1024, 32, 64, 16, 256, *[16] * 248)
WARM_UP_TOGETHER = (*[1] * 8, 8, 16, 32, 64, 64, 64)
"""The same for a GPU, where the second row costs more than the next hundred, and how many join at a time."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine that is ready to step, and its Ready message."""

    core: Core
    ready: Ready
    trace: Trace | None
    closers: tuple[Callable[[], object], ...] = ()
    parts: tuple[ModelPart, ...] = ()
    on_device: bool = False

    def rest(self) -> None:
        """End the threads that a fork would lose."""
        for part in self.parts:
            if part.rest is not None:
                part.rest()

    def wake(self) -> None:
        """Start again what the first requests need of them, and find what the last fork has kept."""
        for part in self.parts:
            if part.wake is not None:
                part.wake()

    def forget(self) -> None:
        """Drop what the last fork has kept."""
        for part in self.parts:
            if part.forget is not None:
                part.forget()

    def close(self) -> None:
        """End the threads beside the steps, so that the process can end; the trace first: a slow end is killed."""
        with contextlib.ExitStack() as ending:
            for close in reversed(self.closers):
                ending.callback(close)
            if self.trace is not None:
                ending.callback(self.trace.close)


class _Stages:
    """Forwards progress, and logs how long each stage of the start took."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._what = "looking around"
        self._begin = time.monotonic()

    def __call__(self, what: str, done: float) -> None:
        if what != self._what:
            self.end()
            self._what, self._begin = what, time.monotonic()
        self._progress(what, done)

    def end(self) -> None:
        """Log how long the stage took."""
        log.info('stage="%s" seconds=%.1f', self._what, time.monotonic() - self._begin)


def assemble(config: EngineConfig, progress: Progress = lambda what, done: None) -> Assembly:
    """Load the models and build the engine around them, or raise ModelError with one line for a person."""
    if not any(getattr(config, key) for key in MODEL_KEYS):
        raise EngineConfigError(f"{', '.join(f'engine.{key}' for key in MODEL_KEYS)} are all empty: nothing to run")
    check_models(config)
    stages = _Stages(progress)
    use_threads(config.threads)
    device = choose_device(config)
    config = settle_for(config, device)
    log.info("device=%s max_batch=%d step_budget_ms=%g", device, config.max_batch, config.step_budget_ms)
    chosen = choose_model(config, device, stages) if config.model == AUTO_MODEL else None
    if chosen is not None:
        config = replace(config, model=chosen.model)
    ears = choose_listener(config, device, stages) if config.asr_model == AUTO_MODEL else None
    if ears is not None:
        config = replace(config, asr_model=ears.model)
    config = settle_adapter(config)
    try:
        if device.type == "cuda":
            _try_kernels(config, device, stages)
        parts = _parts(config, device, stages)
    except torch.OutOfMemoryError as error:
        raise EngineConfigError(f"engine.device: {device} has too little free memory for the models") from error
    stages.end()
    if device.type == "cuda":
        torch.set_num_threads(1)  # the host's products are small, and waiting threads would spin
    limits = Limits(
        max_batch=config.max_batch,
        max_step_tokens=config.max_step_tokens,
        step_budget_s=config.step_budget_ms / 1e3,
        policy=config.policy,
        lookup_tokens=config.lookup_tokens,
    )
    trace = Trace(Path(config.trace)) if config.trace else None
    cloning = next((part.cloning for part in parts.values() if part.cloning is not None), None)
    core = Core(
        Scheduler({name: part.resources for name, part in parts.items()}, limits),
        {name: part.engine for name, part in parts.items()},
        {name: part.factory for name, part in parts.items()},
        clock=time.monotonic,
        max_waiting=config.max_waiting,
        trace=trace,
        cloning=cloning,
    )
    closers = [cloning.close if cloning is not None else None, *(part.close for part in parts.values())]
    ready = _ready(parts, _describe(config, device))
    if chosen is not None:
        ready = structs.replace(ready, chosen=chosen.reason, missed=chosen.missed)
    if ears is not None:
        ready = structs.replace(ready, asr_chosen=ears.reason, asr_missed=ears.missed)
    return Assembly(
        core, ready, trace, tuple(filter(None, closers)), tuple(parts.values()), on_device=device.type != "cpu"
    )


def _try_kernels(config: EngineConfig, device: torch.device, progress: Progress) -> None:
    """Raise KernelError if a kernel gives wrong results on this device."""
    spec = chat_spec(_open_chat_model(config, progress).config) if config.model else None
    progress("checking kernels", 0.0)
    check_kernels(trial(config, device, spec))
    torch.cuda.empty_cache()


def _open_chat_model(config: EngineConfig, progress: Progress) -> OpenedWeights:
    check_task("model", config.model, "chat")
    path = store.load_path(
        config.model,
        mirrors=config.mirrors,
        progress=lambda done: progress("fetching the model", done),
        checking=lambda done: progress("checking the model", done),
    )
    weights = open_weights(path)
    architecture_of(weights.config)
    return weights


def _adapted(config: EngineConfig, base: WeightFile, progress: Progress) -> WeightFile:
    """Return the chat model's weights, with the configured adapter merged if there is one."""
    if not config.adapter:
        return base
    own = shipped(config.model) if config.adapter == SHIPPED else None
    adapter = Adapter(own or locate(config.adapter, lambda done: progress("fetching the adapter", done)))
    names = map(json.dumps, (config.adapter, adapter.config.base))  # both are untrusted text
    log.info("adapter=%s trained_on=%s low_rank=%d whole=%d", *names, len(adapter.low_rank), len(adapter.replaced))
    return AdaptedWeights(base, adapter, tied=chat_spec(base.config).tied)


def _parts(config: EngineConfig, device: torch.device, progress: Progress) -> dict[ModelName, ModelPart]:
    """Load the models, the chat model last: on a GPU its cache takes a share of the memory that is left.

    On a CPU a chat model that is here is read meanwhile.
    """
    parts: dict[ModelName, ModelPart] = {}
    with ThreadPoolExecutor(1, "chat model") as beside:
        speaks = config.asr_model or config.tts_model
        early = device.type == "cpu" and config.model and speaks and store.present(config.model)
        chat = beside.submit(_open_chat, config, device, lambda what, done: None) if early else None
        _add_speech(parts, config, device, progress)
        if chat is not None:
            progress("loading the model", 0.5)
    if not config.model:
        return parts
    return {"chat": _chat_part(config, device, progress, chat.result() if chat is not None else None), **parts}


def _add_speech(
    parts: dict[ModelName, ModelPart], config: EngineConfig, device: torch.device, progress: Progress
) -> None:
    if config.asr_model or config.tts_model:
        # Imported here: an engine that only chats does not need these modules.
        from voxlane.engine.build.asr_tts import listening_part, speaking_part

        if config.asr_model:
            parts["asr"] = listening_part(config, device, progress)
        if config.tts_model:
            parts["tts"] = speaking_part(config, device, progress)
    if config.speech_model:
        from voxlane.engine.build.lfm2_audio import conversing_part

        parts["speech"] = conversing_part(config, device, progress)


def use_threads(wanted: int) -> None:
    """Set the number of threads: our kernels have their own, and torch's would compete with them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else every prompt would wake the tokenizer's own threads
    threads = wanted or len(os.sched_getaffinity(0))
    native.set_threads(threads)
    torch.set_num_threads(1 if native.load() else threads)


def _describe(config: EngineConfig, device: torch.device) -> str:
    if device.type == "cuda":
        return describe(device, config)
    return f"cpu, {native.description() if native.load() else f'torch, {torch.get_num_threads()} threads'}"


def _ready(parts: dict[ModelName, ModelPart], device: str) -> Ready:
    told: dict[str, object] = {
        "device": device,
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
        rates = {rate for rate in (told.get("speak_rate"), part.ready.get("speak_rate")) if rate}
        if len(rates) > 1:
            raise EngineConfigError(
                f"engine.speech_model and engine.tts_model speak at {sorted(map(str, rates))} samples a second:"
                " a conversation has one rate"
            )
        told |= part.ready
    return Ready(**told)  # type: ignore[arg-type]  # every part gives its own fields


def _open_chat(
    config: EngineConfig, device: torch.device, progress: Progress
) -> tuple[OpenedWeights, ChatModel, Tokenizer]:
    weights = _open_chat_model(config, progress)
    mode = weights_of(config, device.type)
    model = load_model(
        _adapted(config, weights, progress),
        mode,
        lambda done: progress("loading the model", done),
        device,
        context_tokens=config.context_tokens,
    )
    return weights, model, Tokenizer.from_weights(weights)


def _chat_part(
    config: EngineConfig,
    device: torch.device,
    progress: Progress,
    opened: tuple[OpenedWeights, ChatModel, Tokenizer] | None,
) -> ModelPart:
    weights, model, tokenizer = opened or _open_chat(config, device, progress)
    cache, runner = _engine(config, model, device, progress)
    # Blocks that an engine has filled serve the next fork: it need not read every conversation anew.
    kept = memoryview(mmap.mmap(-1, cache.num_blocks * DIGEST_BYTES)) if _shares(config, device) else None
    resources = build_resources(cache, prefix_cache=config.prefix_cache, abilities=TEXT, kept=kept)
    sampling = defaults_of(weights, model.parameters)
    log.info("sampling=%s", sampling)
    intake = Intake(
        tokenizer,
        resources.pool,
        vocabulary=model.vocab_size,
        context_tokens=model.context_tokens,
        draw_seed=lambda: secrets.randbits(63),
        sampling=sampling,
    )
    progress("warming up", 0.0)
    grammars = Grammars(tokenizer, model.vocab_size)
    beside = tuple(Priority) if runner.overlaps else ()
    readers = {priority: ThreadPoolExecutor(1, "prompts") for priority in beside}
    factory = ChatJobFactory(intake, tokenizer, grammars, readers)
    ready = _chat_ready(config, weights.config, model, cache) | {"sampling": sampling}
    part = ModelPart(
        resources,
        runner,
        factory,
        ready,
        close=factory.close,
        rest=grammars.rest,
        wake=resources.pool.recover,
        forget=resources.pool.forget_kept,
    )
    _warm_up(part, model, config.max_batch)
    grammars.warm_up()
    progress("warming up", 1.0)
    return part


def _shares(config: EngineConfig, device: torch.device) -> bool:
    """Return whether forks of this process may share the chat model's cache."""
    return config.standby and device.type == "cpu"


def _engine(config: EngineConfig, model: ChatModel, device: torch.device, progress: Progress) -> tuple[KVCache, Runner]:
    """Return a cache and a runner for the model."""
    pages = pages_of(config, device.type)
    if device.type == "cpu":
        shared = _shares(config, device)
        cache = make_cache(config, model, "kv_memory_mib", pages, host_mib=config.swap_memory_mib, shared=shared)
        return cache, Runner(model, cache)
    cache = device_cache(config, model, pages, device)
    return cache, make_runner(config, model, cache, device, progress)


def _chat_ready(
    config: EngineConfig, settings: dict[str, object], model: ChatModel, cache: KVCache
) -> dict[str, object]:
    return {
        "model": config.model,
        "adapter": config.adapter,
        "architecture": architecture_of(settings),
        "parameters": model.parameters,
        "context_tokens": min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        "weights": model.mode,
        "pages": str(cache.dtype).removeprefix("torch."),
        "kv_blocks": cache.num_blocks,
        "block_tokens": cache.block_tokens,
        "page_bytes_per_token": cache.bytes_per_token,
    }


def _warm_up(part: ModelPart, model: ChatModel, max_batch: int) -> None:
    """Run a growing batch of prompts and decodes: kernels are compiled and costs measured before the first request."""
    pool = part.resources.pool
    crowd = part.engine.overlaps
    lengths = (WARM_UP_CROWD if crowd else WARM_UP_PROMPTS)[:max_batch]
    limit = min(model.context_tokens, pool.num_blocks * pool.block_tokens // len(lengths))
    requests = []
    for index, length in enumerate(lengths):
        tokens = [(index * 7919 + n) % model.vocab_size for n in range(min(length, max(limit - 1, 1)))]
        requests.append(
            Request(f"warm-up-{index}", "chat", tokens, len(tokens), BlockTable(pool, "warm-up"), limit=limit)
        )
    rehearse("chat", part, requests, WARM_UP_STEPS, WARM_UP_TOGETHER if crowd else ())

"""What adds a model to an engine: its cache, its resources, its job factory, and a rehearsal of its steps."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from voxlane.engine.api import AUTO_MODEL, EngineConfig
from voxlane.engine.errors import EngineConfigError, StoreError
from voxlane.engine.jobs.factory import Cloning, JobFactory
from voxlane.engine.loop.execution import Engine, observe
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.memory.pages import PAGE_DTYPES, KVCache
from voxlane.engine.models.spec import ModelSpec
from voxlane.engine.runners.decoder import Outcome, TokenOutcome
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import PLAIN, Abilities, Limits, ModelResources, Row
from voxlane.engine.schedule.request import ModelName, Request
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.weights import store

Progress = Callable[[str, float], None]

MEBIBYTE = 1 << 20

CPU = torch.device("cpu")

MODEL_KEYS = {"model": "chat", "asr_model": "asr", "tts_model": "tts", "speech_model": "converse"}
"""The configuration's keys that name a model, and the task of each."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One model of an engine."""

    resources: ModelResources
    engine: Engine
    factory: JobFactory
    ready: dict[str, object] = field(default_factory=dict)  # its fields of Ready
    cloning: Cloning | None = None  # makes voices from recordings, if the model can speak with them
    close: Callable[[], object] | None = None  # ends its threads beside the steps, if it has any
    rest: Callable[[], object] | None = None  # ends threads that the next use starts again: a fork would lose them
    wake: Callable[[], object] | None = None  # makes a fork ready: starts them, finds what the last fork has kept
    forget: Callable[[], object] | None = None  # drops what the last fork has kept


class CachedModel(Protocol):
    """What a cache needs to know of a model."""

    spec: ModelSpec


def check_task(key: str, name: str, task: str) -> None:
    """Raise EngineConfigError if the catalog has the model for another task."""
    found = store.task_of(name)
    if found not in (None, task):
        raise EngineConfigError(
            f"engine.{key}: {name} is a model for {found}; `voxlane models list` shows those for {task}"
        )


def check_models(config: EngineConfig) -> None:
    """Raise EngineConfigError if one of the models does not exist or is for another task; nothing is loaded for it."""
    for key, task in MODEL_KEYS.items():
        name = getattr(config, key)
        if name in ("", AUTO_MODEL):
            continue
        try:
            store.check_name(name)
        except StoreError as error:
            raise EngineConfigError(f"engine.{key}: {error}") from error
        check_task(key, name, task)


def make_cache(
    config: EngineConfig,
    model: CachedModel,
    key: str,
    pages: str,
    *,
    host_mib: int = 0,
    least_tokens: int = 0,
    device: torch.device = CPU,
    shared: bool = False,
) -> KVCache:
    """Return a cache of the size in `key` of a settled configuration; raise if it cannot hold `least_tokens`."""
    dtype, block_tokens = PAGE_DTYPES[pages], config.block_tokens
    block_bytes = model.spec.cache_bytes_per_block(dtype, block_tokens)
    memory_mib: int = getattr(config, key)
    blocks = memory_mib * MEBIBYTE // block_bytes
    least = max(2, -(-least_tokens // block_tokens))
    if blocks < least:
        raise EngineConfigError(
            f"engine.{key}: {memory_mib} MiB hold {blocks} blocks of {block_bytes} bytes; "
            f"at least {-(-least * block_bytes // MEBIBYTE)} MiB are needed"
        )
    try:
        return KVCache(
            model.spec.pages,
            blocks,
            block_tokens,
            dtype,
            device,
            host_blocks=host_mib * MEBIBYTE // block_bytes,
            shared=shared,
        )
    except torch.OutOfMemoryError as error:
        raise EngineConfigError(f"engine.{key}: {memory_mib} MiB are not free on {device}") from error


def build_resources(
    cache: KVCache,
    *,
    prefix_cache: bool,
    encoder: CostModel | None = None,
    abilities: Abilities = PLAIN,
    kept: memoryview | None = None,
) -> ModelResources:
    """Return the resources of a model with this cache; its costs are not measured yet. `kept`: see BlockPool."""
    return ModelResources(
        BlockPool(
            cache.num_blocks,
            cache.block_tokens,
            key=secrets.token_bytes(32),
            prefix_cache=prefix_cache,
            kept=kept,
            state=cache.state,
        ),
        BlockPool(cache.host_blocks, cache.block_tokens, prefix_cache=False),
        CostModel(),
        encoder,
        _swap_block_s(cache),
        abilities,
    )


def _take_tokens(row: Row, outcome: Outcome) -> None:
    if isinstance(outcome, TokenOutcome):  # a clause has no tokens
        row.request.tokens += [choice.token for choice in outcome.choices]


def rehearse(
    name: ModelName,
    part: ModelPart,
    requests: Sequence[Request],
    steps: int,
    together: Sequence[int] = (),
    take: Callable[[Row, Outcome], None] = _take_tokens,
) -> None:
    """Run requests, which join one by one or so many `together`, for some steps after each join; learn the costs.

    `take` gives a request its outcome of a step.
    """
    resources, engine = part.resources, part.engine
    trial = Scheduler({name: resources}, Limits(max_batch=len(requests) or 1, max_step_tokens=1 << 20, policy="fcfs"))
    coming = iter(requests)
    for count in together or [1] * len(requests):
        for request in itertools.islice(coming, count):
            trial.add(request)
        for _ in range(steps):
            if not trial.ready():
                break
            load = trial.schedule(0.0).loads[name]
            begin = time.monotonic()
            outcomes = engine.run(load)
            observe(resources, load, engine.phases, time.monotonic() - begin)
            for row, outcome in zip(load.rows, outcomes, strict=True):
                take(row, outcome)
                if row.request.unit or len(row.request.tokens) >= row.request.limit:
                    trial.remove(row.request)
    for request in list(trial.requests.values()):
        trial.remove(request)
    resources.cost.anchor()
    if resources.encoder is not None:
        resources.encoder.anchor()


def _swap_block_s(cache: KVCache) -> float:
    """Measure how long one block takes to the host."""
    count = min(8, cache.num_blocks, cache.host_blocks)
    if count == 0:
        return 0.0
    pairs = [(block, block) for block in range(count)]
    cache.swap_out(pairs)  # the first pass touches the memory
    begin = time.monotonic()
    cache.swap_out(pairs)
    return (time.monotonic() - begin) / count

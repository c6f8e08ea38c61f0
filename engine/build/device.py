"""Prepares the chat model on a CUDA device: chooses the device, sizes the cache, and captures the steps."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass

import torch

from voxlane.codecs.extras import install_command
from voxlane.engine.api import EngineConfig
from voxlane.engine.build.defaults import pages_of, settle, weights_of
from voxlane.engine.build.model_part import MEBIBYTE, Progress
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.memory.pages import PAGE_DTYPES, KVCache
from voxlane.engine.models.registry import ChatModel
from voxlane.engine.models.spec import ModelSpec
from voxlane.engine.runners.cuda.decoder import CudaRunner
from voxlane.engine.runners.cuda.trial import STAND_IN, Trial

log = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)
"""The first generation with matrix units for bfloat16."""

CONTEXT_BYTES = 1 << 30
"""What the driver, the kernels and their workspaces take beside torch's own memory, in each process."""

_SMALLER = 7 / 8
"""If a cache does not fit after all, try this part of its size."""


def without_cuda() -> str:
    """Return why this machine has no usable device; "" if it has one."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if torch.version.cuda is None:  # ROCm's torch uses the name cuda too
        return "torch was built for another kind of GPU than CUDA's"
    if importlib.util.find_spec("triton") is None:
        return f"Triton is not installed ({install_command('gpu')})"
    found = torch.cuda.get_device_capability()
    if found < LEAST_CAPABILITY:
        needed = ".".join(map(str, LEAST_CAPABILITY))
        return f"{torch.cuda.get_device_name()} has compute capability {found[0]}.{found[1]}, {needed} is needed"
    return ""


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device of the models, or raise EngineConfigError if the configured one cannot be used."""
    missing = "" if config.device == "cpu" else without_cuda()
    if config.device == "cuda" and missing:
        raise EngineConfigError(f"engine.device: {missing}")
    if missing and torch.cuda.is_available():  # there is a GPU, so the reason for not using it is worth a log line
        log.warning("device=cpu reason=%s", missing)
    if config.device == "cpu" or missing:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def settle_for(config: EngineConfig, device: torch.device) -> EngineConfig:
    """Return the configuration with the device's defaults filled in."""
    total = gpu_memory(config, device).total if device.type == "cuda" else 0
    return settle(config, device.type, total // MEBIBYTE)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What an engine may use of a GPU, in bytes."""

    free: int
    total: int

    def part(self, engines: int, own: int) -> GpuMemory:
        """Return the part of one of several engines, of which it has taken `own` bytes.

        The engines start at the same time, so what is free now is no measure of what is left for each.
        """
        if engines == 1:
            return self
        part = self.total // engines
        return GpuMemory(min(self.free, max(part - own - CONTEXT_BYTES, 0)), part)


def gpu_memory(config: EngineConfig, device: torch.device) -> GpuMemory:
    """Return what an engine may use of a GPU."""
    whole = GpuMemory(*torch.cuda.mem_get_info(device))
    return whole.part(config.gpu_engines, torch.cuda.memory_reserved(device))


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How a device's free memory is divided, in bytes."""

    free: int
    step: int  # what the largest step takes beside weights and cache
    block: int
    blocks: int


def plan_cache(config: EngineConfig, spec: ModelSpec, pages: str, free_bytes: int) -> CachePlan:
    """Return how many blocks fit into the configured share of free memory, less what a step needs."""
    block = spec.cache_bytes_per_block(PAGE_DTYPES[pages], config.block_tokens)
    step = step_memory_bytes(config, spec)
    return CachePlan(free_bytes, step, block, max(int(free_bytes * config.gpu_memory_share) - step, 0) // block)


def device_cache(config: EngineConfig, model: ChatModel, pages: str, device: torch.device) -> KVCache:
    """Return a cache of the planned size on the device, or raise EngineConfigError."""
    torch.cuda.empty_cache()
    plan = plan_cache(config, model.spec, pages, gpu_memory(config, device).free)
    blocks = plan.blocks
    while blocks >= 2:
        if cache := _cache_beside_a_step(config, model, pages, device, blocks, plan):
            if blocks < plan.blocks:
                log.warning("cache_blocks=%d planned=%d reason=out_of_memory", blocks, plan.blocks)
            return cache
        torch.cuda.empty_cache()
        blocks = int(blocks * _SMALLER)
    raise EngineConfigError(
        f"engine.gpu_memory_share: {config.gpu_memory_share:g} of the {plan.free // MEBIBYTE} MiB that are free leave "
        f"no room for a KV cache beside the {plan.step // MEBIBYTE} MiB of a step; a larger share, a smaller "
        "engine.max_step_tokens or a smaller model would"
    )


def _cache_beside_a_step(
    config: EngineConfig, model: ChatModel, pages: str, device: torch.device, blocks: int, plan: CachePlan
) -> KVCache | None:
    """Return a cache if it fits beside a step, else None: other processes may take memory meanwhile."""
    try:
        cache = KVCache(
            model.spec.pages,
            blocks,
            config.block_tokens,
            PAGE_DTYPES[pages],
            device,
            host_blocks=config.swap_memory_mib * MEBIBYTE // plan.block,
        )
        torch.empty(plan.step, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None
    return cache


def step_memory_bytes(config: EngineConfig, spec: ModelSpec) -> int:
    """Return about what the largest step takes beside weights and cache."""
    return spec.step_bytes(config.max_step_tokens, config.max_batch)


def trial(config: EngineConfig, device: torch.device, spec: ModelSpec | None = None) -> Trial:
    """Return what the kernels of a settled configuration are checked on; without a chat model, a stand-in's sizes."""
    dtype = torch.bfloat16 if weights_of(config, device.type) == "bfloat16" else torch.float32
    pages, size = PAGE_DTYPES[pages_of(config, device.type)], config.block_tokens
    ears, voice = bool(config.asr_model), config.tts_model == "hibari"
    talker = bool(config.tts_model) and not voice
    dialogue = bool(config.speech_model)
    return Trial(spec or STAND_IN, dtype, pages, size, device, ears=ears, voice=voice, talker=talker, dialogue=dialogue)


def make_runner(
    config: EngineConfig, model: ChatModel, cache: KVCache, device: torch.device, progress: Progress
) -> CudaRunner:
    """Return a runner with captured decode steps and compiled kernels."""
    context_tokens = min(model.context_tokens, cache.num_blocks * cache.block_tokens)
    runner = CudaRunner(model, cache, device, max_batch=config.max_batch, context_tokens=context_tokens)
    progress("compiling steps with prompts", 0.0)
    runner.rehearse(config.max_step_tokens, lambda done: progress("compiling steps with prompts", done))
    progress("capturing decode steps", 0.0)
    runner.capture(lambda done: progress("capturing decode steps", done), config.max_step_tokens)
    return runner


def describe(device: torch.device, config: EngineConfig) -> str:
    """Return a description of the device, for people."""
    return f"cuda, {torch.cuda.get_device_name(device)}, graphs up to {config.max_batch} rows"

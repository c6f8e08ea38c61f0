"""The chat model on a CUDA device: which device, how large its cache, and the runner with its graphs captured."""

from __future__ import annotations

import importlib.util
import logging

import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.cache import PAGE_DTYPES, KVCache
from voxlane.engine.cuda.runner import CudaRunner
from voxlane.engine.models import Decoder
from voxlane.engine.parts import MEBIBYTE, EngineConfigError, Progress

log = logging.getLogger(__name__)

BLOCK_TOKENS = 64
"""Tokens in a block if the configuration does not say: 16,500 tok/s on the workload of 256, where 16 have 14,600."""

_SMALLER = 7 / 8
"""A cache that does not fit after all is tried again at this part of its size."""


def choose_device(config: EngineConfig) -> torch.device:
    """Return where the chat model runs, or raise EngineConfigError if it cannot run where the configuration says."""
    if config.device == "cpu":
        return torch.device("cpu")
    missing = ""
    if not torch.cuda.is_available():
        missing = "torch sees no CUDA device"
    elif importlib.util.find_spec("triton") is None:
        missing = "Triton is not installed (pip install 'voxlane[gpu]')"
    if not missing:
        return torch.device("cuda", torch.cuda.current_device())
    if config.device == "cuda":
        raise EngineConfigError(f"engine.device: {missing}")
    return torch.device("cpu")


def device_cache(config: EngineConfig, model: Decoder, pages: str, device: torch.device) -> KVCache:
    """Return a cache of what is free on the device, less what a step needs, or raise EngineConfigError."""
    dtype, block_tokens = PAGE_DTYPES[pages], config.block_tokens or BLOCK_TOKENS
    block_bytes = model.kv_bytes_per_token(dtype) * block_tokens
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    step_bytes = step_memory_bytes(config, model)
    blocks = (int(free_bytes * config.gpu_memory_share) - step_bytes) // block_bytes
    while blocks >= 2:
        try:
            return KVCache(
                *(model.layers, model.kv_heads, model.head_dim, blocks, block_tokens, dtype, device),
                host_blocks=config.swap_memory_mib * MEBIBYTE // block_bytes,
            )
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            log.warning("cache_blocks=%d fit=no", blocks)
            blocks = int(blocks * _SMALLER)
    raise EngineConfigError(
        f"engine.gpu_memory_share: {config.gpu_memory_share:g} of the {free_bytes // MEBIBYTE} MiB that are free leave "
        f"no room for a KV cache beside the {step_bytes // MEBIBYTE} MiB of a step"
    )


def step_memory_bytes(config: EngineConfig, model: Decoder) -> int:
    """Return about what the largest step takes beside weights and cache: its tokens' activations, its rows' logits."""
    shape = model.config
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    columns = 2 * heads + 3 * shape.intermediate_size + 4 * shape.hidden_size
    return 4 * (config.max_step_tokens * columns + 2 * config.max_batch * shape.vocab_size)


def make_runner(
    config: EngineConfig, model: Decoder, cache: KVCache, device: torch.device, progress: Progress
) -> CudaRunner:
    """Return a runner whose decode steps are captured, and whose others are compiled."""
    context_tokens = min(model.context_tokens, cache.num_blocks * cache.block_tokens)
    runner = CudaRunner(model, cache, device, max_batch=config.max_batch, context_tokens=context_tokens)
    progress("compiling steps with prompts", 0.0)
    runner.rehearse(config.max_step_tokens, lambda done: progress("compiling steps with prompts", done))
    progress("capturing decode steps", 0.0)
    runner.capture(lambda done: progress("capturing decode steps", done))
    return runner


def describe(device: torch.device, config: EngineConfig) -> str:
    """Return what runs the chat model, for people."""
    return f"cuda, {torch.cuda.get_device_name(device)}, graphs up to {config.max_batch} rows"

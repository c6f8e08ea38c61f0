"""Checks whether an engine could run on this machine: the child process behind `voxlane doctor`.

It is started as `python -m voxlane.engine.build.doctor` with a Configure message on its standard input, and writes one
JSON object per finding and line, as soon as it is found. It loads no model and fetches nothing.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from voxlane.engine.api import AUTO_MODEL, Configure, EngineConfig, decode
from voxlane.engine.build.assemble import use_threads
from voxlane.engine.build.defaults import DEFAULTS, pages_of, settle_adapter, weights_of
from voxlane.engine.build.device import (
    CachePlan,
    choose_device,
    gpu_memory,
    plan_cache,
    settle_for,
    step_memory_bytes,
    trial,
    without_cuda,
)
from voxlane.engine.build.listener_choice import rank_listeners
from voxlane.engine.build.model_choice import rank_models
from voxlane.engine.build.model_part import MEBIBYTE, check_task
from voxlane.engine.build.qwen3_tts import is_talker
from voxlane.engine.errors import ModelError, StoreError
from voxlane.engine.kernels import native, selfcheck
from voxlane.engine.memory.pages import PAGE_DTYPES
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.registry import chat_spec
from voxlane.engine.models.spec import ModelSpec
from voxlane.engine.runners.cuda.selfcheck import agreements
from voxlane.engine.weights import store
from voxlane.engine.weights.adapter import SHIPPED, AdaptedWeights, Adapter, locate, shipped
from voxlane.engine.weights.files import open_weights

CONVERSATION_TOKENS = 2048
"""Tokens of a conversation, some ten minutes of talk: the report counts the cache in conversations."""

PACKAGED_VOICE = "hibari"
"""The voice that is a Python package and no file of the store."""

BYTES: Mapping[Mode, float] = {"packed": 0.6, "bfloat16": 2, "float32": 4}
"""Bytes of a weight: packed ones are 4 or 8 bits and their share of a scale."""

State = Literal["good", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    state: State  # bad: the engine would not start, or give wrong results
    detail: str
    advice: str = ""  # what to do about it


def examine(config: EngineConfig) -> Iterator[Finding]:
    """Check everything an engine with this configuration needs; cheap and decisive checks first."""
    yield from _system()
    try:
        device = choose_device(config)
    except ModelError as error:
        yield Finding("device", "engine.device", "bad", str(error), 'set engine.device = "auto" or "cpu"')
        return
    yield from _device(config, device)
    use_threads(config.threads)
    settled = settle_for(config, device)
    if config.model == AUTO_MODEL:
        models, reason = rank_models(settled, device)
        settled = replace(settled, model=models[0].name)
        yield Finding("models", "auto", "good", f"{settled.model}: {reason}", "engine.model names another")
    if config.asr_model == AUTO_MODEL:
        names, reason = rank_listeners(settled, device)
        settled = replace(settled, asr_model=names[0])
        yield Finding("models", "auto asr", "good", f"{names[0]}: {reason}", "engine.asr_model names another")
    settled = settle_adapter(settled)
    spec: ModelSpec | None = None
    for finding, found in itertools.chain(_models(settled), _adapter(settled)):
        spec = found or spec
        yield finding
    yield from _kernels(settled, device, spec)
    yield from _settings(config, settled, device)
    yield from _memory(settled, device, spec)


def _system() -> Iterator[Finding]:
    where = f"{platform.system()} {platform.machine()}"
    yield Finding("system", "python", "good", f"{platform.python_version()} on {where}")
    yield Finding("system", "torch", "good", torch.__version__)
    triton = _version("triton")
    yield Finding("system", "triton", "good" if triton else "note", triton or "not installed; only a GPU needs it")
    yield Finding("system", "cores", "good", f"{len(os.sched_getaffinity(0))} for this process")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _device(config: EngineConfig, device: torch.device) -> Iterator[Finding]:
    if device.type == "cpu":
        reason = "as engine.device says" if config.device == "cpu" else without_cuda()
        yield Finding("device", "chosen", "good", f"cpu: {reason}")
        return
    about = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    yield Finding("device", "chosen", "good", f"{device}: {about.name}")
    yield Finding("device", "capability", "good", f"{about.major}.{about.minor}, {about.multi_processor_count} SMs")
    yield Finding("device", "driver", "good", f"{_driver()}, CUDA {torch.version.cuda}")
    yield Finding("device", "memory", "good", f"{free // MEBIBYTE:,} of {total // MEBIBYTE:,} MiB are free")


def _driver() -> str:
    """Return the version that the kernel driver reports."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return "unknown"
    return next((word for word in told if word[:1].isdigit() and "." in word), "unknown")


def _models(config: EngineConfig) -> Iterator[tuple[Finding, ModelSpec | None]]:
    for key, task in (("model", "chat"), ("asr_model", "asr"), ("tts_model", "tts")):
        name: str = getattr(config, key)
        if not name:
            yield Finding("models", task, "note", f"none: engine.{key} is empty"), None
        elif name == PACKAGED_VOICE and task == "tts":
            yield _packaged_voice(), None
        else:
            try:
                yield _model(key, task, name)
            except ModelError as error:
                advice = f"`voxlane models list` shows names for engine.{key}"
                yield Finding("models", task, "bad", str(error), advice), None


def _packaged_voice() -> Finding:
    version = _version("hibari-tts")
    if version:
        return Finding("models", "tts", "good", f"{PACKAGED_VOICE}, package hibari-tts {version}")
    return Finding("models", "tts", "bad", "the package hibari-tts is missing", "pip install hibari-tts")


def _model(key: str, task: str, name: str) -> tuple[Finding, ModelSpec | None]:
    check_task(key, name, task)
    try:
        path = store.resolve(name, pull_missing=False)
    except ModelError:
        if store.task_of(name) is None and not name.startswith("hf:"):
            raise  # a path: nothing will fetch it
        advice = f"`voxlane models pull {name}` fetches it now"
        return Finding("models", task, "note", f"{name} is not here: the first start fetches it", advice), None
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    spec = None
    if task == "chat":
        spec = chat_spec(open_weights(path).config)
    return Finding("models", task, "good", f"{name}, {size / 1e6:,.0f} MB"), spec


def _adapter(config: EngineConfig) -> Iterator[tuple[Finding, ModelSpec | None]]:
    """Check that the adapter fits the chat model, if both are on this machine."""
    if not config.adapter or not config.model:
        return
    try:
        weights = open_weights(store.resolve(config.model, pull_missing=False))
        tied = chat_spec(weights.config).tied
    except ModelError:
        return  # _models reported it
    try:
        own = shipped(config.model) if config.adapter == SHIPPED else None
        adapter = Adapter(own or locate(config.adapter, pull_missing=False))
        spec = chat_spec(AdaptedWeights(weights, adapter, tied=tied).config)
    except StoreError as error:
        state: State = "note" if config.adapter.startswith("hf:") else "bad"  # the first start fetches it
        yield Finding("models", "adapter", state, str(error)), None
    except ModelError as error:
        advice = 'set engine.adapter to a directory that PEFT saved for this model, or to ""'
        yield Finding("models", "adapter", "bad", str(error), advice), None
    else:
        trained = f", trained on {adapter.config.base}" if adapter.config.base else ""
        told = f"{config.adapter}: changes {len(adapter.low_rank)} matrices, replaces {len(adapter.replaced)} tensors"
        yield Finding("models", "adapter", "good", told + trained), spec


def _kernels(config: EngineConfig, device: torch.device, spec: ModelSpec | None) -> Iterator[Finding]:
    if device.type == "cpu":
        library = native.load()
        if library is None:
            advice = "install g++ or clang++ (Debian, Ubuntu: apt install g++)"
            yield Finding("kernels", "native", "note", f"torch serves, which is slow: {native.reason()}", advice)
            return
        yield Finding("kernels", "native", "good", native.description())
        found = selfcheck.agreements(library)
    else:
        found = agreements(trial(config, device, spec))
    for each in found:
        detail = each.failure or f"error {each.error:.1e}, at most {each.tolerance:.1e}"
        advice = "" if each.good else 'please report this; engine.device = "cpu" works meanwhile'
        yield Finding("kernels", each.name, "good" if each.good else "bad", detail, advice)


def _settings(config: EngineConfig, settled: EngineConfig, device: torch.device) -> Iterator[Finding]:
    types = f"{weights_of(settled, device.type)}, pages {pages_of(settled, device.type)}"
    yield Finding("settings", "weights", "good", types)
    usual = f"default on a {'GPU' if device.type == 'cuda' else 'CPU'}"
    for key in DEFAULTS[device.type]:
        reason = "as configured" if getattr(config, key) else usual
        yield Finding("settings", key, "good", f"{getattr(settled, key):g} ({reason})")


def _memory(config: EngineConfig, device: torch.device, spec: ModelSpec | None) -> Iterator[Finding]:
    if spec is None:
        yield Finding("memory", "chat cache", "note", "not known without the chat model's file")
        return
    weights_mib = int(spec.parameters * BYTES[weights_of(config, device.type)]) // MEBIBYTE
    speech_mib = config.asr_memory_mib if config.asr_model else 0
    if config.tts_model and _speaks_by_codec(config.tts_model):
        speech_mib += config.tts_memory_mib
    if config.speech_model:
        speech_mib += config.speech_memory_mib
    plan = _plan(config, device, spec, (weights_mib + speech_mib) * MEBIBYTE)
    first = f"chat weights {weights_mib:,} MiB, speech cache {speech_mib:,} MiB, a step {plan.step // MEBIBYTE:,} MiB"
    yield Finding("memory", "taken first", "good", first)
    tokens = plan.blocks * config.block_tokens
    key = "gpu_memory_share" if device.type == "cuda" else "kv_memory_mib"
    told = f"{plan.blocks * plan.block // MEBIBYTE:,} MiB, {plan.blocks:,} blocks, {tokens:,} tokens: "
    told += f"{tokens // CONVERSATION_TOKENS:,} conversations of {CONVERSATION_TOKENS:,} tokens"
    enough = plan.blocks >= 2
    advice = "" if enough else f"raise engine.{key} or lower engine.max_step_tokens"
    yield Finding("memory", "chat cache", "good" if enough else "bad", f"{told} (engine.{key})", advice)
    if device.type == "cpu":
        yield from _host_memory(config, weights_mib + speech_mib)


def _speaks_by_codec(name: str) -> bool:
    """Return whether a voice that is here is a codec language model, which has a cache of its own."""
    try:
        return is_talker(store.resolve(name, pull_missing=False))
    except StoreError:
        return False  # _models reported it


def _plan(config: EngineConfig, device: torch.device, spec: ModelSpec, taken_bytes: int) -> CachePlan:
    pages = pages_of(config, device.type)
    if device.type == "cuda":
        return plan_cache(config, spec, pages, gpu_memory(config, device).free - taken_bytes)
    room = config.kv_memory_mib * MEBIBYTE
    block = spec.cache_bytes_per_block(PAGE_DTYPES[pages], config.block_tokens)
    return CachePlan(room, step_memory_bytes(config, spec), block, room // block)


def _host_memory(config: EngineConfig, others_mib: int) -> Iterator[Finding]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    free_mib = next((int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if free_mib is None:
        return
    wanted = config.kv_memory_mib + config.swap_memory_mib + others_mib
    short = wanted > free_mib
    advice = "lower engine.kv_memory_mib or engine.swap_memory_mib" if short else ""
    told = f"{wanted:,} MiB at most with swap, {free_mib:,} MiB are free"
    yield Finding("memory", "host", "note" if short else "good", told, advice)


def main() -> int:
    """Check the configuration of the Configure message on standard input; write findings to standard output."""
    logging.basicConfig(level=logging.ERROR)
    message = decode(sys.stdin.buffer.read())
    assert isinstance(message, Configure)
    try:
        for finding in examine(message.config):
            _tell(finding)
    except ModelError as error:
        _tell(Finding("settings", "engine", "bad", str(error), "`voxlane check-config` shows every key"))
    return 0


def _tell(finding: Finding) -> None:
    print(json.dumps(asdict(finding)), flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""The defaults of settings that depend on the kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voxlane.engine.api import AUTO_ADAPTER, EngineConfig
from voxlane.engine.errors import EngineConfigError
from voxlane.engine.models.loading import Mode
from voxlane.engine.weights.adapter import SHIPPED, shipped

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "block_tokens": 16,
        "max_batch": 16,
        "max_step_tokens": 512,
        "step_budget_ms": 60.0,
        "asr_memory_mib": 128,
        # Six minutes of speech with a model of 1.7B.
        "tts_memory_mib": 512,
        "speech_memory_mib": 512,
    },
    "cuda": {
        # 16,500 tok/s on the workload of 256 requests; blocks of 16 gave 14,600.
        "block_tokens": 64,
        # Twice the rows take a decode step of a small model far less than twice the time.
        "max_batch": 256,
        "max_step_tokens": 4096,
        # 256 decodes of a model of 0.6B take 6 ms. A smaller budget would leave rows out, and only a step with all
        # rows is planned ahead. A critical request waits no longer than this.
        "step_budget_ms": 10.0,
        # Encoder states of some 130 streams of a large Whisper, 30 s each.
        "asr_memory_mib": 4096,
        # 64 voices of a model of 1.7B, a minute and a half each.
        "tts_memory_mib": 8192,
        # 200 conversations of five minutes with a model of 1.5B.
        "speech_memory_mib": 8192,
    },
}
"""The values of settings that are zero in the configuration, by the kind of device."""


SPEECH_SHARE = 16
"""Without a setting, a speech model's cache takes at most 1 / SPEECH_SHARE of a GPU's memory."""


def settle(config: EngineConfig, kind: str, device_mib: int = 0) -> EngineConfig:
    """Return the configuration with every zero that means "choose" replaced by the choice for a kind of device.

    `device_mib` is a GPU's whole memory; a small GPU gives less to speech.
    """
    chosen = {key: value for key, value in DEFAULTS[kind].items() if not getattr(config, key)}
    for key in {"asr_memory_mib", "tts_memory_mib", "speech_memory_mib"} & chosen.keys() if device_mib else ():
        chosen[key] = min(chosen[key], max(device_mib // SPEECH_SHARE, 1))
    return replace(config, **chosen)


def settle_adapter(config: EngineConfig) -> EngineConfig:
    """Return the configuration with the adapter that "auto" means for its chat model."""
    if config.adapter != AUTO_ADAPTER:
        return config
    return replace(config, adapter=SHIPPED if shipped(config.model) else "")


def weights_of(config: EngineConfig, kind: str) -> Mode:
    """Return the type of the chat model's weights on a kind of device, or raise EngineConfigError."""
    if config.weights == "auto":
        return "packed" if kind == "cpu" else "bfloat16"
    if config.weights == "packed" and kind != "cpu":
        raise EngineConfigError("engine.weights: packed weights are for CPUs; a GPU takes bfloat16 or float32")
    return config.weights


def pages_of(config: EngineConfig, kind: str) -> str:
    """Return the element type of the chat model's pages on a kind of device."""
    if config.pages != "auto":
        return config.pages
    return "float32" if weights_of(config, kind) == "float32" else "bfloat16"

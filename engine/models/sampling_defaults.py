"""A chat model's default sampling parameters: from the model's own files, else by its size.

A directory of safetensors has them in generation_config.json, a GGUF file in general.sampling.*, as llama.cpp writes
them. A value that is out of its range is ignored and logged: it is a recommendation, and no reason not to start.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from voxlane.engine.api import SamplingDefaults, SamplingParams
from voxlane.engine.weights.files import OpenedWeights
from voxlane.engine.weights.gguf import GGUFFile
from voxlane.engine.weights.safetensors import SafetensorsDirectory

log = logging.getLogger(__name__)

SMALL_PARAMETERS = 3_000_000_000
SMALL_TEMPERATURE, LARGE_TEMPERATURE = 0.3, 0.7
"""A model with fewer parameters rambles at the usual temperature: its second choices are too often wrong."""

GENERATION_CONFIG = "generation_config.json"
GGUF_PREFIX = "general.sampling."

_GGUF_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_k": (0, 1 << 24),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
_DIGITS = 6
"""Decimals to which numbers are rounded: 0.95 as a 32-bit float is 0.949999988."""


def defaults_of(weights: OpenedWeights, parameters: int) -> SamplingDefaults:
    """Return what a model's files recommend, completed by defaults for its size."""
    source, said = _said(weights)
    usual = SMALL_TEMPERATURE if parameters < SMALL_PARAMETERS else LARGE_TEMPERATURE
    found = {name: value for name, value in said.items() if _is_sound(source, name, value)}
    numbers: dict[str, Any] = {
        name: round(value) if name == "top_k" else round(float(value), _DIGITS) for name, value in found.items()
    }
    return SamplingDefaults(**{"temperature": usual, **numbers}, source=source if numbers else "")


def filled(sampling: SamplingParams, defaults: SamplingDefaults) -> SamplingParams:
    """Return the parameters with the model's values where the request left them open.

    A temperature of 0 that the request asks for stays greedy, whatever the model recommends.
    """
    if not sampling.unset:
        return sampling
    greedy = sampling.temperature == 0 and "temperature" not in sampling.unset
    own: dict[str, Any] = {} if greedy else {name: getattr(defaults, name) for name in sampling.unset}
    return structs.replace(sampling, **own, unset=())


def _said(weights: OpenedWeights) -> tuple[str, dict[str, Any]]:
    """Return the name of the source of a model's recommendations, and those that have a value."""
    match weights:
        case GGUFFile():
            found = {name: weights.metadata.get(GGUF_PREFIX + key) for key, name in _GGUF_NAMES.items()}
            return f"{GGUF_PREFIX}*", {name: value for name, value in found.items() if value is not None}
        case SafetensorsDirectory():
            return GENERATION_CONFIG, _generation_config(weights)
        case _:
            return "", {}


def _generation_config(weights: SafetensorsDirectory) -> dict[str, Any]:
    try:
        values = json.loads((weights.path / GENERATION_CONFIG).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s cannot be read (%s): the model's size decides", GENERATION_CONFIG, type(error).__name__)
        return {}
    if not isinstance(values, dict):
        log.warning("%s is no JSON object: the model's size decides", GENERATION_CONFIG)
        return {}
    said = {name: values[name] for name in _RANGES if values.get(name) is not None}
    # As in the library that writes this file: without do_sample there is no temperature, and a missing one is 1.
    match values.get("do_sample"):
        case False:
            said["temperature"] = 0.0
        case True:
            said.setdefault("temperature", 1.0)
    return said


def _is_sound(source: str, name: str, value: object) -> bool:
    least, most = _RANGES[name]
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:  # also false for NaN
        return True
    log.warning("%s %s is not a number between %g and %g: left out", source, name, least, most)
    return False

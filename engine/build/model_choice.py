"""Chooses the chat model for `engine.model = "auto"` on this machine, and says why.

On a CPU the measured speed and the free memory decide among three models of the catalog: the largest whose first word
is heard within `engine.first_word_ms`, else the largest that writes faster than a voice speaks. On a GPU it is the
largest model that the user has pulled and that fits, else the largest of the three. If a file cannot be fetched, the
next smaller model is taken, and `ModelChoice.missed` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.build.device import gpu_memory
from voxlane.engine.build.machine import free_memory_bytes, weights_per_second
from voxlane.engine.errors import ModelError, StoreError
from voxlane.engine.models.registry import chat_spec
from voxlane.engine.weights import store
from voxlane.engine.weights.catalog import CatalogModel, load_catalog
from voxlane.engine.weights.files import open_weights

log = logging.getLogger(__name__)

LEAST_TOKENS_S = {
    "qwen2.5-coder-1.5b-instruct": 8.0,
    "qwen2.5-coder-0.5b-instruct": 8.0,
    "smollm2-135m-instruct": 0.0,
}
"""The models that `auto` chooses from, best first, and the tokens a second each must write to be chosen.

Speech takes about 4 tokens a second, and hearing and speaking share the cores. The smallest one seldom makes sense.
"""

HEARD_S = 0.43
FIRST_TOKENS = 5.0
"""What passes before a reply's first word is heard: a time for every model, and so many tokens at its speed alone.
benchmarks/voice_to_voice.py gave 0.54 s with the model of 0.5B and 0.77 s with that of 1.5B on two cores, which write
47 and 15 tokens a second there.
"""

EFFICIENCY = 0.75
"""A model's tokens a second as a share of what its matrix products alone would allow: attention, norms and sampling
take the rest."""

PACKED_SHARE = 1.25
"""Memory of packed weights relative to their file: some types are kept in wider groups than in the file."""

SPEECH_BYTES = 900 << 20
"""What the engine needs beside the chat model and its cache: torch, the listening and the speaking model."""

DEVICE_SHARE = 0.6
"""The part of a GPU's free memory that weights may take: the rest is for the cache and the steps."""

_BFLOAT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model by its catalog or hub name, and two sentences for the person who started the engine."""

    model: str
    reason: str
    missed: str = ""  # why a better model was not taken; "": nothing went wrong


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that could be chosen."""

    name: str
    parameters: int
    size: int  # bytes of its files
    least_tokens_s: float


Progress = Callable[[str, float], None]
Fetch = Callable[[Candidate], object]
"""Fetches a model if it is missing, or raises StoreError."""


def choose_model(config: EngineConfig, device: torch.device, progress: Progress) -> ModelChoice:
    """Choose a model for a settled configuration and fetch it, or raise StoreError if none can be had."""
    progress("measuring this machine", 0.0)
    models, reason = rank_models(config, device)

    def fetch(model: Candidate) -> None:
        what = f"fetching {model.name}, {model.size / 1e6:.0f} MB"
        store.resolve(model.name, mirrors=config.mirrors, progress=lambda done: progress(what, done))

    return take_first(models, reason, fetch)


def rank_models(config: EngineConfig, device: torch.device) -> tuple[list[Candidate], str]:
    """Return the models to try on a device, best first, and the reason for the first."""
    if device.type == "cuda":
        return for_gpu(candidates(), pulled_models(), gpu_memory(config, device).free)
    cache_bytes = (config.kv_memory_mib + config.swap_memory_mib) << 20
    speed = weights_per_second(config.threads)
    return for_cpu(candidates(), speed, free_memory_bytes(), cache_bytes, config.first_word_ms)


def candidates() -> list[Candidate]:
    """Return the models of the catalog that `auto` chooses from, best first."""
    catalog = load_catalog()
    return [_candidate(catalog[name], least) for name, least in LEAST_TOKENS_S.items()]


def _candidate(model: CatalogModel, least: float) -> Candidate:
    return Candidate(model.name, model.parameters, model.size, least)


def for_cpu(
    models: Sequence[Candidate], weights_s: float, free_bytes: int, cache_bytes: int, first_word_ms: float
) -> tuple[list[Candidate], str]:
    """Return the models to try on a CPU, best first, and the reason for the first. Pure."""
    passed_over, last = [], len(models) - 1
    speeds = [EFFICIENCY * weights_s / model.parameters for model in models]
    words_ms = [first_word_s(speed) * 1e3 for speed in speeds]
    for place, model in enumerate(models):
        needed = int(model.size * PACKED_SHARE) + cache_bytes + SPEECH_BYTES
        soon = words_ms[place] <= first_word_ms
        # Where no model answers in time, the middle one makes more sense than the last, if it keeps up with the voice.
        bearable = place == last - 1 and speeds[place] >= model.least_tokens_s
        if needed > free_bytes and place != last:
            passed_over.append(f"{model.name} needs {needed / 1e9:.1f} GB and {free_bytes / 1e9:.1f} are free")
        elif soon or bearable or place == last:
            told = f"its first word is heard about {words_ms[place]:.0f} ms after a person's last one on this machine"
            return list(models[place:]), "; ".join([told, *passed_over])
        else:
            passed_over.append(f"{model.name} would take {words_ms[place]:.0f}")
    raise ValueError("there must be a model to choose")


def first_word_s(tokens_s: float) -> float:
    """Return how long after a person's last sound a model is heard that writes so many tokens a second."""
    return HEARD_S + FIRST_TOKENS / tokens_s


def for_gpu(models: Sequence[Candidate], pulled: Sequence[Candidate], free_bytes: int) -> tuple[list[Candidate], str]:
    """Return the models to try on a GPU, best first, and the reason for the first. Pure."""
    room = DEVICE_SHARE * free_bytes
    fitting = [model for model in pulled if model.parameters * _BFLOAT16_BYTES <= room]
    if fitting:
        largest = max(fitting, key=lambda model: model.parameters)
        smaller = [model for model in models if model.parameters < largest.parameters]
        return [largest, *smaller], "it is the largest model on this machine that fits the GPU"
    fetched = [model for model in models if model.parameters * _BFLOAT16_BYTES <= room] or list(models[-1:])
    return fetched, "it is the largest of the catalog's models that fits the GPU"


def take_first(models: Sequence[Candidate], reason: str, fetch: Fetch) -> ModelChoice:
    """Fetch the first model that can be fetched; raise the last StoreError if none can."""
    failures: list[str] = []
    for model in models:
        try:
            fetch(model)
        except StoreError as error:
            log.warning("model=%s not fetched: %s", model.name, error)
            failures.append(f"{model.name} could not be fetched ({error})")
            if model is models[-1]:
                raise
            continue
        if failures:
            return ModelChoice(model.name, "it is the best model that is here", "; ".join(failures))
        return ModelChoice(model.name, reason)
    raise ValueError("there must be a model to choose")


def pulled_models() -> list[Candidate]:
    """Return the chat models that the user has pulled, from the catalog or from a hub."""
    found = [
        _candidate(listing.model, 0.0)
        for listing in store.list_models()
        if listing.path is not None and listing.model.task == "chat"
    ]
    for name, folder in store.hub_models():
        parameters = _chat_parameters(folder)
        if parameters:
            found.append(Candidate(name, parameters, 0, 0.0))
    return found


def _chat_parameters(folder: Path) -> int:
    """Return how many parameters the chat model in a folder has; 0 if it is no supported chat model."""
    try:
        return chat_spec(open_weights(folder).config).parameters
    except (ModelError, OSError):
        return 0

"""Chooses the model that listens for `engine.asr_model = "auto"` on this machine, and says why.

On a CPU it is Whisper tiny if the machine transcribes a turn quickly enough with it, else Moonshine tiny. On a GPU it
is Moonshine, because Whisper's windows have 30 s there. If the files of a model cannot be fetched, the next one is
taken, and `ModelChoice.missed` says why.
"""

from __future__ import annotations

import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.build.machine import weights_per_second
from voxlane.engine.build.model_choice import Candidate, ModelChoice, Progress, take_first
from voxlane.engine.weights import store
from voxlane.engine.weights.catalog import load_catalog

ACCURATE, FRUGAL = "whisper-tiny-en", "moonshine-tiny-en"
"""The models that `auto` chooses from, the better one first."""

TURN_S = 3.0
TURN_WEIGHTS = 3.6e9
"""A turn of TURN_S takes Whisper as long as a machine needs to multiply so many packed weights for one row."""

MOST_S = 0.25
"""The longest that Whisper may take for such a turn."""


def choose_listener(config: EngineConfig, device: torch.device, progress: Progress) -> ModelChoice:
    """Choose a model for a settled configuration and fetch it, or raise StoreError if none can be had."""
    progress("measuring this machine", 0.0)
    names, reason = rank_listeners(config, device)
    catalog = load_catalog()
    models = [Candidate(name, catalog[name].parameters, catalog[name].size, 0.0) for name in names]

    def fetch(model: Candidate) -> None:
        what = f"fetching {model.name}, {model.size / 1e6:.0f} MB"
        store.resolve(model.name, mirrors=config.mirrors, progress=lambda done: progress(what, done))

    return take_first(models, reason, fetch)


def rank_listeners(config: EngineConfig, device: torch.device) -> tuple[list[str], str]:
    """Return the models to try on a device, best first, and the reason for the first."""
    if device.type != "cpu":
        return [FRUGAL], "it listens to the most conversations at once on a GPU"
    return listeners_for_cpu(weights_per_second(config.threads))


def listeners_for_cpu(weights_s: float) -> tuple[list[str], str]:
    """Return the models to try on a CPU of this speed, best first, and the reason for the first. Pure."""
    took_ms = 1e3 * TURN_WEIGHTS / weights_s
    if took_ms > 1e3 * MOST_S:
        return [FRUGAL], f"{ACCURATE} would take {took_ms:.0f} ms for a turn of {TURN_S:g} s"
    told = f"this machine takes about {took_ms:.0f} ms for a turn of {TURN_S:g} s with it"
    return [ACCURATE, FRUGAL], told

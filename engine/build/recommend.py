"""Recommends models for this machine: the child process behind `voxlane models recommend`.

It is started as `python -m voxlane.engine.build.recommend --device auto|cpu|cuda` and writes one JSON object. It
measures the machine, loads no model and fetches nothing.

A model is quick enough to talk to if it writes 18 tokens a second, understands a turn of 3 s in a quarter of a second,
or begins to speak in half a second. Of the models that are quick enough and fit into the memory, the best one is
recommended for each job; if none is, the quickest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.build.assemble import use_threads
from voxlane.engine.build.device import choose_device, settle_for
from voxlane.engine.build.listener_choice import MOST_S
from voxlane.engine.build.machine import copy_bytes_per_second, free_memory_bytes, weights_per_second
from voxlane.engine.build.model_choice import DEVICE_SHARE, EFFICIENCY, PACKED_SHARE
from voxlane.engine.errors import ModelError
from voxlane.engine.kernels import native
from voxlane.engine.models.registry import supported_architectures
from voxlane.engine.weights import store
from voxlane.engine.weights.hub_models import JOBS, Job, ModelOffer, load_offers

TOKENS_S = 18.0
"""The tokens a second that a chat model must write: a first clause of 8 takes less than half a second."""

FIRST_SOUND_S = 0.5
"""The longest that a voice may take until the first sound of ten words."""

SPEECH_SHARES = {"listening": 0.15, "voice": 0.2}
"""The parts of the room for weights that the models for listening and for speaking may take. Chat has the rest."""

PROCESS_BYTES = 600 << 20
"""What a process with torch takes on the host beside models and caches."""

PACKED_BYTES = 17 / 16
"""Bytes of a weight that a CPU packs to 8 bits: 32 of them share a scale of 2 bytes."""

FLOAT32_PARAMETERS = 80_000_000
"""A listener up to this size is kept in float32 on a GPU: Moonshine, Whisper tiny and base."""

H200_COPY = 4.0e12
"""Bytes a second that an H200 copies: the GPU on which `gpu_ms` was measured."""

STEP_FLOORS, STEP_S = 1.6, 0.0004
"""A decode step of one row on a GPU takes this many times as long as its weights take at copy bandwidth, and so many
seconds more: fitted to the steps in docs/measured.md, four models from 0.6B to 8B."""

SPEECH_TO_SPEECH_FRAMES_S = 12.5
"""Frames a second that a model of speech-to-speech must make, each of them a step: one of Mimi is 80 ms."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What decides which models suit a machine."""

    device: str  # cpu or cuda
    name: str  # of the processor's kernels or the GPU
    cores: int
    free_bytes: int  # of the memory in which the models will lie
    weights_s: float  # packed 4-bit weights a second
    weights_8_s: float  # packed 8-bit weights a second
    copy_s: float = 0.0  # bytes a second a GPU copies
    cache_bytes: int = 0  # what the caches take of a host's memory


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A model, what it would cost on a machine, and whether it is the choice for its job."""

    offer: ModelOffer
    memory_bytes: int  # of its weights
    speed: float  # tokens a second, or seconds until a turn is understood or speech begins
    quick: bool
    fits: bool
    recommended: bool = False


def recommend(machine: MachineFacts, offers: Iterable[ModelOffer], supported: Collection[str]) -> list[Recommendation]:
    """Return the models that this engine can load on such a machine, judged, with one choice for each job. Pure."""
    able = [offer for offer in offers if offer.architecture in supported and offer.device in ("any", machine.device)]
    room = _room(machine)
    found: list[Recommendation] = []
    left = room
    for job in ("voice", "listening", "speech-to-speech", "chat"):
        most = room * SPEECH_SHARES[job] if job in SPEECH_SHARES else left
        judged = [_judge(machine, offer, most) for offer in able if offer.job == job]
        chosen = _choice(judged)
        if chosen is not None and job in SPEECH_SHARES:
            left -= chosen.memory_bytes
        found += [_marked(one) if one is chosen else one for one in judged]
    return sorted(found, key=lambda one: JOBS.index(one.offer.job))


def _room(machine: MachineFacts) -> float:
    """Return the bytes that the weights of all models may take."""
    if machine.device == "cuda":
        return DEVICE_SHARE * machine.free_bytes
    return max(0, machine.free_bytes - machine.cache_bytes - PROCESS_BYTES)


def _judge(machine: MachineFacts, offer: ModelOffer, room: float) -> Recommendation:
    memory, speed = memory_bytes(machine, offer), speed_of(machine, offer)
    if offer.job == "chat":
        quick = speed >= TOKENS_S
    elif offer.job == "speech-to-speech":
        quick = speed >= 2 * SPEECH_TO_SPEECH_FRAMES_S
    else:
        quick = 0 < speed <= (MOST_S if offer.job == "listening" else FIRST_SOUND_S)
    return Recommendation(offer, memory, speed, quick, memory <= room)


def _choice(judged: Sequence[Recommendation]) -> Recommendation | None:
    """Return the best model that is quick and fits; else the quickest, so that something can serve."""
    for one in judged:
        if one.quick and one.fits and not one.offer.gated:
            return one
    rest = [one for one in judged if not one.offer.gated and one.offer.job != "speech-to-speech"]
    return min(rest, key=_slowness) if rest else None


def _slowness(one: Recommendation) -> float:
    """Return the time that a model takes for its smallest piece of work."""
    return 1 / one.speed if one.offer.job == "chat" else one.speed


def _marked(one: Recommendation) -> Recommendation:
    return Recommendation(one.offer, one.memory_bytes, one.speed, one.quick, one.fits, recommended=True)


def memory_bytes(machine: MachineFacts, offer: ModelOffer) -> int:
    """Return what a model's weights take in the form in which a machine keeps them."""
    if machine.device == "cuda" and (offer.gpu_ms or offer.job in ("chat", "speech-to-speech")):
        small = offer.job == "listening" and offer.parameters <= FLOAT32_PARAMETERS
        return max(offer.parameters * (4 if small else 2), offer.size if offer.job == "voice" else 0)
    if offer.bits <= 8 or offer.job == "voice":
        return int(offer.size * PACKED_SHARE)
    return int(offer.parameters * PACKED_BYTES)


def speed_of(machine: MachineFacts, offer: ModelOffer) -> float:
    """Return the expected speed: tokens or frames a second of a model that writes, else seconds; 0 if not known."""
    if offer.job in ("chat", "speech-to-speech"):
        used = offer.active or offer.parameters
        if machine.device == "cuda":
            return 1 / (STEP_FLOORS * used * 2 / machine.copy_s + STEP_S)
        return EFFICIENCY * (machine.weights_s if offer.bits < 8 else machine.weights_8_s) / used
    if machine.device == "cuda" and offer.gpu_ms:
        return offer.gpu_ms / 1e3 * max(1.0, H200_COPY / machine.copy_s)
    return offer.cpu_cost * 1e9 / machine.weights_s


def examine_machine(config: EngineConfig) -> MachineFacts:
    """Measure this machine, or raise EngineConfigError if the configured device cannot be used."""
    device = choose_device(config)
    use_threads(config.threads)
    settled = settle_for(config, device)
    cores = len(os.sched_getaffinity(0))
    speeds = weights_per_second(config.threads), weights_per_second(config.threads, 8)
    if device.type == "cuda":
        name, free = torch.cuda.get_device_properties(device).name, torch.cuda.mem_get_info(device)[0]
        return MachineFacts("cuda", name, cores, free, *speeds, copy_s=copy_bytes_per_second(device))
    caches = settled.kv_memory_mib + settled.swap_memory_mib + settled.asr_memory_mib
    name = f"{platform.machine()}, {native.description()}"
    return MachineFacts("cpu", name, cores, free_memory_bytes(), *speeds, cache_bytes=caches << 20)


def report(machine: MachineFacts, found: Sequence[Recommendation]) -> dict[str, Any]:
    """Return what the command prints, as plain values."""
    return {
        "machine": asdict(machine),
        "models": [
            {
                **asdict(one.offer),
                "memory_bytes": one.memory_bytes,
                "speed": one.speed,
                "unit": _UNITS[one.offer.job],
                "quick": one.quick,
                "fits": one.fits,
                "recommended": one.recommended,
                "here": store.present(one.offer.name),
            }
            for one in found
        ],
    }


_UNITS: dict[Job, str] = {
    "chat": "tokens/s",
    "listening": "s for a turn of 3 s",
    "voice": "s to the first sound",
    "speech-to-speech": "frames/s",
}


def main() -> int:
    """Write the report of this machine, or an object with an error, to standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    arguments = parser.parse_args()
    try:
        machine = examine_machine(EngineConfig(device=arguments.device))
    except ModelError as error:
        told: dict[str, Any] = {"error": str(error)}
    else:
        told = report(machine, recommend(machine, load_offers(), supported_architectures()))
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The models that `voxlane models recommend` chooses from: names of the catalog and of Hugging Face.

It reads and checks hub_models.toml. It fetches nothing and knows nothing of this machine.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, get_args

from voxlane.engine.weights.catalog import CatalogError, CatalogModel, HubSource, load_catalog, parse_source

Job = Literal["chat", "listening", "voice", "speech-to-speech"]
JOBS: tuple[Job, ...] = get_args(Job)

_TASKS = {"chat": "chat", "listening": "asr", "voice": "tts"}
"""The catalog's word for a job."""

_KINDS: Mapping[str, type] = {"job": str, "architecture": str, "device": str, "bits": int, "note": str}
_HUB_KINDS: Mapping[str, type] = {"licence": str, "parameters": int, "size_gb": float}
_OPTIONAL: Mapping[str, type] = {"cpu_cost": float, "gpu_ms": float, "gated": bool, "active": int}


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """One model that a person could pull."""

    name: str  # a name of the catalog, or hf:OWNER/REPO[#FILE]
    job: Job
    architecture: str
    device: str  # cpu, cuda or any
    bits: int  # of a weight in the file
    note: str
    licence: str
    parameters: int
    size: int  # bytes to download
    cpu_cost: float = 0.0  # 1e9 packed 4-bit weights; 0: not known, or a chat model
    gpu_ms: float = 0.0  # on an H200; 0: not known, or a chat model
    gated: bool = False
    active: int = 0  # parameters that are used for one token; 0: all
    pinned: bool = False  # the catalog has the sha256 of its files
    packaged: bool = False  # it is part of an installed package: there is nothing to pull


def load_offers() -> list[ModelOffer]:
    """Return the models that can be recommended, for each job the best one first."""
    text = resources.files(__package__).joinpath("hub_models.toml").read_text("utf-8")
    return parse_offers(text, load_catalog())


def parse_offers(text: str, catalog: Mapping[str, CatalogModel]) -> list[ModelOffer]:
    """Return the models of a table, those of the catalog with its facts, or raise CatalogError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(str(error)) from error
    return [_offer(name, table, catalog.get(name)) for name, table in tables.items()]


def _offer(name: str, table: object, known: CatalogModel | None) -> ModelOffer:
    fields = _checked(name, table, _KINDS if known is not None else {**_KINDS, **_HUB_KINDS})
    if fields["job"] not in JOBS or fields["device"] not in ("cpu", "cuda", "any"):
        raise CatalogError(f"{name}: job is one of {', '.join(JOBS)}, and device cpu, cuda or any")
    if known is not None:
        if known.task != _TASKS.get(fields["job"]):
            raise CatalogError(f"{name}: the catalog has it for {known.task}, not for {fields['job']}")
        facts: dict[str, Any] = {"licence": known.licence, "parameters": known.parameters, "size": known.size}
        return ModelOffer(name, **fields, **facts, pinned=bool(known.files), packaged=bool(known.package))
    try:
        source = parse_source(name)
    except ValueError as error:
        raise CatalogError(str(error)) from error
    if not isinstance(source, HubSource):
        raise CatalogError(f"{name}: neither a name of the catalog nor hf:OWNER/REPO")
    size = round(fields.pop("size_gb") * 1e9)
    return ModelOffer(name, **fields, size=size)


def _checked(name: str, table: object, required: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(table, dict) or not required.keys() <= table.keys() <= required.keys() | _OPTIONAL.keys():
        raise CatalogError(f"{name}: must have {', '.join(required)}, and may have {', '.join(_OPTIONAL)}")
    for key, value in table.items():
        kind = required.get(key) or _OPTIONAL[key]
        if type(value) is not kind:
            raise CatalogError(f"{name}.{key}: must be a {kind.__name__}")
    return dict(table)

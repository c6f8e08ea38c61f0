"""The configuration of a LoRA adapter, adapter_config.json: ranks, scales, and whether the adapter can be merged.

Every key that changes the result is honoured or refused by name. The adapter's tensors, not this file, tell which
modules were trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from voxlane.engine.errors import WeightsError, one_line
from voxlane.engine.weights.json_files import read_json
from voxlane.engine.weights.name_patterns import NamePattern

CONFIG = "adapter_config.json"
MAX_PATTERNS = 4096
"""One for each matrix of the deepest models in use, several times over."""

_MERGED = "merge it with PEFT (merge_and_unload) and serve the merged model"

_USED = frozenset({
    "alpha_pattern", "base_model_name_or_path", "init_lora_weights", "lora_alpha", "modules_to_save", "peft_type", "r",
    "rank_pattern", "use_dora", "use_rslora",
})  # fmt: skip
# These keys repeat what the adapter's tensors tell, or only training needs them. fan_in_fan_out is for a kind of layer
# that none of our models has: PEFT itself takes it as false for them.
_HARMLESS = frozenset({
    "auto_mapping", "bias", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type",
    "velora_config",
})  # fmt: skip
_PLAIN_STARTS = frozenset({"eva", "gaussian", "mica", "orthogonal"})
"""Initialisations that leave the base model as it is. The others (PiSSA, OLoRA, CorDA, LoftQ) take a part out of the
base model, so the adapter does not fit the published base model."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The settings that the merge depends on."""

    path: Path
    rank: int
    alpha: float
    root_scale: bool  # rsLoRA: alpha / sqrt(rank) instead of alpha / rank
    dora: bool
    rank_patterns: tuple[tuple[NamePattern, int], ...]  # in the file's order: the first that matches counts
    alpha_patterns: tuple[tuple[NamePattern, float], ...]
    saved_modules: tuple[str, ...]  # ends of names of modules that were trained as a whole
    base: str  # the model that it was trained on, as the author names it; "" if unknown

    @classmethod
    def read(cls, directory: Path) -> AdapterConfig:
        """Return the configuration in `directory`, or raise WeightsError that names the key."""
        path = directory / CONFIG
        values = read_json(path)
        kind = values.get("peft_type")
        if kind != "LORA":
            raise WeightsError(path, f"peft_type is {kind!r:.40}; only LORA adapters are supported")
        _refuse_others(path, values)
        modules = values.get("modules_to_save") or []
        if not isinstance(modules, list) or not all(isinstance(item, str) for item in modules):
            raise WeightsError(path, "modules_to_save is not a list of names")
        return cls(
            path=path,
            rank=_rank(path, "r", values.get("r")),
            alpha=_number(path, "lora_alpha", values.get("lora_alpha")),
            root_scale=_flag(path, "use_rslora", values.get("use_rslora")),
            dora=_flag(path, "use_dora", values.get("use_dora")),
            rank_patterns=tuple(
                (pattern, _rank(path, "rank_pattern", value))
                for pattern, value in _patterns(path, values, "rank_pattern")
            ),
            alpha_patterns=tuple(
                (pattern, _number(path, "alpha_pattern", value))
                for pattern, value in _patterns(path, values, "alpha_pattern")
            ),
            saved_modules=tuple(modules),
            base=one_line(str(values.get("base_model_name_or_path") or ""), 100),
        )

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's change."""
        return next((rank for pattern, rank in self.rank_patterns if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor for the product of a module's two matrices."""
        alpha = next((alpha for pattern, alpha in self.alpha_patterns if pattern.matches(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.root_scale else rank)


def _refuse_others(path: Path, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        if key not in _USED and key not in _HARMLESS and value not in (None, False, "", [], {}):
            raise WeightsError(path, f"{key:.60} is set ({value!r:.60}), which is not supported")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower() not in _PLAIN_STARTS:
        raise WeightsError(
            path,
            f"init_lora_weights is {start!r:.40}, which changes the base model too: save the adapter with "
            f"path_initial_model_for_weight_conversion, or {_MERGED}",
        )


def _patterns(path: Path, values: Mapping[str, object], key: str) -> list[tuple[NamePattern, object]]:
    found = values.get(key) or {}
    if not isinstance(found, dict) or len(found) > MAX_PATTERNS:
        raise WeightsError(path, f"{key} is not an object of at most {MAX_PATTERNS} patterns")
    patterns = []
    for text, value in found.items():
        try:
            patterns.append((NamePattern(text), value))
        except ValueError as error:
            raise WeightsError(path, f"{key}: {text!r:.80} {error}") from error
    return patterns


def _flag(path: Path, key: str, value: object) -> bool:
    if value not in (None, False, True):
        raise WeightsError(path, f"{key}: {value!r:.60} is neither true nor false")
    return value is True


def _rank(path: Path, key: str, value: object) -> int:
    if type(value) is not int or not 0 < value < 1 << 20:
        raise WeightsError(path, f"{key}: {value!r:.60} is not a rank")
    return value


def _number(path: Path, key: str, value: object) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e9:  # type: ignore[arg-type]  # a number: checked just before
        raise WeightsError(path, f"{key}: {value!r:.60} is not a usable number")
    return float(value)  # type: ignore[arg-type]

"""Rotary position embedding: the cosine and sine tables of every scaling scheme.

kernels/attention/rope.py does the rotation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.models.settings import Settings

_KNOWN_KEYS = {
    *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor"),
    *("low_freq_factor", "high_freq_factor"),  # llama3
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"),  # yarn
}


@dataclass(frozen=True, slots=True)
class Rope:
    """One layer type's rotation. Fields a kind does not use keep their neutral values."""

    theta: float
    kind: str = "default"  # "default" | "linear" | "llama3" | "yarn"
    factor: float = 1.0  # how many times longer the context was made
    original_context: int = 0  # tokens the model was trained on before that; llama3 and yarn
    low_freq_factor: float = 1.0  # llama3: wavelengths above original_context / this are stretched by `factor`
    high_freq_factor: float = 4.0  # llama3: wavelengths below original_context / this stay
    beta_fast: float = 32.0  # yarn: pairs that turn more often than this over original_context stay
    beta_slow: float = 1.0  # yarn: pairs that turn less often than this are stretched by `factor`
    truncate: bool = True  # yarn: whole pairs only at both ends of the ramp
    attention_factor: float = 1.0  # yarn: cosines and sines are multiplied by it

    def frequencies(self, head_dim: int) -> Tensor:
        """Return the angle per position of each pair of dimensions, [head_dim / 2] float32."""
        # float32 and in this order, as Hugging Face computes it: tables then agree to the last bit.
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        plain: Tensor = 1.0 / (self.theta**exponents)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            return self._llama3(plain)
        if self.kind == "yarn":
            return self._yarn(self.theta**exponents, head_dim)
        return plain

    def tables(self, head_dim: int, positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, [positions, head_dim / 2] float32 each."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.frequencies(head_dim)
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor

    def _llama3(self, plain: Tensor) -> Tensor:
        wavelengths = 2 * math.pi / plain
        longest = self.original_context / self.low_freq_factor
        shortest = self.original_context / self.high_freq_factor
        span = self.high_freq_factor - self.low_freq_factor
        blend = (self.original_context / wavelengths - self.low_freq_factor) / span
        between = (1 - blend) * plain / self.factor + blend * plain
        stretched = torch.where(wavelengths > longest, plain / self.factor, between)
        return torch.where(wavelengths < shortest, plain, stretched)

    def _yarn(self, periods: Tensor, head_dim: int) -> Tensor:
        def pair_that_turns(times: float) -> float:
            turns = math.log(self.original_context / (times * 2 * math.pi))
            return head_dim * turns / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        if low == high:
            high += 0.001  # the paper's reference avoids the division by zero this way
        ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        keep = 1 - ramp
        return 1.0 / (self.factor * periods) * (1 - keep) + 1.0 / periods * keep


def parse_rope(scaling: Settings, theta: float, context_tokens: int, original_context: int) -> Rope:
    """Return the rotation that one `rope_scaling` or `rope_parameters` dictionary describes, or raise ModelConfigError.

    `theta` and `original_context` are used where the dictionary has none.
    """
    scaling.known_only(_KNOWN_KEYS)
    if scaling.number("partial_rotary_factor", 1.0) != 1.0:
        raise scaling.refuse("partial_rotary_factor", "rotating part of a head is not supported")
    theta = scaling.number("rope_theta", theta)
    kind_key = "rope_type" if "rope_type" in scaling else "type"
    kind = scaling.text(kind_key, "default")
    original_context = scaling.integer("original_max_position_embeddings", original_context)
    if kind in ("default", "dynamic"):
        # "dynamic" stretches only beyond max_position_embeddings, which no sequence here reaches.
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, scaling.number("factor"))
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if low >= high:
            raise scaling.refuse("high_freq_factor", "must be above low_freq_factor")
        return Rope(theta, kind, scaling.number("factor"), original_context, low, high)
    if kind == "yarn":
        factor = scaling.number("factor", context_tokens / original_context)
        return Rope(
            theta,
            kind,
            factor,
            original_context,
            beta_fast=scaling.number("beta_fast", 32.0),
            beta_slow=scaling.number("beta_slow", 1.0),
            truncate=scaling.flag("truncate", default=True),
            attention_factor=_attention_factor(scaling, factor),
        )
    raise scaling.refuse(kind_key, f"{kind!r:.60} is not one of default, dynamic, linear, llama3, yarn")


def _attention_factor(scaling: Settings, factor: float) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if "attention_factor" in scaling:
        return scaling.number("attention_factor")
    if "mscale" in scaling and "mscale_all_dim" in scaling:
        return magnitude(scaling.number("mscale")) / magnitude(scaling.number("mscale_all_dim"))
    return magnitude(1.0)

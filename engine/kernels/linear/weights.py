"""The weights of a decoder's layers, as its loop and the native stack read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from voxlane.engine.kernels.linear.linear import PackedWeight

Weight = Tensor | PackedWeight


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """A feed-forward network that every token passes."""

    gate_up: Weight  # [2 * intermediate, hidden]
    gate_up_bias: Tensor | None
    down: Weight  # [hidden, intermediate]
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Feed-forward networks of which a token passes a few, and the router that chooses them."""

    router: Tensor  # [experts, hidden], float32
    router_bias: Tensor | None  # [experts], float32: it takes part in the choice, not in the weights
    gate_up: tuple[Weight, ...]  # of each expert, [2 * intermediate, hidden]
    down: tuple[Weight, ...]  # [hidden, intermediate]
    chosen: int  # experts of a token
    normed: bool  # a token's weights sum to one
    scale: float  # of all weights
    all_gate_up: Tensor | None = None  # on a device: those of all experts in one, [experts, 2 * intermediate, hidden]
    all_down: Tensor | None = None  # [experts, hidden, intermediate]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerParts:
    """What layers of all kinds have."""

    mix: Weight  # the fused projection of what the layer mixes among tokens
    mix_bias: Tensor | None
    out: Weight  # [hidden, columns of what was mixed]
    out_bias: Tensor | None
    after_attention_norm: Tensor | None = None  # Gemma: on attention's output, before it joins the residual
    mlp_norm: Tensor
    feed: DenseWeights | ExpertWeights
    after_mlp_norm: Tensor | None = None  # Gemma
    next_norm: Tensor  # the norm that follows: the next layer's first, or the model's last


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights(_LayerParts):
    """A layer with attention; `mix` [(heads + 2 * kv_heads) * head_dim, hidden] gives queries, keys and values."""

    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    cos: Tensor  # [context, head_dim / 2]
    sin: Tensor
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionWeights(_LayerParts):
    """A layer with a gated short convolution; `mix` [3 * hidden, hidden] gives the gates B and C, and the input."""

    taps: Tensor  # [taps, hidden], float32, the oldest token's first
    taps_bias: Tensor | None  # [hidden], float32


LayerWeights = AttentionWeights | ConvolutionWeights

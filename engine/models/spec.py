"""A model's sizes, layer by layer: they say what memory it needs and what its kernels are tried on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.kernels.attention.pages import ATTENTION_PARTS
from voxlane.engine.memory.pages import PageShape, StateShape

Activation = Literal["silu", "gelu_tanh", "gelu"]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer that keeps a key and a value of every token in the KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # of the products of queries and keys
    window: int = 0  # tokens it sees; 0: all of them
    qk_norm: bool = False  # RMS norm over each head of q and k before the rotation

    @property
    def columns(self) -> int:
        """How many numbers a token's queries, keys and values are."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class ConvolutionLayer:
    """A layer that sees a request's last few tokens: of each KV block it keeps the vectors of the last ones."""

    channels: int
    taps: int  # tokens it sees, the newest included

    @property
    def columns(self) -> int:
        """How many numbers a token's input and its two gates are."""
        return 3 * self.channels


Layer = AttentionLayer | ConvolutionLayer


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts in the place of feed-forward networks."""

    count: int
    chosen: int  # of a token
    inner: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes of one model."""

    layers: tuple[Layer, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context_tokens: int
    parameters: int  # norms and biases left out
    activation: Activation = "silu"
    tied: bool = False  # the output head is the embedding table
    experts: ExpertSizes | None = None  # None: it has none

    @property
    def attention(self) -> tuple[AttentionLayer, ...]:
        """The layers that have pages in the KV cache, in their order."""
        return tuple(layer for layer in self.layers if isinstance(layer, AttentionLayer))

    @property
    def pages(self) -> PageShape:
        """The shape of its KV cache; raise ModelConfigError if its layers have no common one."""
        shapes = {(layer.kv_heads, layer.head_dim) for layer in self.attention}
        if len(shapes) != 1:
            raise ModelConfigError(f"{len(shapes)} sizes of keys and values in one model are not supported")
        return PageShape(len(self.attention), *shapes.pop(), self._states())

    def _states(self) -> StateShape | None:
        """Return what its convolutions keep; raise ModelConfigError if they have no common size."""
        found = {place: layer for place, layer in enumerate(self.layers) if isinstance(layer, ConvolutionLayer)}
        if not found:
            return None
        sizes = {(layer.channels, layer.taps) for layer in found.values()}
        if len(sizes) != 1:
            raise ModelConfigError(f"{len(sizes)} sizes of convolutions in one model are not supported")
        return StateShape(tuple(found), *sizes.pop())

    def cache_bytes_per_block(self, dtype: torch.dtype, block_tokens: int) -> int:
        """Return what one block takes in pages of `dtype`."""
        return self.pages.bytes_per_block(dtype, block_tokens)

    def step_bytes(self, tokens: int, rows: int) -> int:
        """Return about what a step takes beside weights and cache: activations, logits, what attention cuts."""
        columns = 2 * max(layer.columns for layer in self.layers) + 4 * self.hidden_size
        feeding = 3 * self.intermediate_size
        if self.experts is not None:  # of every pair of a token and an expert, inner numbers and an output
            feeding = max(feeding, self.experts.chosen * (3 * self.experts.inner + self.hidden_size))
        columns += feeding
        parts = ATTENTION_PARTS * max(layer.heads * layer.head_dim for layer in self.attention)
        penalties = 6 * rows * self.vocab_size
        return 4 * (tokens * columns + 2 * rows * self.vocab_size + parts) + penalties

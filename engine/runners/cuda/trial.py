"""The sizes, types and random numbers that kernels are checked on, at start or when a person asks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from voxlane.engine.models.spec import AttentionLayer, ConvolutionLayer, ModelSpec

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""What a result may be off, as a part of its largest number: another order of sums, one rounding of the type."""

STAND_IN = ModelSpec(
    layers=(AttentionLayer(heads=9, kv_heads=3, head_dim=64, scale=64**-0.5),) * 30,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
    context_tokens=2048,
    parameters=134_500_000,
)
"""The default chat model's sizes, for an engine without a chat model."""

LISTENER = replace(
    STAND_IN,
    layers=(AttentionLayer(heads=8, kv_heads=8, head_dim=36, scale=36**-0.5),),
    hidden_size=288,
)
"""The default listening model's sizes: its heads are no power of two, and it is kept in float32."""


@dataclass(slots=True)
class Trial:
    """What kernels are checked on: a model's sizes, the types of its rows and pages, and a device."""

    spec: ModelSpec
    dtype: torch.dtype  # of what lies between kernels; float32 or bfloat16
    pages: torch.dtype
    block_tokens: int
    device: torch.device
    ears: bool = False  # check attention with a listening model's sizes too
    voice: bool = False  # check the voice's kernels
    talker: bool = False  # check the kernels of a codec language model
    dialogue: bool = False  # check a small speech-to-speech model
    random: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = torch.Generator(self.device).manual_seed(7)

    def noise(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal numbers in the type of the rows, or another."""
        return torch.randn(size, generator=self.random, device=self.device).to(dtype or self.dtype)

    def gain(self, size: int) -> Tensor:
        """Return weights of a norm."""
        return torch.rand(size, generator=self.random, device=self.device) + 0.5

    @property
    def attention(self) -> AttentionLayer:
        """The sizes of the model's attention: all its layers differ in their window alone."""
        return self.spec.attention[0]

    @property
    def convolution(self) -> ConvolutionLayer | None:
        """The sizes of the model's convolutions, which all of them share; None if it has none."""
        return next((layer for layer in self.spec.layers if isinstance(layer, ConvolutionLayer)), None)

    @property
    def tolerance(self) -> float:
        """What a result in the type of the rows may be off."""
        return TOLERANCES[self.dtype]

"""What kernels are tried on when an engine starts or a person asks. It knows sizes, types and noise; no kernel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from voxlane.engine.models.decoder_config import DecoderConfig

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""What a result may be off, as a part of its largest number: sums in another order, one rounding of the type."""

STAND_IN = DecoderConfig.from_dict(
    {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    }
)
"""The default chat model's sizes, for where there is none to ask."""

LISTENER = replace(STAND_IN, hidden_size=288, heads=8, kv_heads=8, head_dim=36, attention_scale=36**-0.5)
"""The default listening model's sizes: its heads are no power of two, and it is kept in float32."""


@dataclass(slots=True)
class Trial:
    """What kernels are tried on: a model's sizes, the types of its rows and pages, and a device."""

    shape: DecoderConfig
    dtype: torch.dtype  # of what lies between kernels; float32 or bfloat16
    pages: torch.dtype
    block_tokens: int
    device: torch.device
    ears: bool = False  # whether attention is tried as a listening model has it,
    voice: bool = False  # and the voice's own kernels,
    talker: bool = False  # or those of a codec language model
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
    def tolerance(self) -> float:
        """What a result in the type of the rows may be off."""
        return TOLERANCES[self.dtype]

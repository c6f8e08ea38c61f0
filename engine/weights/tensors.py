"""What a weight file hands to a model: plain tensors, or integer codes in groups of 32 that stay quantised.

It knows the numbers' meaning; it does not know any file format, nor the layout a kernel packs them into.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

GROUP = 32
"""Inputs that share one scale: the block length of GGUF's Q4_0, Q4_1 and Q8_0."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantised matrix: weight[o, i] = codes[o, i] * scales[o, i // 32] + minimums[o, i // 32]."""

    bits: int  # 4: codes are 0..15 and minimums are present; 8: codes are -128..127, no minimums
    codes: Tensor  # [out, in], uint8 for 4 bits, int8 for 8 bits
    scales: Tensor  # [out, in / 32], float32
    minimums: Tensor | None  # [out, in / 32], float32

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    def rows(self, index: Tensor) -> Blocks:
        """Return the matrix with its output rows picked by `index`."""
        minimums = None if self.minimums is None else self.minimums[index]
        return Blocks(self.bits, self.codes[index], self.scales[index], minimums)

    def dequantise(self) -> Tensor:
        """Return the float32 matrix the codes stand for."""
        out, inputs = self.shape
        groups = self.codes.view(out, inputs // GROUP, GROUP).to(torch.float32) * self.scales[:, :, None]
        if self.minimums is not None:
            groups += self.minimums[:, :, None]
        return groups.view(out, inputs)


def quantise(weight: Tensor) -> Blocks:
    """Return `weight` [out, in] as 8-bit blocks, each group scaled by its largest magnitude."""
    out, inputs = weight.shape
    groups = weight.to(torch.float32).reshape(out, inputs // GROUP, GROUP)
    scales = groups.abs().amax(dim=2) / 127.0
    inverse = torch.where(scales > 0, 1.0 / scales, torch.zeros_like(scales))
    codes = (groups * inverse[:, :, None]).round().to(torch.int8)
    return Blocks(8, codes.reshape(out, inputs), scales, None)


class WeightFile(Protocol):
    """A model on disk, under Hugging Face's tensor names and config keys whatever the file format."""

    @property
    def config(self) -> dict[str, object]:
        """The architecture as Hugging Face's config.json would say it."""

    def names(self) -> list[str]:
        """Return every tensor's name."""

    def tensor(self, name: str) -> Tensor:
        """Return one tensor, dequantised to float32 or in the file's float type. KeyError if there is none."""

    def blocks(self, name: str) -> Blocks | None:
        """Return one matrix as stored codes if it is stored as groups of 32, else None."""

"""The tensors of a weight file: plain floats, or integer codes that stay quantised, in groups of 32.

It knows what the numbers mean. It knows neither file formats nor the layouts that kernels pack them into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

GROUP = 32
"""Inputs that share one scale: the block length of GGUF's Q4_0, Q4_1 and Q8_0."""

ROW_STEP = 16
"""Rows that a kernel reads together. A run of rows that is converted on its own has a multiple of them."""

_PIECE = 1 << 19
"""Weights that are converted at once: 2 MiB as floats."""

_TEXT_PREFIXES = ("model.language_model.", "language_model.model.")  # a vision model's decoder, new and old spelling
_VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.")


def decoder_name(name: str) -> str | None:
    """Return the name of this tensor in a decoder without a vision tower; None if the decoder does not have it."""
    plain = name.removeprefix("language_model.") if name.startswith("language_model.lm_head.") else name
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            plain = "model." + name.removeprefix(prefix)
    foreign = plain.removeprefix("model.").startswith(_VISION_PREFIXES) or plain.endswith("rotary_emb.inv_freq")
    return None if foreign else plain


@dataclass(frozen=True, slots=True)
class Blocks:
    """A quantised matrix: weight[o, i] = (codes[o, i] - middle) * scales[o, i // group] + minimums[o, i // group]."""

    bits: int  # 4, 5 or 6: codes are 0..2^bits - 1; 8: codes are -128..127
    codes: Tensor  # [out, in], uint8; int8 for 8 bits
    scales: Tensor  # [out, in / group], float32
    minimums: Tensor | None  # [out, in / group], float32; None if zero lies at the middle of the codes

    @property
    def shape(self) -> tuple[int, int]:
        """Return (out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def group(self) -> int:
        """Return how many inputs share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def middle(self) -> int:
        """Return the code of the minimum, or of zero if there are no minimums."""
        return 0 if self.bits == 8 or self.minimums is not None else 1 << (self.bits - 1)

    def rows(self, index: Tensor | slice) -> Blocks:
        """Return the matrix with its output rows picked by `index`."""
        minimums = None if self.minimums is None else self.minimums[index]
        return Blocks(self.bits, self.codes[index], self.scales[index], minimums)

    def dequantise(self) -> Tensor:
        """Return the matrix as float32."""
        result = torch.empty(self.shape, device=self.codes.device)
        for rows in pieces(*self.shape):
            piece = self.rows(rows)
            groups = result[rows].view(piece.shape[0], -1, self.group)
            groups.copy_(piece.codes.view(groups.shape))
            if self.middle:
                groups -= self.middle
            groups *= piece.scales[:, :, None]
            if piece.minimums is not None:
                groups += piece.minimums[:, :, None]
        return result


def pieces(out: int, inputs: int) -> Iterator[slice]:
    """Cut the rows of a matrix into runs that fit the cache, to be converted one after the other."""
    step = max(ROW_STEP, _PIECE // inputs // ROW_STEP * ROW_STEP)
    return (slice(first, min(out, first + step)) for first in range(0, out, step))


def quantise(weight: Tensor) -> Blocks:
    """Return `weight` [out, in] as 8-bit blocks, each group scaled by its largest magnitude, with float16's scales."""
    out, inputs = weight.shape
    codes = torch.empty((out, inputs), dtype=torch.int8, device=weight.device)
    scales = torch.empty((out, inputs // GROUP), device=weight.device)
    for rows in pieces(out, inputs):
        groups = weight[rows].to(torch.float32).reshape(-1, inputs // GROUP, GROUP)
        scale = _half_above(groups.abs().amax(dim=2) / 127.0)
        inverse = torch.where(scale > 0, 1.0 / scale, torch.zeros_like(scale))
        codes[rows] = (groups * inverse[:, :, None]).round_().reshape(-1, inputs)
        scales[rows] = scale
    return Blocks(8, codes, scales, None)


def _half_above(values: Tensor) -> Tensor:
    """Return the smallest numbers of float16 that are not below `values`, which are not negative, as float32."""
    halves = values.to(torch.float16)
    halves.view(torch.int16).add_((halves.to(torch.float32) < values).to(torch.int16))
    return halves.to(torch.float32)


class WeightFile(Protocol):
    """A model on disk, under Hugging Face's tensor names and config keys whatever the file format."""

    @property
    def config(self) -> dict[str, object]:
        """The architecture in the form of Hugging Face's config.json."""

    def names(self) -> list[str]:
        """Return every tensor's name."""

    def tensor(self, name: str) -> Tensor:
        """Return one tensor, dequantised to float32 or in the file's float type. KeyError if there is none."""

    def blocks(self, name: str) -> Blocks | None:
        """Return one matrix as stored codes or None if it is stored as floats."""

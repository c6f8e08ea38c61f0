"""The parts of streaming codecs in the form that decoding needs, and how they are read.

Constant work is done here, in float32 before anything is rounded: codebooks are projected, scales go into the matrix
before them, and transposed convolutions become matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels.conv.causal import conv_weight, upsample_matrix

_MIN_USAGE = 1e-5  # a codebook entry that was never used is divided by this


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream's state keeps the end of one convolution's input."""

    index: int
    length: int
    channels: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [out, in] and its bias [out], if it has one."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Up:
    """What causal_upsample takes."""

    matrix: Tensor  # [stride * out, taps * in]
    bias: Tensor  # [stride * out]
    stride: int


@dataclass(frozen=True, slots=True)
class Conv:
    """A causal convolution."""

    weight: Tensor  # conv_weight's
    bias: Tensor
    dilation: int
    place: Place


class CodecTensors(Protocol):
    """Where tensors come from."""

    parameters: int

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of this shape as float32."""


class CodecLoader:
    """Reads tensors in the order of computation, and gives every convolution its place in the state."""

    def __init__(self, reader: CodecTensors, dtype: torch.dtype) -> None:
        self._reader = reader
        self._dtype = dtype
        self._places: list[Place] = []

    def _books(self, names: Iterator[tuple[str, str]], projection: Tensor | None, size: int, width: int) -> Tensor:
        """Return the codebooks whose sums and usages have these names, projected, one after the other."""
        tables = []
        for total, usage in names:
            book = self._floats(total, size, width) / self._floats(usage, size).clamp(min=_MIN_USAGE)[:, None]
            tables.append(book if projection is None else book @ projection.T)
        return torch.cat(tables)

    def _conv(self, name: str, outputs: int, inputs: int, taps: int, dilation: int = 1) -> Conv:
        weight = conv_weight(self._floats(f"{name}.weight", outputs, inputs, taps).to(self._dtype))
        bias = self._floats(f"{name}.bias", outputs).to(self._dtype)
        return Conv(weight, bias, dilation, self._place((taps - 1) * dilation, inputs))

    def _up(self, name: str, inputs: int, outputs: int, stride: int, kernel: int) -> Up:
        matrix = upsample_matrix(self._floats(f"{name}.weight", inputs, outputs, kernel), stride)
        bias = self._floats(f"{name}.bias", outputs).repeat(stride)
        return Up(matrix.to(self._dtype), bias.to(self._dtype), stride)

    def _point(self, name: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """Return the weight [out, in] and the bias of a convolution that sees a single step."""
        weight = self._floats(f"{name}.weight", outputs, inputs, 1)[:, :, 0].to(self._dtype).contiguous()
        return weight, self._floats(f"{name}.bias", outputs).to(self._dtype)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        return self._as_matrix(*self._pair(name, outputs, inputs))

    def _pair(self, name: str, outputs: int, inputs: int, *, biased: bool = True) -> tuple[Tensor, Tensor | None]:
        weight = self._floats(f"{name}.weight", outputs, inputs)
        return weight, self._floats(f"{name}.bias", outputs) if biased else None

    def _qkv(self, name: str, q: int, kv: int, inputs: int, *, biased: bool) -> Matrix:
        """Return the matrix that makes queries, keys and values."""
        parts = [
            self._pair(f"{name}.{part}_proj", size, inputs, biased=biased)
            for part, size in zip("qkv", (q, kv, kv), strict=True)
        ]
        biases = [bias for _, bias in parts if bias is not None]
        return self._as_matrix(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None)

    def _scaled(self, scale: Tensor, weight: Tensor, bias: Tensor | None) -> Matrix:
        """Return a matrix whose outputs are multiplied by `scale` [out]."""
        return self._as_matrix(weight * scale[:, None], None if bias is None else bias * scale)

    def _as_matrix(self, weight: Tensor, bias: Tensor | None) -> Matrix:
        return Matrix(weight.to(self._dtype).contiguous(), None if bias is None else bias.to(self._dtype))

    def _floats(self, name: str, *shape: int) -> Tensor:
        return self._reader.floats(name, shape)

    def _place(self, length: int, channels: int) -> Place:
        self._places.append(Place(len(self._places), length, channels))
        return self._places[-1]

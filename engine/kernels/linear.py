"""Matrices times rows: float weights, or 4- and 8-bit codes in groups of 32 that stay packed in memory.

A packed product takes its activations as int8 too: each group of 32 inputs is scaled by its largest magnitude / 127 and
rounded half to even. What follows is exact integer arithmetic within a group and float32 across groups, in order, so
that the native product's bits depend neither on the other rows of the call nor on the number of threads. (torch's own
products, which serve where the native library is missing, do not promise that.)
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.weights.tensors import GROUP, Blocks

from . import native

ROWS = 16
"""Output rows that lie interleaved: four NEON, two AVX2 or one AVX-512 register of int32 sums."""

_SMALLEST = 1e-30
"""A group whose largest magnitude is below this is taken as zero: its reciprocal scale would overflow."""


class PackedWeight:
    """A quantised matrix in the layout the native kernels read.

    `data` is [out / 16, in / 32, bytes]: for each tile of 16 outputs and 32 inputs first the codes, [8 steps, 16 rows,
    4 inputs], then 16 scales, then for 4 bits 16 minimums. 4-bit codes put step s in the low and step s + 4 in the high
    nibble of a byte, scales and minimums are float16 (what every 4-bit file holds); 8-bit scales are float32.
    """

    __slots__ = ("_dense", "bits", "data", "in_features", "out_features")

    def __init__(self, bits: int, out_features: int, in_features: int, data: Tensor) -> None:
        self.bits = bits
        self.out_features = out_features
        self.in_features = in_features
        self.data = data
        self._dense: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes the packed matrix takes."""
        return self.data.nbytes

    def unpack(self) -> Blocks:
        """Return the codes, scales and minimums again."""
        tiles, groups = self.data.shape[:2]
        shape = (tiles * ROWS, groups)
        if self.bits == 4:
            nibbles = self.data[:, :, : ROWS * 16].view(tiles, groups, 4, ROWS, 4)
            codes = torch.cat((nibbles & 15, nibbles >> 4), dim=2)
            halves = self.data[:, :, ROWS * 16 :].contiguous().view(torch.float16).to(torch.float32)
            scales = halves[:, :, :ROWS].transpose(1, 2).reshape(shape)
            minimums = halves[:, :, ROWS:].transpose(1, 2).reshape(shape)
        else:
            codes = self.data[:, :, : ROWS * 32].view(torch.int8).view(tiles, groups, 8, ROWS, 4)
            scales = self.data[:, :, ROWS * 32 :].contiguous().view(torch.float32).transpose(1, 2).reshape(shape)
        codes = codes.permute(0, 3, 1, 2, 4).reshape(tiles * ROWS, groups * GROUP)
        out = self.out_features
        return Blocks(self.bits, codes[:out], scales[:out], minimums[:out] if self.bits == 4 else None)

    def dense(self) -> Tensor:
        """Return the float32 matrix, kept from the first call on: the road without the native library."""
        if self._dense is None:
            self._dense = self.unpack().dequantise()
        return self._dense


def packable(blocks: Blocks) -> bool:
    """Return whether the kernels have a layout for codes of this kind."""
    return blocks.group == GROUP and blocks.bits in (4, 8)


def pack(blocks: Blocks) -> PackedWeight:
    """Return `blocks` in the kernels' layout, the last tile filled up with rows of zeros.

    Exact, except that 4-bit scales and minimums which float16 cannot hold are rounded to it.
    """
    out, inputs = blocks.shape
    if blocks.bits not in (4, 8) or inputs % GROUP or not inputs:
        raise ValueError(f"cannot pack {blocks.bits}-bit blocks of {out} x {inputs}: 4 or 8 bits, rows of n x {GROUP}")
    if blocks.minimums is not None and blocks.bits == 8:
        raise ValueError("8-bit blocks have no minimums")
    if blocks.bits == 4 and blocks.minimums is None:
        blocks = Blocks(4, blocks.codes, blocks.scales, blocks.scales * -8.0)
    tiles, groups = -(-out // ROWS), inputs // GROUP
    codes = _padded(blocks.codes, tiles).view(tiles, ROWS, groups, 8, 4).permute(0, 2, 3, 1, 4)
    parts = [_tiled(blocks.scales, tiles)]
    if blocks.minimums is not None:
        parts.append(_tiled(blocks.minimums, tiles))
        parts = [part.to(torch.float16) for part in parts]
        if not all(bool(part.isfinite().all()) for part in parts):
            raise ValueError("a 4-bit scale or minimum is beyond float16's range")
        codes = codes[:, :, :4] | (codes[:, :, 4:] << 4)
    columns = [part.contiguous().view(torch.uint8) for part in parts]
    data = torch.cat((codes.contiguous().view(torch.uint8).view(tiles, groups, -1), *columns), dim=2)
    return PackedWeight(blocks.bits, out, inputs, data)


def _padded(rows: Tensor, tiles: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, tiles * ROWS - rows.shape[0])).contiguous()


def _tiled(values: Tensor, tiles: int) -> Tensor:
    return _padded(values.to(torch.float32), tiles).view(tiles, ROWS, -1).transpose(1, 2)  # [tiles, groups, ROWS]


def quantise_rows_ref(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (codes int8 [T, groups, 32], scales float32 [T, groups]) of `x` [T, in]: what a packed product sees."""
    groups = x.to(torch.float32).reshape(x.shape[0], x.shape[1] // GROUP, GROUP)
    largest = groups.abs().amax(dim=2)
    largest = torch.where(largest < _SMALLEST, torch.zeros_like(largest), largest)
    full = torch.full_like(largest, 127.0)  # a tensor: torch divides by or into a plain number less exactly
    scales = largest / full
    inverse = torch.where((largest > 0) & largest.isfinite(), full / largest, torch.zeros_like(largest))
    return (groups * inverse[:, :, None]).round().to(torch.int8), scales


def linear_ref(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, in] times the transpose of `weight` [out, in], plus `bias`."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    codes, scales = quantise_rows_ref(x)
    seen = (codes.to(torch.float32) * scales[:, :, None]).view(x.shape)
    return F.linear(seen, weight.dense(), bias).to(x.dtype)


def embed_ref(ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
    """Return the rows `ids` [T] of an embedding table as [T, dim]."""
    return F.embedding(ids, weight if isinstance(weight, Tensor) else weight.dense())


def linear_native(library: ctypes.CDLL, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None) -> Tensor:
    """Do linear_ref's work in native/packed.cpp or native/dense.cpp."""
    tokens, inputs = x.shape
    start = None if bias is None else bias.data_ptr()
    if isinstance(weight, PackedWeight):
        outputs = weight.out_features
        out = torch.empty((tokens, outputs))
        library.vox_packed_linear(
            x.data_ptr(), weight.data.data_ptr(), start, out.data_ptr(), weight.bits, tokens, outputs, inputs
        )
        return out
    outputs = weight.shape[0]
    out = torch.empty((tokens, outputs))
    narrow = weight.dtype is torch.bfloat16
    library.vox_linear(x.data_ptr(), weight.data_ptr(), narrow, start, out.data_ptr(), tokens, outputs, inputs)
    return out


def embed_native(library: ctypes.CDLL, ids: Tensor, weight: PackedWeight) -> Tensor:
    """Do embed_ref's work in native/packed.cpp, reading only the rows that are asked for."""
    out = torch.empty((ids.shape[0], weight.in_features))
    library.vox_packed_embed(
        ids.data_ptr(), weight.data.data_ptr(), out.data_ptr(), weight.bits, ids.shape[0], weight.in_features
    )
    return out


def linear(x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Return `x` [T, in] times the transpose of `weight` [out, in], plus `bias` [out]."""
    if isinstance(weight, PackedWeight):
        outputs, inputs = weight.out_features, weight.in_features
        fits = True
    else:
        outputs, inputs = weight.shape
        fits = weight.is_contiguous() and (weight.dtype is torch.float32 or weight.dtype is torch.bfloat16)
    if x.ndim != 2 or x.shape[1] != inputs or (bias is not None and bias.shape != (outputs,)):
        raise ValueError(f"linear of x {tuple(x.shape)} with a weight of {outputs} x {inputs}: [T, {inputs}] is needed")
    library = native.library(x)
    if library is None or not fits:
        return linear_ref(x, weight, bias)
    return linear_native(library, x.contiguous(), weight, bias)


def embed(ids: Tensor, weight: Tensor | PackedWeight) -> Tensor:
    """Return the rows `ids` [T] (int64) of an embedding table as [T, dim], float32 if the table is packed."""
    if ids.ndim != 1 or ids.dtype is not torch.int64:
        raise ValueError(f"ids {tuple(ids.shape)} {ids.dtype}: int64 [T] is needed")
    if isinstance(weight, Tensor):
        return F.embedding(ids, weight)
    if ids.shape[0] and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
        raise IndexError(f"an id is outside the table's {weight.out_features} rows")
    library = native.load() if ids.is_cpu else None
    if library is None:
        return embed_ref(ids, weight)
    return embed_native(library, ids.contiguous(), weight)

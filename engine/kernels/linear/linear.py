"""Matrices times rows: float weights, or codes of 4, 5, 6 or 8 bits that stay packed in memory.

A packed product takes its activations as int8 too: each group of 32 inputs is scaled by its largest magnitude / 127 and
rounded half to even. What follows is exact integer arithmetic within a group and float32 across groups, in order, so
that the native product's bits depend neither on the other rows of the call nor on the number of threads. (torch's own
products, which serve where the native library is missing, do not promise that.)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.weights.tensors import GROUP, ROW_STEP, Blocks, pieces

PACKING = 1
"""The version of the layout: packed matrices that were kept by another one are packed anew."""

ROWS = ROW_STEP
"""Output rows that lie interleaved: four NEON, two AVX2 or one AVX-512 register of int32 sums."""

_SMALLEST = 1e-30
"""A group whose largest magnitude is below this is taken as zero: its reciprocal scale would overflow."""


_FORMS = {(4, False): 1, (4, True): 2, (5, False): 1, (5, True): 2, (6, False): 2, (8, False): 1}
"""(bits, has minimums) of the codes that can be packed, and how many float16 numbers a row's group of 32 has."""


class _Part(ctypes.Structure):
    """The structure of linear/packed.cpp, field by field."""

    _fields_ = (
        ("bits", ctypes.c_int64),
        ("minimum", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class PackedPart:
    """Some rows of a packed matrix, all with the same number of bits.

    `data` is [out / 16, bytes], for each tile of 16 outputs first the codes of all groups of 32 inputs, then their
    float16 numbers, then zeros up to a multiple of 64 bytes. The codes of a group are [8 steps, 16 rows, 4 inputs]: 8
    bits as they are; of fewer bits the low four, step s in the low and step s + 4 in the high nibble of a byte [4, 16,
    4]; then the fifth bits, step s in bit s of a byte [16, 4]; or the fifth and sixth, step s in bits 2 (s % 4) of a
    byte [s / 4, 16, 4]. The numbers of a group are 16 scales (for 6 bits two times 16, one of each 16 inputs), then 16
    minimums if there are any.
    """

    bits: int
    minimums: bool
    out_features: int
    in_features: int
    data: Tensor

    def unpack(self) -> Blocks:
        """Return the codes, scales and minimums again."""
        tiles, groups, each = self.data.shape[0], self.in_features // GROUP, _FORMS[self.bits, self.minimums]
        end = groups * ROWS * 4 * self.bits
        codes = _unpack_codes(self.data[:, :end].reshape(tiles, groups, -1), self.bits)
        codes = codes.permute(0, 3, 1, 2, 4).reshape(tiles * ROWS, self.in_features)[: self.out_features]
        halves = self.data[:, end : end + groups * each * ROWS * 2].contiguous().view(torch.float16)
        numbers = (
            halves.view(tiles, groups, each, ROWS).permute(2, 0, 3, 1).to(torch.float32)
        )  # [each, tiles, 16, groups]
        numbers = numbers.reshape(each, tiles * ROWS, groups)[:, : self.out_features]
        if self.bits == 6:
            return Blocks(6, codes, numbers.permute(1, 2, 0).reshape(len(codes), -1), None)
        return Blocks(self.bits, codes, numbers[0], numbers[1] if self.minimums else None)


class PackedWeight:
    """A quantised matrix in the layout the native kernels read: parts one after the other along the outputs."""

    __slots__ = ("_dense", "in_features", "out_features", "parts", "table")

    def __init__(self, parts: Sequence[PackedPart]) -> None:
        self.parts = tuple(parts)
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)
        # The kernels' argument; its addresses are valid while the parts live.
        self.table = (_Part * len(parts))(
            *(_Part(part.bits, part.minimums, part.data.data_ptr(), part.out_features) for part in parts)
        )
        self._dense: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes the packed matrix takes."""
        return sum(part.data.nbytes for part in self.parts)

    @property
    def is_cpu(self) -> bool:
        """Return whether the matrix lies in the CPU's memory."""
        return self.parts[0].data.is_cpu

    def dequantise(self) -> Tensor:
        """Return the float32 matrix."""
        return torch.cat([part.unpack().dequantise() for part in self.parts])

    def dense(self) -> Tensor:
        """Return the float32 matrix, kept from the first call on: used without the native library."""
        if self._dense is None:
            self._dense = self.dequantise()
        return self._dense


def packable(blocks: Blocks) -> bool:
    """Return whether the kernels have a layout for codes of this kind."""
    form = (blocks.bits, blocks.minimums is not None)
    return form in _FORMS and blocks.group == (16 if blocks.bits == 6 else GROUP)


def pack(*parts: Blocks) -> PackedWeight:
    """Return matrices of equal width in the kernels' layout, one after the other."""
    return PackedWeight([pack_part(blocks) for blocks in parts])


def pack_part(blocks: Blocks, device: torch.device | None = None) -> PackedPart:
    """Return a matrix in the kernels' layout, the last tile filled up with rows of zeros.

    Exact, except that scales and minimums which float16 cannot hold are rounded to it. ValueError if one of them is NaN
    or beyond its range.
    """
    out, inputs = blocks.shape
    if not inputs or inputs % GROUP or not packable(blocks):
        kind = "with" if blocks.minimums is not None else "without"
        raise ValueError(f"cannot pack {blocks.bits}-bit codes {kind} minimums, {out} x {inputs} by {blocks.group}")
    groups, each = inputs // GROUP, _FORMS[blocks.bits, blocks.minimums is not None]
    used = groups * ROWS * (4 * blocks.bits + 2 * each)
    tile_bytes = -(-used // 64) * 64
    data = packed_room(-(-out // ROWS) * tile_bytes, device or blocks.codes.device).view(-1, tile_bytes)
    for rows in pieces(out, inputs):
        piece = blocks.rows(rows)
        numbers = [piece.scales.view(-1, groups, GROUP // blocks.group)]
        if piece.minimums is not None:
            numbers.append(piece.minimums.view(-1, groups, 1))
        halves = _tiled(torch.cat(numbers, dim=2).to(torch.float16)).permute(0, 2, 3, 1)  # [tiles, groups, each, 16]
        if not bool(halves.isfinite().all()):
            raise ValueError("a scale or minimum is not a number, or beyond float16's range")
        # Four inputs are moved as one number: [tiles, 16, groups, 8] to [tiles, groups, 8, 16].
        codes = _tiled(piece.codes.view(torch.int32).view(-1, groups, 8)).permute(0, 2, 3, 1).contiguous()
        tiles = slice(rows.start // ROWS, rows.start // ROWS + len(codes))
        packed = _pack_codes(codes.view(torch.uint8).view(len(codes), groups, 8, -1), blocks.bits)
        data[tiles, : groups * ROWS * 4 * blocks.bits] = packed.flatten(1)
        data[tiles, groups * ROWS * 4 * blocks.bits : used] = halves.contiguous().view(torch.uint8).flatten(1)
    return PackedPart(blocks.bits, blocks.minimums is not None, out, inputs, data)


class _LargePages:
    """Memory for weights in pages of 2 MiB, where the system has them: small ones make streaming a tenth slower."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return so many bytes of zeros, on a border of 64."""
        # A tensor made in inference mode could not be written outside of it later, and the rest of a chunk is kept.
        with self._lock, torch.inference_mode(False):
            if len(self._free) < size:
                pages = mmap.mmap(-1, max(size, _CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with contextlib.suppress(OSError):  # a kernel built without them
                    pages.madvise(mmap.MADV_HUGEPAGE)
                self._free = torch.frombuffer(pages, dtype=torch.uint8)  # keeps the mapping alive
            room, self._free = self._free[:size], self._free[-(-size // 64) * 64 :]
            return room


_CPU = torch.device("cpu")
_CHUNK = 64 * 1024 * 1024
_large_pages = _LargePages()


def packed_room(size: int, device: torch.device = _CPU) -> Tensor:
    """Return `size` bytes of zeros for packed matrices."""
    if device.type == "cpu" and hasattr(mmap, "MADV_HUGEPAGE"):
        return _large_pages.take(size)
    return torch.zeros(size, dtype=torch.uint8, device=device)


def _pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Return [tiles, groups, bytes] of codes [tiles, groups, 8, 64], a byte each."""
    if bits == 8:
        return codes.flatten(2)
    planes = [(codes[:, :, :4] & 15) | (codes[:, :, 4:] << 4)]
    if bits == 5:
        planes.append(_joined([(codes[:, :, step] >> 4) << step for step in range(8)])[:, :, None])
    if bits == 6:
        planes.append(_joined([(codes[:, :, step::4] >> 4) << (2 * step) for step in range(4)]))
    return torch.cat(planes, dim=2).flatten(2)


def _unpack_codes(planes: Tensor, bits: int) -> Tensor:
    """Return [tiles, groups, 8, 16, 4] of packed codes [tiles, groups, bytes]."""
    if bits == 8:
        return planes.view(torch.int8).view(*planes.shape[:2], 8, ROWS, 4)
    planes = planes.view(*planes.shape[:2], bits, ROWS * 4)
    codes = torch.cat((planes[:, :, :4] & 15, planes[:, :, :4] >> 4), dim=2)
    for step in range(8):
        if bits == 5:
            codes[:, :, step] |= ((planes[:, :, 4] >> step) & 1) << 4
        if bits == 6:
            codes[:, :, step] |= ((planes[:, :, 4 + step // 4] >> (2 * (step % 4))) & 3) << 4
    return codes.view(*planes.shape[:2], 8, ROWS, 4)


def _joined(bits: list[Tensor]) -> Tensor:
    total = bits[0]
    for more in bits[1:]:
        total = total | more
    return total


def _tiled(rows: Tensor) -> Tensor:
    """Return [tiles, 16, ...] of rows, filled up with zeros."""
    missing = -len(rows) % ROWS
    if missing:
        rows = torch.cat((rows, rows.new_zeros((missing, *rows.shape[1:]))))
    return rows.view(-1, ROWS, *rows.shape[1:])


def quantise_rows_ref(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (codes int8 [T, groups, 32], scales float32 [T, groups]) of `x` [T, in]: a packed product's input."""
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
    """Do linear_ref's work in linear/packed.cpp or linear/dense.cpp."""
    tokens, inputs = x.shape
    start = None if bias is None else bias.data_ptr()
    if isinstance(weight, PackedWeight):
        outputs = weight.out_features
        out = torch.empty((tokens, outputs))
        library.vox_packed_linear(
            x.data_ptr(), weight.table, len(weight.parts), start, out.data_ptr(), tokens, outputs, inputs
        )
        return out
    outputs = weight.shape[0]
    out = torch.empty((tokens, outputs))
    narrow = weight.dtype is torch.bfloat16
    library.vox_linear(x.data_ptr(), weight.data_ptr(), narrow, start, out.data_ptr(), tokens, outputs, inputs)
    return out


def embed_native(library: ctypes.CDLL, ids: Tensor, weight: PackedWeight) -> Tensor:
    """Do embed_ref's work in linear/packed.cpp, reading only the rows that are asked for."""
    out = torch.empty((ids.shape[0], weight.in_features))
    library.vox_packed_embed(ids.data_ptr(), weight.table, out.data_ptr(), ids.shape[0], weight.in_features)
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
    if len(weight.parts) != 1:
        raise ValueError("an embedding table is packed in one part")
    if ids.shape[0] and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
        raise IndexError(f"an id is outside the table's {weight.out_features} rows")
    library = native.load() if ids.is_cpu else None
    if library is None:
        return embed_ref(ids, weight)
    return embed_native(library, ids.contiguous(), weight)

"""GGUF's quantised types as codes, scales and minimums, without rounding.

It knows the bit layout of each type; it does not know files, names or kernels. A damaged scale becomes a
NaN or an infinity in the result. K-quants have blocks of 256 weights: 8 groups of 32, or 16 groups of 16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from torch import Tensor

from voxlane.engine.weights.tensors import Blocks, pieces

_CURVE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the 16 codes of IQ4_NL and IQ4_XS."""


def decode(stored: Tensor, kind: Kind, order: Tensor | None = None) -> Blocks:
    """Return stored rows, uint8 [out, bytes], of a type in KINDS as codes; `order` gives the stored row of each."""
    block, size = GGML_QUANT_SIZES[kind]
    out, inputs = stored.shape[0], stored.shape[1] // size * block
    whole: Blocks | None = None
    for rows in pieces(out, inputs):
        data = stored[rows if order is None else order[rows]]
        piece = _DECODERS[kind](data.view(len(data), -1, size))  # [rows, in / block, bytes of a block]
        if whole is None:
            whole = _room_for(piece, out)
        whole.codes[rows], whole.scales[rows] = piece.codes, piece.scales
        if whole.minimums is not None and piece.minimums is not None:
            whole.minimums[rows] = piece.minimums
    assert whole is not None, "a header with an empty tensor is refused"
    return whole


def _room_for(piece: Blocks, out: int) -> Blocks:
    """Return blocks of the same kind for `out` rows, not yet filled."""
    codes, scales = (part.new_empty((out, part.shape[1])) for part in (piece.codes, piece.scales))
    return Blocks(piece.bits, codes, scales, None if piece.minimums is None else torch.empty_like(scales))


def _q4_0(data: Tensor) -> Blocks:
    return Blocks(4, _rows(_nibbles(data[:, :, 2:])), _half(data, 0), None)


def _q4_1(data: Tensor) -> Blocks:
    return Blocks(4, _rows(_nibbles(data[:, :, 4:])), _half(data, 0), _half(data, 2))


def _q5_0(data: Tensor) -> Blocks:
    return Blocks(5, _rows(_fives(data[:, :, 2:6], data[:, :, 6:])), _half(data, 0), None)


def _q5_1(data: Tensor) -> Blocks:
    return Blocks(5, _rows(_fives(data[:, :, 4:8], data[:, :, 8:])), _half(data, 0), _half(data, 2))


def _q8_0(data: Tensor) -> Blocks:
    return Blocks(8, _rows(data[:, :, 2:]).view(torch.int8), _half(data, 0), None)


def _q2_k(data: Tensor) -> Blocks:
    scales, codes = data[:, :, :16], _pairs(data[:, :, 16:80])
    steps = _half(data, 80)[:, :, None] * (scales & 15).to(torch.float32)
    minimums = _half(data, 82)[:, :, None] * (scales >> 4).to(torch.float32)
    return Blocks(4, _rows(codes), _flat(steps), -_flat(minimums))


def _q3_k(data: Tensor) -> Blocks:
    high = torch.stack([(data[:, :, :32] >> bit) & 1 for bit in range(8)], dim=2)  # [out, blocks, 8, 32]
    # A code is -4..3, here moved up to the middle of 0..63. If the stored high bit is set, 4 is not subtracted.
    codes = _pairs(data[:, :, 32:96]).view(high.shape) + (high << 2) + 28
    low, packed = data[:, :, 96:104], data[:, :, 104:108]
    lows = torch.cat((low & 15, low >> 4), dim=2)
    highs = torch.cat([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    scales = (lows | (highs << 4)).to(torch.float32) - 32.0
    return Blocks(6, _rows(codes), _flat(_half(data, 108)[:, :, None] * scales), None)


def _q4_k(data: Tensor) -> Blocks:
    pairs = _split(data[:, :, 16:], 4, 1, 32)  # 32 bytes hold the nibbles of two groups
    codes = torch.cat((pairs & 15, pairs >> 4), dim=3)
    return Blocks(4, _rows(codes), *_scales_and_minimums(data))


def _q5_k(data: Tensor) -> Blocks:
    pairs = _split(data[:, :, 48:], 4, 1, 32)
    codes = torch.cat((pairs & 15, pairs >> 4), dim=3).flatten(2, 3)  # [out, blocks, 8, 32]
    for group in range(8):
        codes[:, :, group] |= ((data[:, :, 16:48] >> group) & 1) << 4
    return Blocks(5, _rows(codes), *_scales_and_minimums(data))


def _q6_k(data: Tensor) -> Blocks:
    low, high = _split(data[:, :, :128], 2, 64), _split(data[:, :, 128:192], 2, 32)
    codes = _split(torch.cat((low & 15, low >> 4), dim=3), 2, 4, 32)  # [out, blocks, 2, 4, 32]
    for quarter in range(4):
        codes[:, :, :, quarter] |= ((high >> (2 * quarter)) & 3) << 4
    scales = data[:, :, 192:208].view(torch.int8).to(torch.float32)
    return Blocks(6, _rows(codes), _flat(_half(data, 208)[:, :, None] * scales), None)


def _q8_k(data: Tensor) -> Blocks:
    scales = data[:, :, :4].contiguous().view(torch.float32).expand(-1, -1, 8)
    return Blocks(8, _rows(data[:, :, 4:260]).view(torch.int8), _flat(scales), None)


def _iq4_nl(data: Tensor) -> Blocks:
    return Blocks(8, _rows(_curved(_nibbles(data[:, :, 2:]))), _half(data, 0), None)


def _iq4_xs(data: Tensor) -> Blocks:
    low, high = data[:, :, 4:8], data[:, :, 2:4]
    lows = torch.stack((low & 15, low >> 4), dim=3).flatten(2)
    highs = torch.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=3).flatten(2)
    scales = (lows | (highs << 4)).to(torch.float32) - 32.0
    codes = _curved(_nibbles(_split(data[:, :, 8:], 8, 16)))
    return Blocks(8, _rows(codes), _flat(_half(data, 0)[:, :, None] * scales), None)


_DECODERS: dict[Kind, Callable[[Tensor], Blocks]] = {
    Kind.Q4_0: _q4_0,
    Kind.Q4_1: _q4_1,
    Kind.Q5_0: _q5_0,
    Kind.Q5_1: _q5_1,
    Kind.Q8_0: _q8_0,
    Kind.Q2_K: _q2_k,
    Kind.Q3_K: _q3_k,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
    Kind.Q8_K: _q8_k,
    Kind.IQ4_NL: _iq4_nl,
    Kind.IQ4_XS: _iq4_xs,
}
KINDS = frozenset(_DECODERS)
"""The types that this module reads."""


def _rows(codes: Tensor) -> Tensor:
    """Return [out, in] of codes [out, ...]."""
    return codes.reshape(codes.shape[0], -1)


def _flat(scales: Tensor) -> Tensor:
    """Return scales [out, blocks, groups of a block] as [out, groups]."""
    return scales.reshape(scales.shape[0], -1)


def _split(data: Tensor, *sizes: int) -> Tensor:
    """Return [out, blocks, *sizes] of [out, blocks, ...]."""
    return data.reshape(*data.shape[:2], *sizes)


def _half(data: Tensor, start: int) -> Tensor:
    """Return the float16 at byte `start` of every block as float32 [out, blocks]."""
    return data[:, :, start : start + 2].contiguous().view(torch.float16).to(torch.float32)[:, :, 0]


def _nibbles(packed: Tensor) -> Tensor:
    """Return a group of 32 whose byte i holds the codes i (low nibble) and i + 16 (high nibble)."""
    packed = packed.contiguous()  # one slow strided pass, then fast ones
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _fives(high: Tensor, packed: Tensor) -> Tensor:
    """Return a group of 32 whose code i has its fifth bit in bit i % 8 of byte i / 8."""
    fifth = torch.index_select(_FIFTH_BITS, 0, high.to(torch.int32).view(-1)).view(torch.uint8)
    codes = _nibbles(packed)
    return codes | fifth.view(codes.shape)


_FIFTH_BITS = torch.tensor([sum((byte >> bit & 1) << (8 * bit + 4) for bit in range(8)) for byte in range(256)])
"""For each byte eight others as one int64, in the machine's order: bit i of it is bit 4 of the i-th."""


def _pairs(packed: Tensor) -> Tensor:
    """Return [out, blocks, 256] of 2-bit codes: 32 bytes hold four runs of 32."""
    runs = _split(packed, 2, 1, 32)
    return torch.cat([(runs >> shift) & 3 for shift in (0, 2, 4, 6)], dim=3).flatten(2)


def _curved(codes: Tensor) -> Tensor:
    return torch.tensor(_CURVE, dtype=torch.int8)[codes.to(torch.int32)]


def _scales_and_minimums(data: Tensor) -> tuple[Tensor, Tensor]:
    """Return both [out, groups] of a Q4_K or Q5_K block: 6 bits each, times a float16."""
    first, second, third = data[:, :, 4:8], data[:, :, 8:12], data[:, :, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=2)
    minimums = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=2)
    steps = _half(data, 0)[:, :, None] * scales.to(torch.float32)
    return _flat(steps), -_flat(_half(data, 2)[:, :, None] * minimums.to(torch.float32))

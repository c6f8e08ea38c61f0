"""Products of rows with the matrices of their experts in Triton, on tensor cores.

A program computes one tile of one expert: some of its pairs, some outputs. How many tiles an expert has is known on the
device alone, so the grid is as large as it can get: programs past the last tile return at once. Sums are float32, in
one order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxlane.engine.kernels.linear.experts import ExpertPairs

FEW, MANY = (16, 64, 64, 4), (64, 64, 64, 4)
"""(pairs, columns, depth, warps) of a tile: the second where experts have more than 16 pairs on average."""


@triton.jit
def _expert_kernel(
    x, weight, out, order, counts, shares, pairs, experts, columns, depth,
    CHOSEN: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    number = tl.arange(0, EXPERTS)
    count = tl.load(counts + number, mask=number < experts, other=0)
    tiles = (count + ROWS - 1) // ROWS
    ends = tl.cumsum(tiles, axis=0)
    tile = tl.program_id(0)
    expert = tl.sum((ends <= tile).to(tl.int32), axis=0)
    if expert >= experts:
        return
    own = number == expert
    first = tl.sum(tl.where(number < expert, count, 0), axis=0)
    begin = (tile - tl.sum(tl.where(own, ends - tiles, 0), axis=0)) * ROWS
    row = begin + tl.arange(0, ROWS)
    real = row < tl.sum(tl.where(own, count, 0), axis=0)
    place = first + row
    pair = tl.load(order + place, mask=real, other=0).to(tl.int64)
    source = place.to(tl.int64)
    if TOKENS:
        source = pair // CHOSEN
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    matrix = weight + expert.to(tl.int64) * columns * depth
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(0, depth, DEPTH):
        deep = at + inner
        known = deep < depth
        a = tl.load(x + source[:, None] * depth + deep[None, :], mask=real[:, None] & known[None, :], other=0.0)
        b = tl.load(
            matrix + column[None, :] * depth + deep[:, None],
            mask=(column < columns)[None, :] & known[:, None],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    target = place.to(tl.int64)
    if not TOKENS:
        total *= tl.load(shares + pair, mask=real, other=0.0)[:, None]
        target = pair
    there = real[:, None] & (column < columns)[None, :]
    tl.store(out + target[:, None] * columns + column[None, :], total.to(out.dtype.element_ty), mask=there)


def expert_linear(x: Tensor, weight: Tensor, pairs: ExpertPairs, shares: Tensor | None) -> Tensor:
    """Return the products of pairs in the order of the experts, or with `shares` by the pairs' numbers."""
    count, (experts, columns, depth) = len(pairs.order), weight.shape
    out = torch.empty((count, columns), dtype=x.dtype if shares is None else torch.float32, device=x.device)
    if count == 0:
        return out
    rows, wide, deep, warps = FEW if count <= FEW[0] * experts else MANY
    most = min(count, count // rows + experts)  # every expert may have one tile that is not full
    _expert_kernel[(most, triton.cdiv(columns, wide))](
        *(x, weight, out, pairs.order, pairs.counts, shares, count, experts, columns, depth),
        CHOSEN=pairs.chosen,
        TOKENS=shares is None,
        EXPERTS=triton.next_power_of_2(experts),
        PRECISION="ieee",
        ROWS=rows,
        COLUMNS=wide,
        DEPTH=deep,
        num_warps=warps,
        num_stages=3,
    )
    return out

"""A product with its bias, curve and residual in Triton, on tensor cores, for matrices of some hundred rows.

A program computes one tile of the output. Few rows get small tiles: then the number of programs matters.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SMALL, LARGE = (16, 32, 64, 2), (64, 64, 32, 4)
"""(rows, columns, depth, warps) of a tile. On an H200, 256 rows · [192, 576]: 5.0 µs small, cuBLAS 6.9 in float32; 2048
rows · [256, 768], rounded: 7.2 µs large, cuBLAS 8.5, and that has neither curve nor residual."""

FEW = 300_000
"""Size of the output up to which small tiles are faster: large ones would leave the device idle."""


@triton.jit
def _fused_linear_kernel(
    x, weight, bias, residual, out, rows, columns, depth,
    GELU: tl.constexpr, ADD: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, DEPTH)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(0, depth, DEPTH):
        place = at + inner
        known = place < depth
        a = tl.load(x + row[:, None] * depth + place[None, :], mask=(row < rows)[:, None] & known[None, :], other=0.0)
        b = tl.load(
            weight + column[None, :] * depth + place[:, None],
            mask=(column < columns)[None, :] & known[:, None],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    total += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    place = row[:, None] * columns + column[None, :]
    real = (row < rows)[:, None] & (column < columns)[None, :]
    if ADD:
        total += tl.load(residual + place, mask=real, other=0.0)
    tl.store(out + place, total, mask=real)


def fused_linear(
    x: Tensor, weight: Tensor, bias: Tensor, *, gelu: bool, residual: Tensor | None, rounded: bool
) -> Tensor:
    """Return x · weightᵀ + bias, through the curve if wanted, plus the residual if there is one."""
    rows, (columns, depth) = len(x), weight.shape
    out = torch.empty((rows, columns), device=x.device)
    if rows == 0:
        return out
    high, wide, deep, warps = SMALL if rows * columns <= FEW else LARGE
    _fused_linear_kernel[(triton.cdiv(rows, high), triton.cdiv(columns, wide))](
        *(x, weight, bias, residual, out, rows, columns, depth),
        GELU=gelu,
        ADD=residual is not None,
        PRECISION="tf32" if rounded else "tf32x3",
        ROWS=high,
        COLUMNS=wide,
        DEPTH=deep,
        num_warps=warps,
    )
    return out

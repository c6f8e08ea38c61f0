"""Root-mean-square normalisation in Triton, one program a row, sums in float32 whatever the rows are stored in."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm_kernel(x, weight, out, residual, columns, stride, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        place = residual + row * columns + column
        value += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        tl.store(place, value.to(residual.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * columns + column, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return each row of `x` [T, n] over its root mean square, times `weight` [n], as `dtype`."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    _launch(x, weight, out, None, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to `residual` in place; return (the sum normalised, in the type of `x`; the sum)."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, weight, out, residual, eps)
    return out, residual


def _launch(x: Tensor, weight: Tensor, out: Tensor, residual: Tensor | None, eps: float) -> None:
    rows, columns = x.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(columns)
    # 8 values a thread: one 16-byte load of bfloat16.
    warps = min(max(block // 256, 1), 16)
    _rms_norm_kernel[(rows,)](
        x, weight, out, residual, columns, x.stride(0), eps, ADD=residual is not None, BLOCK=block, num_warps=warps
    )

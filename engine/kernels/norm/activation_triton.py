"""The gates of a feed-forward in Triton: silu(gate) * up and gelu(gate) * up, float32 in between."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _gate_kernel(gate_up, out, columns, stride, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    start = gate_up + row * stride + column
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # gelu in its tanh form is x * sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x³).
        gate = gate / (1.0 + tl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))
    else:
        gate = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * columns + column, (gate * up).to(out.dtype.element_ty), mask=inside)


def gate_mul(gate_up: Tensor, *, gelu: bool) -> Tensor:
    """Return silu(gate) * up, or gelu(gate) * up, for `gate_up` [T, 2n], its first n columns the gate."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, columns), dtype=gate_up.dtype, device=gate_up.device)
    if rows and columns:
        grid = (rows, triton.cdiv(columns, BLOCK))
        _gate_kernel[grid](gate_up, out, columns, gate_up.stride(0), GELU=gelu, BLOCK=BLOCK, num_warps=4)
    return out

"""A depthwise convolution and its layer norm in Triton: one program a row, the rows around it come from the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from voxlane.engine.kernels.conv.depthwise import Depthwise


@triton.jit
def _depthwise_norm_kernel(
    x, start, stop, taps, offset, weight, bias, out, columns, eps,
    STRIDE: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    real = column < columns
    first = tl.load(start + row)
    last = tl.load(stop + row)
    total = tl.load(offset + column, mask=real, other=0.0)
    for tap in tl.static_range(TAPS):
        place = row + (tap - TAPS // 2) * STRIDE + 0 * column  # [BLOCK]: a mask of one number is none to Triton 3.9
        own = real & (place >= first) & (place < last)
        value = tl.load(x + place * columns + column, mask=own, other=0.0)
        total += value * tl.load(taps + column * TAPS + tap, mask=real, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    centred = tl.where(real, total - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    gain = tl.load(weight + column, mask=real, other=0.0)
    shift = tl.load(bias + column, mask=real, other=0.0)
    tl.store(out + row * columns + column, centred * scale * gain + shift, mask=real)


def depthwise_norm(x: Tensor, start: Tensor, stop: Tensor, layer: Depthwise) -> Tensor:
    """Return the layer norm of each row's weighted sum of the rows around it, in its own sequence."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        block = triton.next_power_of_2(columns)
        _depthwise_norm_kernel[(rows,)](
            *(x, start, stop, layer.taps, layer.offset, layer.weight, layer.bias, out, columns, layer.eps),
            STRIDE=layer.stride,
            TAPS=layer.taps.shape[1],
            BLOCK=block,
            num_warps=max(block // 128, 1),
        )
    return out

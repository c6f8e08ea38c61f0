"""A depthwise convolution along rows, and the layer norm after it: the first half of a ConvNeXt block, in one pass.

Rows belong to several sequences laid end to end: each row has the start and end of its own, and reads zeros beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Depthwise:
    """The weights of one: a convolution and a layer norm over `n` channels."""

    taps: Tensor  # [n, an odd number]
    stride: int  # rows between two taps
    offset: Tensor  # [n], and the next two
    weight: Tensor
    bias: Tensor
    eps: float

    def __post_init__(self) -> None:
        channels, width = self.taps.shape
        if width % 2 == 0 or self.stride < 1 or not self.taps.is_contiguous():
            raise ValueError(f"taps {tuple(self.taps.shape)} every {self.stride} rows have no middle, or lie apart")
        if any(part.shape != (channels,) for part in (self.offset, self.weight, self.bias)):
            raise ValueError(f"offset, weight and bias must have {channels} numbers each")


def depthwise_norm_ref(x: Tensor, start: Tensor, stop: Tensor, layer: Depthwise) -> Tensor:
    """Return the layer norm of each row's weighted sum of the rows around it, in its own sequence."""
    rows, channels = x.shape
    index, width = torch.arange(rows, device=x.device), layer.taps.shape[1]
    total = layer.offset.expand(rows, channels)
    for tap in range(width):
        place = index + (tap - width // 2) * layer.stride
        own = (place >= start) & (place < stop)
        total = total + torch.where(own[:, None], x[place.clamp(0, rows - 1)], 0.0) * layer.taps[:, tap]
    return F.layer_norm(total, (channels,), layer.weight, layer.bias, layer.eps)


def depthwise_norm(x: Tensor, start: Tensor, stop: Tensor, layer: Depthwise) -> Tensor:
    """Return norm(offset + sum over d of taps[:, d] · x[t + (d - half) · stride]) for each row t of `x` [T, n].

    A row reads rows from start[t] up to and without stop[t]; both are int32 [T], and within 0 to T.
    """
    rows, channels = x.shape
    if layer.taps.shape[0] != channels or not x.is_contiguous() or x.dtype is not torch.float32:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} does not fit taps {tuple(layer.taps.shape)}")
    if any(part.shape != (rows,) or part.dtype is not torch.int32 for part in (start, stop)):
        raise ValueError(f"start {tuple(start.shape)} and stop {tuple(stop.shape)} must be int32, one for each row")
    if x.is_cuda:
        from voxlane.engine.kernels.conv import depthwise_triton  # here: without a device there may be no Triton

        return depthwise_triton.depthwise_norm(x, start, stop, layer)
    return depthwise_norm_ref(x, start, stop, layer)

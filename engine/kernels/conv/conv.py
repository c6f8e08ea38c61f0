"""Convolution along time as one matrix product over windows: float or packed weights, several clips at once.

With channels last, a window is a run of neighbouring numbers, so a product of rows (kernels/linear/linear.py) does the
work, and one window's bits do not depend on the rest of the call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.linear.linear import PackedWeight, linear
from voxlane.engine.weights.tensors import GROUP


def conv_ref(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int = 0) -> Tensor:
    """Return the convolution [T', out] of one clip `x` [T, channels] with `weight` [out, channels, kernel]."""
    return F.conv1d(x.T[None], weight, bias, stride, padding)[0].T


def flatten(weight: Tensor) -> Tensor:
    """Return a convolution's weight [out, channels, kernel] as the matrix that conv takes.

    It is [out, columns(kernel, channels)]: windows one after the other, then zeros, so that it can be packed.
    """
    out, channels, kernel = weight.shape
    flat = weight.permute(0, 2, 1).reshape(out, kernel * channels)
    return F.pad(flat, (0, columns(kernel, channels) - kernel * channels))


def columns(kernel: int, channels: int) -> int:
    """Return the inputs of a flattened convolution: whole groups of a packed product."""
    return -(-kernel * channels // GROUP) * GROUP


def conv(
    clips: Sequence[Tensor],
    weight: Tensor | PackedWeight,
    bias: Tensor | None,
    kernel: int,
    stride: int,
    padding: int = 0,
) -> list[Tensor]:
    """Return the convolution [T', out] of every clip [T, channels], `padding` zeros at both ends.

    The weight is flatten()'s, or a matrix of its columns without the zeros.
    """
    width = weight.in_features if isinstance(weight, PackedWeight) else weight.shape[1]
    windows = [_windows(clip, kernel, stride, padding, width) for clip in clips]
    out = linear(torch.cat(windows) if len(windows) > 1 else windows[0], weight, bias)
    ends = list(itertools.accumulate((len(rows) for rows in windows), initial=0))
    return [out[first:last] for first, last in itertools.pairwise(ends)]


def conv_together(
    clips: Tensor, weight: Tensor, bias: Tensor | None, kernel: int, stride: int, padding: int = 0
) -> Tensor:
    """Return the convolution [clips, T', out] of clips [clips, T, channels] of equal length, in one product."""
    padded = F.pad(clips, (0, 0, padding, padding)) if padding else clips.contiguous()
    count, length, channels = padded.shape
    width, size = output_length(length, kernel, stride), kernel * channels
    if not width:
        raise ValueError(f"a clip of {length} is shorter than a window of {kernel}")
    windows = padded.as_strided((count, width, size), (length * channels, stride * channels, 1))
    rows = windows.reshape(count * width, size)
    if size < weight.shape[1]:
        rows = F.pad(rows, (0, weight.shape[1] - size))
    return linear(rows, weight, bias).view(count, width, -1)


def output_length(length: int, kernel: int, stride: int, padding: int = 0) -> int:
    """Return how many windows fit into `length` inputs."""
    return max(0, (length + 2 * padding - kernel) // stride + 1)


def _windows(clip: Tensor, kernel: int, stride: int, padding: int, width: int) -> Tensor:
    if clip.ndim != 2:
        raise ValueError(f"clip {tuple(clip.shape)}: [T, channels] is needed")
    padded = F.pad(clip, (0, 0, padding, padding)) if padding else clip.contiguous()
    length, channels = padded.shape
    count = output_length(length, kernel, stride)
    if not count:
        raise ValueError(f"a clip of {length} is shorter than a window of {kernel}")
    found = padded.as_strided((count, kernel * channels), (stride * channels, 1))
    return F.pad(found, (0, width - kernel * channels)).contiguous()

"""What streaming vocoders are built of: causal convolution, causal upsampling, and the snake curve between them.

Sound is [streams, time, channels]. Every function takes what came before the new inputs in front of them and gives
exactly the outputs of the new ones: who keeps those tails, and for which stream, is the model's business.

On CUDA these are torch's own products and convolutions, without a copy: channels last is the layout that tensor cores
read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def conv_weight(weight: Tensor) -> Tensor:
    """Return a convolution's weight [out, in, kernel] in the form causal_conv takes on its device, in its type."""
    if weight.is_cpu and weight.dtype is torch.float32:
        return weight.permute(2, 1, 0).contiguous()
    return weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)  # [out, in, 1, kernel]


def causal_conv_ref(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    """Return the convolution [B, T, out] of `x` [B, (kernel - 1) * dilation + T, in], `weight` [out, in, kernel]."""
    return F.conv1d(x.transpose(1, 2), weight, bias, dilation=dilation).transpose(1, 2)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    """Return the convolution [B, T, out] of `x` [B, (kernel - 1) * dilation + T, in], its taps `dilation` apart.

    The weight is conv_weight()'s.
    """
    taps, inputs = (weight.shape[0], weight.shape[1]) if weight.ndim == 3 else (weight.shape[3], weight.shape[1])
    if x.ndim != 3 or x.shape[2] != inputs or x.shape[1] <= (taps - 1) * dilation:
        raise ValueError(f"x {tuple(x.shape)}: [B, T, {inputs}] is needed, longer than {(taps - 1) * dilation}")
    if weight.ndim == 3:
        return _conv_by_taps(x, weight, bias, dilation)
    # As pictures of one line, channels last: nothing moves in memory, and sums are float32 until they are whole.
    lines = x.contiguous().transpose(1, 2).unsqueeze(2)  # [B, in, 1, T]
    return F.conv2d(lines, weight, bias, dilation=(1, dilation)).squeeze(2).transpose(1, 2).contiguous()


def _conv_by_taps(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Add up one product for each tap: 7.6 to 9.6 ms where torch's conv1d takes 9 to 14 (a frame, one ARM core)."""
    batch = x.shape[0]
    length = x.shape[1] - (len(weight) - 1) * dilation
    out = torch.baddbmm(bias.expand(batch, length, -1), x[:, :length], weight[0].expand(batch, -1, -1))
    for tap in range(1, len(weight)):
        begin = tap * dilation
        out.baddbmm_(x[:, begin : begin + length], weight[tap].expand(batch, -1, -1))
    return out


def depthwise_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the convolution [B, T, n] of each channel of `x` [B, kernel - 1 + T, n] with `weight` [n, kernel] float32.

    It is summed in float32.
    """
    return ((x.to(torch.float32).unfold(1, weight.shape[1], 1) * weight).sum(dim=-1) + bias).to(x.dtype)


def upsample_matrix(weight: Tensor, stride: int) -> Tensor:
    """Return a transposed convolution's weight [in, out, kernel] as the matrix that causal_upsample takes.

    It is [stride * out, taps * in]: one output step after the other, from `taps` inputs, the oldest first.
    """
    inputs, outputs, kernel = weight.shape
    taps = weight.reshape(inputs, outputs, kernel // stride, stride).flip(2)
    return taps.permute(3, 1, 2, 0).reshape(stride * outputs, kernel // stride * inputs).contiguous()


def causal_upsample(x: Tensor, matrix: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Return `x` [B, taps - 1 + T, in] stretched to [B, T * stride, out] by upsample_matrix()'s matrix.

    It is the transposed convolution without the end that later inputs would still change; `bias` [stride * out] is the
    same for every step.
    """
    batch, length, inputs = x.shape
    taps = matrix.shape[1] // inputs
    length -= taps - 1
    windows = torch.cat([x[:, tap : tap + length] for tap in range(taps)], dim=2) if taps > 1 else x
    return F.linear(windows, matrix, bias).view(batch, length * stride, -1)


def snake(x: Tensor, frequency: Tensor, depth: Tensor) -> Tensor:
    """Return x + depth * sin(frequency * x) ** 2 for each channel of `x` [..., n], computed in float32."""
    wide = x.to(torch.float32)
    waves = (wide * frequency).sin_().square_()
    return torch.addcmul(wide, waves, depth).to(x.dtype)

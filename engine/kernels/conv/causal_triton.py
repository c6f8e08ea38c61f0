"""Causal convolution in Triton, and the join of new inputs to those a stream has kept, each with the snake after it.

A convolution is a product whose left side is read through its windows, which are never laid out in memory.

When inputs are joined, a program takes some steps of one stream, all channels. Where there are at least as many new
steps as kept ones, the program that reads a kept step also writes its successor, so no program reads a half-written
tail.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP_NUMBERS = 4096
"""Numbers of a program: 16 a thread."""


@triton.jit
def _curve(x, frequency, depth, SNAKE: tl.constexpr):
    if SNAKE:
        wave = tl.sin(x * frequency)
        x = x + wave * wave * depth
    return x


@triton.jit(do_not_specialize=["length", "steps"])
def _extend_kernel(
    x, out, tail, rows, frequency, depth, tail_stride, length, steps, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    STEPS: tl.constexpr, SNAKE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    stream, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * STEPS
    channel = tl.arange(0, WIDTH)[None, :]
    real = channel < CHANNELS
    step = first + tl.arange(0, STEPS)[:, None]
    f, d = 0.0, 0.0
    if SNAKE:
        f, d = tl.load(frequency + channel, mask=real, other=0.0), tl.load(depth + channel, mask=real, other=0.0)
    fresh = x + stream * steps * CHANNELS + channel
    new = (step >= length) & (step < length + steps) & real
    value = _curve(tl.load(fresh + (step - length) * CHANNELS, mask=new, other=0.0).to(tl.float32), f, d, SNAKE)
    value = value.to(out.dtype.element_ty)
    if tail is not None:
        old = (step < length) & real
        kept = tail + tl.load(rows + stream) * tail_stride + step * CHANNELS + channel
        value = tl.where(old, tl.load(kept, mask=old, other=0.0), value)
        if KEEP:
            ends = fresh + (steps - length + step) * CHANNELS
            end = _curve(tl.load(ends, mask=old, other=0.0).to(tl.float32), f, d, SNAKE)
            tl.store(kept, end.to(tail.dtype.element_ty), mask=old)
    place = out + (stream * (length + steps) + step) * CHANNELS + channel
    tl.store(place, value, mask=(step < length + steps) & real)


def extend(
    x: Tensor, tail: Tensor | None, rows: Tensor | None, frequency: Tensor | None, depth: Tensor | None
) -> Tensor:
    """Return the snake of `x` [B, T, n], or `x` itself, behind the kept steps of some rows; these keep its end."""
    batch, steps, channels = x.shape
    length = 0 if tail is None else tail.shape[1]
    out = torch.empty((batch, length + steps, channels), dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(channels)
    size = max(1, STEP_NUMBERS // width)
    _extend_kernel[(batch, triton.cdiv(length + steps, size))](
        *(x, out, tail, rows, frequency, depth, 0 if tail is None else tail.stride(0), length, steps),
        CHANNELS=channels,
        WIDTH=width,
        STEPS=size,
        SNAKE=frequency is not None,
        KEEP=steps >= length,
        num_warps=8,
    )
    if tail is not None and rows is not None and steps < length:
        tail.index_copy_(0, rows, out[:, steps:])
    return out


@triton.jit(do_not_specialize=["rows", "steps", "span", "dilation"])
def _conv_kernel(
    x, weight, out, bias, frequency, depth, residual, rows, steps, span, dilation, outputs, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, SNAKE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * M + tl.arange(0, M)
    output = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    there, wanted = row < rows, output < outputs
    start = x + ((row // steps).to(tl.int64) * span + row % steps) * CHANNELS
    own = weight + output.to(tl.int64) * (TAPS * CHANNELS)
    total = tl.zeros([M, N], dtype=tl.float32)
    parts: tl.constexpr = (CHANNELS + K - 1) // K
    for part in range(TAPS * parts):
        tap = part // parts
        channel = (part % parts) * K + inner
        real = channel < CHANNELS
        left = tl.load(
            start[:, None] + (tap * dilation * CHANNELS + channel)[None, :],
            mask=there[:, None] & real[None, :],
            other=0.0,
        )
        right = tl.load(
            own[None, :] + (tap * CHANNELS + channel)[:, None], mask=real[:, None] & wanted[None, :], other=0.0
        )
        total = tl.dot(left, right, total)
    total += tl.load(bias + output, mask=wanted, other=0.0).to(tl.float32)[None, :]
    if SNAKE:
        f = tl.load(frequency + output, mask=wanted, other=0.0)[None, :]
        d = tl.load(depth + output, mask=wanted, other=0.0)[None, :]
        total = _curve(total.to(out.dtype.element_ty).to(tl.float32), f, d, SNAKE)
    place, inside = row.to(tl.int64)[:, None] * outputs + output[None, :], there[:, None] & wanted[None, :]
    if residual is not None:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    dilation: int,
    frequency: Tensor | None = None,
    depth: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return the convolution [B, T, out] of `x` [B, span, in] with `weight` [out, taps * in], or its snake.

    `residual` [B, T, out] is added at the end.
    """
    batch, span, channels = x.shape
    outputs, taps = weight.shape[0], weight.shape[1] // channels
    steps = span - (taps - 1) * dilation
    out = torch.empty((batch, steps, outputs), dtype=x.dtype, device=x.device)
    columns = 16 if outputs < 16 else 64 if outputs % 128 and outputs > 128 else 128
    tile, deep = 128, 32 if channels % 64 else 64
    _conv_kernel[(triton.cdiv(batch * steps, tile), triton.cdiv(outputs, columns))](
        *(x, weight, out, bias, frequency, depth, residual, batch * steps, steps, span, dilation, outputs),
        CHANNELS=channels,
        TAPS=taps,
        SNAKE=frequency is not None,
        M=tile,
        N=columns,
        K=deep,
        num_warps=4 if columns < 128 else 8,
        num_stages=3,
    )
    return out

"""Products of a few rows with a matrix in Triton, with what comes before and after them: norm, gate, residual.

With so few rows a product is a read of the matrix, and a decode step is a chain of short reads: what counts is how much
of the chip reads at once, and how few launches there are. A program takes BLOCK_N outputs and the whole depth. The
norm's factor multiplies the sum at the end, since it is the same for all of a row, so its row is read once, in passing.

With PDL a program starts while the launch before it still runs, and has its first weights on their way before it waits
for what that launch writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.attention import paged_triton, triton_tuning
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.triton_overlap import launch_options, overlaps


@dataclass(frozen=True, slots=True)
class ProductTuning:
    """How a product is cut and compiled."""

    block_n: int
    block_k: int
    warps: int
    stages: int = 1


# Measured on an H200 for one row of Qwen3-0.6B, by the depth, a power of two.
_CUTS = {1024: ProductTuning(16, 1024, 4), 2048: ProductTuning(4, 2048, 8), 4096: ProductTuning(8, 4096, 8)}
_GATE_CUTS = {1024: ProductTuning(8, 1024, 4), 2048: ProductTuning(4, 2048, 4)}  # each has two matrices on its way
_DEEP_CUT = ProductTuning(8, 1024, 4, 4)  # deeper than any of these: too much to have all of it on its way at once

SPLIT = 128
"""Positions of a piece of attention: with so few rows, pieces as long as many rows want leave most of the chip idle."""


def tuning(rows: int, outputs: int, inputs: int, *, gate: bool) -> ProductTuning:
    """Return how a product of `rows` rows with a matrix [outputs, inputs] is cut."""
    cuts = _GATE_CUTS if gate else _CUTS
    cut = cuts.get(max(triton.next_power_of_2(inputs), 1024), _DEEP_CUT)
    # A thread has as much to add up for two rows as for one.
    return ProductTuning(cut.block_n, cut.block_k, min(cut.warps * triton.next_power_of_2(rows), 16), cut.stages)


@triton.jit
def _weights(matrix, row, column, inputs, live, EVEN: tl.constexpr):
    place = matrix + row.to(tl.int64)[:, None] * inputs + column[None, :]
    if EVEN:
        return tl.load(place, mask=live[:, None], other=0.0)
    else:
        return tl.load(place, mask=live[:, None] & (column < inputs)[None, :], other=0.0)


@triton.jit
def _rows(x, gain, row, column, rows, inputs, NORM: tl.constexpr):
    """Return a piece of the rows [ROWS, BLOCK_K], times the norm's gain, and what it adds to their sums of squares."""
    inside = (row < rows)[:, None] & (column < inputs)[None, :]
    value = tl.load(x + row[:, None] * inputs + column[None, :], mask=inside, other=0.0).to(tl.float32)
    squares = tl.sum(value * value, axis=1)
    if NORM:
        value = value * tl.load(gain + column, mask=column < inputs, other=0.0)[None, :]
    return value, squares


@triton.jit
def _product(value, weight):
    # The rows are rounded as they are where a norm's output is stored.
    seen = value.to(weight.dtype).to(tl.float32)
    return tl.sum(seen[:, None, :] * weight.to(tl.float32)[None, :, :], axis=2)


@triton.jit(do_not_specialize=["rows"])
def _few_kernel(
    x, matrix, out, gain, bias, rows, outputs, eps, INPUTS: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    EVEN: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    live = output < outputs
    squares = tl.zeros([ROWS], dtype=tl.float32)
    total = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    gated = tl.zeros([ROWS, BLOCK_N], dtype=tl.float32)
    if WHOLE:
        column = tl.arange(0, BLOCK_K)
        weight = _weights(matrix, output, column, INPUTS, live, EVEN)
        if GATE:
            up = _weights(matrix, output + outputs, column, INPUTS, live, EVEN)
        if PDL:
            gdc_launch_dependents()
            gdc_wait()
        value, squares = _rows(x, gain, row, column, rows, INPUTS, NORM)
        total = _product(value, weight)
        if GATE:
            gated = _product(value, up)
    else:
        if PDL:
            gdc_launch_dependents()
            gdc_wait()
        for begin in tl.range(0, INPUTS, BLOCK_K, num_stages=STAGES):
            column = begin + tl.arange(0, BLOCK_K)
            weight = _weights(matrix, output, column, INPUTS, live, EVEN)
            value, more = _rows(x, gain, row, column, rows, INPUTS, NORM)
            squares += more
            total += _product(value, weight)
            if GATE:
                up = _weights(matrix, output + outputs, column, INPUTS, live, EVEN)
                gated += _product(value, up)
    if NORM:
        factor = tl.rsqrt(squares / INPUTS + eps)[:, None]
        total *= factor
        gated *= factor
    if bias is not None:
        total += tl.load(bias + output, mask=live, other=0.0).to(tl.float32)[None, :]
    if GATE:
        if GELU:
            curve = total / (1.0 + tl.exp(-1.5957691216057308 * (total + 0.044715 * total * total * total)))
        else:
            curve = total / (1.0 + tl.exp(-total))
        total = curve * gated
    place = out + row[:, None] * outputs + output[None, :]
    inside = (row < rows)[:, None] & live[None, :]
    if ADD:
        total += tl.load(place, mask=inside, other=0.0)
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)


def _launch(
    x: Tensor,
    matrix: Tensor,
    out: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    gate: bool = False,
    gelu: bool = False,
    add: bool = False,
) -> None:
    rows, inputs = x.shape
    outputs = out.shape[1]
    cut = tuning(rows, matrix.shape[0], inputs, gate=gate)
    overlap = overlaps(x.device)
    _few_kernel[(triton.cdiv(outputs, cut.block_n),)](
        *(x, matrix, out, gain, bias, rows, outputs, eps),
        INPUTS=inputs,
        NORM=gain is not None,
        GATE=gate,
        GELU=gelu,
        ADD=add,
        EVEN=inputs % cut.block_k == 0,
        WHOLE=inputs <= cut.block_k,
        ROWS=triton.next_power_of_2(rows),
        BLOCK_N=cut.block_n,
        BLOCK_K=cut.block_k,
        STAGES=cut.stages,
        PDL=overlap,
        num_warps=cut.warps,
        num_stages=cut.stages,
        **launch_options(overlap=overlap),
    )


def norm_linear(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Return rms_norm(residual) [T, in] times the transpose of `matrix` [out, in], plus `bias`."""
    out = torch.empty((residual.shape[0], matrix.shape[0]), dtype=matrix.dtype, device=matrix.device)
    _launch(residual, matrix, out, gain, bias, eps)
    return out


def norm_gate(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, *, gelu: bool) -> Tensor:
    """Return the gated product of rms_norm(residual) with `matrix` [2n, in], its first n rows the gate."""
    out = torch.empty((residual.shape[0], matrix.shape[0] // 2), dtype=matrix.dtype, device=matrix.device)
    _launch(residual, matrix, out, gain, None, eps, gate=True, gelu=gelu)
    return out


def linear_add(x: Tensor, matrix: Tensor, residual: Tensor) -> None:
    """Add `x` [T, in] times the transpose of `matrix` [out, in] to `residual` [T, out] in place."""
    _launch(x, matrix, residual, None, None, 0.0, add=True)


def linear_wide(x: Tensor, matrix: Tensor) -> Tensor:
    """Return `x` [T, in] times the transpose of `matrix` [out, in] in float32."""
    out = torch.empty((x.shape[0], matrix.shape[0]), dtype=torch.float32, device=matrix.device)
    _launch(x, matrix, out, None, None, 0.0)
    return out


def attend(q: Tensor, pages: Pages, layout: Layout, scale: float, window: int) -> Tensor:
    """Return attention's output for one query of each of a few rows, in shorter pieces than many rows want."""
    cut = replace(triton_tuning.decode_tuning(q.shape[2], pages.k.dtype), split=SPLIT)
    return paged_triton.paged_attention_triton(q, pages, layout, scale, window, decode=cut)

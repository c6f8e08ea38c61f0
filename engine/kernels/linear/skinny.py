"""The operations of a layer for one or two rows: products fused with the norm, gate or residual, and attention.

For CUDA, where a decode step of a few rows is a chain of launches each too short to fill the chip: four launches do the
work of eight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.paged import paged_attention
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear.linear import linear_ref
from voxlane.engine.kernels.norm.activation import gelu_tanh_mul_ref, silu_mul_ref
from voxlane.engine.kernels.norm.rms_norm import rms_norm_ref

MAX_ROWS = 2
"""Above this the library's products are faster: 1.6 ms a step of Qwen3-0.6B for 4 rows, where these took 2.1."""

TWO_ROWS_DEPTH = 1024
"""Two rows of deeper matrices are the library's too: 28 layers of 2048 took 2.0 ms here, and eight rows 1.6 there."""


def serves(rows: int, *matrices: object) -> bool:
    """Return whether these operations take so many rows and matrices of this kind: bfloat16 on CUDA."""
    return 0 < rows <= MAX_ROWS and all(
        isinstance(matrix, Tensor)
        and matrix.is_cuda
        and matrix.dtype is torch.bfloat16
        and (rows == 1 or matrix.shape[1] <= TWO_ROWS_DEPTH)
        for matrix in matrices
    )


def norm_linear_ref(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rms_norm(residual) [T, in] times the transpose of `matrix` [out, in], plus `bias`."""
    return linear_ref(rms_norm_ref(residual, gain, eps, matrix.dtype), matrix, bias)


def norm_gate_ref(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, *, gelu: bool = False) -> Tensor:
    """Return the gated product of rms_norm(residual) with `matrix` [2n, in], its first n rows the gate."""
    product = norm_linear_ref(residual, gain, eps, matrix)
    return gelu_tanh_mul_ref(product) if gelu else silu_mul_ref(product)


def linear_add_ref(x: Tensor, matrix: Tensor, residual: Tensor) -> None:
    """Add `x` [T, in] times the transpose of `matrix` [out, in] to `residual` [T, out] in place."""
    residual += linear_ref(x, matrix)


def linear_wide_ref(x: Tensor, matrix: Tensor) -> Tensor:
    """Return `x` [T, in] times the transpose of `matrix` [out, in] in float32."""
    return linear_ref(x.to(torch.float32), matrix.to(torch.float32))


def norm_linear(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rms_norm(residual) [T, in] times the transpose of `matrix` [out, in], plus `bias`."""
    _check(residual, matrix, gain)
    if not matrix.is_cuda:
        return norm_linear_ref(residual, gain, eps, matrix, bias)
    from voxlane.engine.kernels.linear import skinny_triton

    return skinny_triton.norm_linear(residual, gain, eps, matrix, bias)


def norm_gate(residual: Tensor, gain: Tensor, eps: float, matrix: Tensor, *, gelu: bool = False) -> Tensor:
    """Return the gated product of rms_norm(residual) with `matrix` [2n, in], its first n rows the gate."""
    _check(residual, matrix, gain)
    if not matrix.is_cuda:
        return norm_gate_ref(residual, gain, eps, matrix, gelu=gelu)
    from voxlane.engine.kernels.linear import skinny_triton

    return skinny_triton.norm_gate(residual, gain, eps, matrix, gelu=gelu)


def linear_add(x: Tensor, matrix: Tensor, residual: Tensor) -> None:
    """Add `x` [T, in] times the transpose of `matrix` [out, in] to `residual` [T, out] in place."""
    _check(x, matrix, None)
    if residual.shape != (x.shape[0], matrix.shape[0]) or not residual.is_contiguous():
        raise ValueError(f"residual {tuple(residual.shape)} does not take a product with {tuple(matrix.shape)}")
    if not matrix.is_cuda:
        linear_add_ref(x, matrix, residual)
        return
    from voxlane.engine.kernels.linear import skinny_triton

    skinny_triton.linear_add(x, matrix, residual)


def linear_wide(x: Tensor, matrix: Tensor) -> Tensor:
    """Return `x` [T, in] times the transpose of `matrix` [out, in] in float32, whatever the two are stored in."""
    _check(x, matrix, None)
    if not matrix.is_cuda:
        return linear_wide_ref(x, matrix)
    from voxlane.engine.kernels.linear import skinny_triton

    return skinny_triton.linear_wide(x, matrix)


def attend(q: Tensor, pages: Pages, layout: Layout, scale: float, window: int) -> Tensor:
    """Return attention's output [T, H * D] for a few rows of one query; their keys are cut finer than those of many."""
    if not q.is_cuda or layout.max_query != 1:
        return paged_attention(q, pages, layout, scale, window)
    from voxlane.engine.kernels.linear import skinny_triton

    return skinny_triton.attend(q, pages, layout, scale, window)


def _check(x: Tensor, matrix: Tensor, gain: Tensor | None) -> None:
    if x.ndim != 2 or matrix.ndim != 2 or x.shape[1] != matrix.shape[1] or x.shape[0] > MAX_ROWS:
        raise ValueError(f"{tuple(x.shape)} times {tuple(matrix.shape)}: at most {MAX_ROWS} rows of the same depth")
    if not x.is_contiguous() or not matrix.is_contiguous() or (gain is not None and gain.shape != (x.shape[1],)):
        raise ValueError("rows and matrices must be contiguous, and a gain as long as a row")

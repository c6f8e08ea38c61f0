"""Root-mean-square normalisation, alone or fused with the residual addition before it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from voxlane.engine.kernels import native


def rms_norm_ref(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return each row of `x` [T, n] divided by its root mean square, times `weight` [n]."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.to(torch.float32)).to(dtype or x.dtype)


def add_rms_norm_ref(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to `residual` in place; return (the sum normalised, the sum, which is `residual` itself)."""
    residual += x
    return rms_norm_ref(residual, weight, eps, x.dtype), residual


def rms_norm_native(library: ctypes.CDLL, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Do rms_norm_ref's work in norm/rowwise.cpp."""
    rows, columns = x.shape
    out = torch.empty((rows, columns))
    library.vox_rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, columns, eps)
    return out


def add_rms_norm_native(
    library: ctypes.CDLL, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Do add_rms_norm_ref's work in norm/rowwise.cpp."""
    rows, columns = x.shape
    out = torch.empty((rows, columns))
    library.vox_add_rms_norm(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, columns, eps)
    return out, residual


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return each row of `x` [T, n] divided by its root mean square, times `weight` [n], as `dtype` or that of `x`."""
    _check(x, weight)
    dtype = dtype or x.dtype
    if x.is_cuda:
        from voxlane.engine.kernels.norm import rms_norm_triton

        return rms_norm_triton.rms_norm(x, weight, eps, dtype)
    library = native.library(x) if dtype is x.dtype else None
    return rms_norm_ref(x, weight, eps, dtype) if library is None else rms_norm_native(library, x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add `x` to `residual` in place; return (the sum normalised, the sum, which is `residual` itself).

    The residual may be wider than `x`; the norm is in the type of `x`.
    """
    _check(x, weight)
    if residual.shape != x.shape or residual.dtype.itemsize < x.dtype.itemsize or not residual.is_contiguous():
        raise ValueError(f"residual {tuple(residual.shape)} does not match x {tuple(x.shape)}")
    if x.is_cuda:
        from voxlane.engine.kernels.norm import rms_norm_triton

        return rms_norm_triton.add_rms_norm(x, residual, weight, eps)
    library = native.library(x) if residual.dtype is x.dtype else None
    if library is None:
        return add_rms_norm_ref(x, residual, weight, eps)
    return add_rms_norm_native(library, x, residual, weight, eps)


def _check(x: Tensor, weight: Tensor) -> None:
    if x.ndim != 2 or weight.ndim != 1 or x.shape[1] != weight.shape[0]:
        raise ValueError(f"rms_norm of x {tuple(x.shape)} with weight {tuple(weight.shape)}: [T, n] and [n] are needed")
    if not x.is_contiguous() or weight.dtype != torch.float32:
        raise ValueError("rms_norm needs contiguous rows and float32 weights")

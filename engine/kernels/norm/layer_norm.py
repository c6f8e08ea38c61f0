"""Layer normalisation, alone or fused with the residual addition before it, and the pointwise curves of speech models.

One row's bits do not depend on the rows beside it. On CUDA the curves are torch's own: each is one pass over numbers
that a product has just written, and the product adds the bias itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels import native


def layer_norm_ref(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> Tensor:
    """Return each row of `x` [T, n] less its mean, divided by its deviation, times `weight` [n] plus `bias` [n]."""
    return F.layer_norm(x.to(torch.float32), weight.shape, weight, bias, eps).to(dtype or x.dtype)


def add_layer_norm_ref(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Add `x` to `residual` in place; return (the sum normalised, the sum, which is `residual` itself)."""
    residual += x
    return layer_norm_ref(residual, weight, bias, eps, x.dtype), residual


def layer_norm_native(library: ctypes.CDLL, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Do layer_norm_ref's work in norm/layer_norm.cpp."""
    out = torch.empty_like(x)
    library.vox_layer_norm(x.data_ptr(), weight.data_ptr(), native.pointer(bias), out.data_ptr(), *x.shape, eps)
    return out


def add_layer_norm_native(
    library: ctypes.CDLL, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Do add_layer_norm_ref's work in norm/layer_norm.cpp."""
    out = torch.empty_like(x)
    library.vox_add_layer_norm(
        *(x.data_ptr(), residual.data_ptr(), weight.data_ptr(), native.pointer(bias), out.data_ptr()), *x.shape, eps
    )
    return out, residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return each row of `x` [T, n] less its mean, divided by its deviation, times `weight` [n] plus `bias` [n].

    The result has type `dtype`, or that of `x`.
    """
    _check(x, weight, bias)
    dtype = dtype or x.dtype
    if x.is_cuda:
        from voxlane.engine.kernels.norm import (
            layer_norm_triton as kernels,  # here: without a device there may be no Triton
        )

        return kernels.layer_norm(x, weight, bias, eps, dtype)
    library = native.library(x) if dtype is x.dtype else None
    if library is None:
        return layer_norm_ref(x, weight, bias, eps, dtype)
    return layer_norm_native(library, x, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Add `x` to `residual` in place; return (the sum normalised, the sum, which is `residual` itself).

    The residual may be wider than `x`; the norm is in the type of `x`.
    """
    _check(x, weight, bias)
    if residual.shape != x.shape or residual.dtype.itemsize < x.dtype.itemsize or not residual.is_contiguous():
        raise ValueError(f"residual {tuple(residual.shape)} does not match x {tuple(x.shape)}")
    if x.is_cuda:
        from voxlane.engine.kernels.norm import layer_norm_triton as kernels

        return kernels.add_layer_norm(x, residual, weight, bias, eps)
    library = native.library(x) if residual.dtype is x.dtype else None
    if library is None:
        return add_layer_norm_ref(x, residual, weight, bias, eps)
    return add_layer_norm_native(library, x, residual, weight, bias, eps)


def gelu(x: Tensor) -> Tensor:
    """Return x times the normal distribution's integral up to x, for `x` [T, n], which it overwrites."""
    return _curve(x, "vox_gelu", F.gelu)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of `x` [T, n], which it overwrites; absolute error below 2e-7."""
    return _curve(x, "vox_tanh", torch.tanh)


def curve_native(library: ctypes.CDLL, x: Tensor, name: str) -> Tensor:
    """Do F.gelu's or torch.tanh's work in norm/layer_norm.cpp, in place."""
    getattr(library, name)(x.data_ptr(), *x.shape)
    return x


def _curve(x: Tensor, name: str, reference: Callable[[Tensor], Tensor]) -> Tensor:
    if x.ndim != 2 or not x.is_contiguous():
        raise ValueError(f"x {tuple(x.shape)}: contiguous [T, n] is needed")
    library = native.library(x)
    if library is None:
        return reference(x)
    return curve_native(library, x, name)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.ndim != 2 or weight.shape != x.shape[1:] or (bias is not None and bias.shape != weight.shape):
        raise ValueError(f"layer_norm of x {tuple(x.shape)} with weight {tuple(weight.shape)}: [T, n], [n] are needed")
    if not x.is_contiguous() or weight.dtype is not torch.float32:
        raise ValueError("layer_norm needs contiguous rows and float32 weights")

"""A product with its bias and then GELU or the residual, in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fused_linear_ref(x: Tensor, weight: Tensor, bias: Tensor, *, gelu: bool, residual: Tensor | None) -> Tensor:
    """Return x · weightᵀ + bias, through the curve if wanted, plus the residual if there is one."""
    out = F.linear(x, weight, bias)
    if gelu:
        out = F.gelu(out)
    return out if residual is None else out + residual


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    gelu: bool = False,
    residual: Tensor | None = None,
    rounded: bool = False,
) -> Tensor:
    """Return x [T, in] · weight [out, in]ᵀ + bias [out], GELU of that if wanted, plus `residual` [T, out] if given.

    All are float32 and contiguous. On CUDA a product's factors are cut to 11 bits (TF32) if `rounded`, an error of
    8e-4; else three such products restore the cut bits, and the error is 1.4e-7 (cuBLAS in float32: 2.5e-7).
    """
    rows, (columns, depth) = len(x), weight.shape
    if x.shape != (rows, depth) or bias.shape != (columns,):
        raise ValueError(f"x {tuple(x.shape)}, weight {tuple(weight.shape)} and bias {tuple(bias.shape)} do not fit")
    if residual is not None and residual.shape != (rows, columns):
        raise ValueError(f"residual {tuple(residual.shape)} is not [{rows}, {columns}]")
    parts = (x, weight, bias) if residual is None else (x, weight, bias, residual)
    if not all(part.is_contiguous() and part.dtype is torch.float32 for part in parts):
        raise ValueError("fused_linear needs contiguous float32")
    if x.is_cuda:
        from voxlane.engine.kernels.linear import (
            fused_triton as kernels,  # here: without a device there may be no Triton
        )

        return kernels.fused_linear(x, weight, bias, gelu=gelu, residual=residual, rounded=rounded)
    return fused_linear_ref(x, weight, bias, gelu=gelu, residual=residual)

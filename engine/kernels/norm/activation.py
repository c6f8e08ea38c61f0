"""The gates between a feed-forward's two matrices: silu(gate) * up and gelu(gate) * up, each in one pass.

The native exponential (native/simd.h) is off by at most 1.01 units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels import native


def silu_mul_ref(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up for `gate_up` [T, 2n], its first n columns the gate."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul_ref(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up for `gate_up` [T, 2n], gelu in its tanh form."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def gate_native(function: Callable[[int, int, int, int], None], gate_up: Tensor) -> Tensor:
    """Do the work of silu_mul_ref or gelu_tanh_mul_ref with the library's `function` (norm/rowwise.cpp)."""
    rows, columns = gate_up.shape
    out = torch.empty((rows, columns // 2))
    function(gate_up.data_ptr(), out.data_ptr(), rows, columns // 2)
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up for `gate_up` [T, 2n], its first n columns the gate."""
    _check(gate_up)
    if gate_up.is_cuda:
        from voxlane.engine.kernels.norm import activation_triton

        return activation_triton.gate_mul(gate_up, gelu=False)
    library = native.library(gate_up)
    return silu_mul_ref(gate_up) if library is None else gate_native(library.vox_silu_mul, gate_up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up for `gate_up` [T, 2n], gelu in its tanh form."""
    _check(gate_up)
    if gate_up.is_cuda:
        from voxlane.engine.kernels.norm import activation_triton

        return activation_triton.gate_mul(gate_up, gelu=True)
    library = native.library(gate_up)
    return gelu_tanh_mul_ref(gate_up) if library is None else gate_native(library.vox_gelu_tanh_mul, gate_up)


def _check(gate_up: Tensor) -> None:
    if gate_up.ndim != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gate_up {tuple(gate_up.shape)}: contiguous [T, 2n] is needed")

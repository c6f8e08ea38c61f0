"""Ways to cut the products of few rows, timed in graphs over more matrices than the L2 holds, beside the library's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from support.chat import parts
from support.gpu.clock import FAILURES
from torch import Tensor

from voxlane.engine.kernels.norm import rms_norm
from voxlane.engine.kernels.norm.activation import silu_mul

Cut = TypeVar("Cut")

CACHE_BYTES = 240 << 20
"""Matrices of one shape that are read in turn: four times the L2 cache."""

SHAPES = {  # Qwen3-0.6B: operation, outputs, inputs
    "qkv": ("norm_linear", 4096, 1024),
    "out": ("linear_add", 1024, 2048),
    "gate_up": ("norm_gate", 6144, 1024),
    "down": ("linear_add", 1024, 3072),
    "head": ("linear_wide", 151_936, 1024),
}


def sweep(device: torch.device, *, dry: bool, deadline: float) -> Iterator[str]:
    """Yield the best cuts of each product for 1 and 2 rows, and the library's time."""
    from voxlane.engine.kernels.linear import skinny_triton

    kept = skinny_triton.tuning
    for (name, (operation, outputs, inputs)), rows in itertools.product(SHAPES.items(), (1, 2)):
        if time.monotonic() > deadline:
            yield "tune: no time left"
            break
        count = 1 if dry else max(2, CACHE_BYTES // (outputs * inputs * 2))
        if dry:
            outputs, inputs = outputs // 64, inputs // 8
        matrices = [torch.randn((outputs, inputs), device=device).bfloat16() * 0.02 for _ in range(count)]
        library = _time(partial(_library, operation, rows), matrices, device)
        found: list[tuple[float, skinny_triton.ProductTuning]] = []
        for cut in _cuts(rows, inputs, skinny_triton.ProductTuning):
            skinny_triton.tuning = lambda *_, cut=cut, **__: cut
            try:
                found.append((_time(partial(_ours, operation, rows), matrices, device), cut))
            except FAILURES as error:  # a cut that does not compile is reported and left out
                print(f"tune {name} {cut}: {type(error).__name__}: {str(error)[:120]}", flush=True)
            if dry or time.monotonic() > deadline:
                break
        skinny_triton.tuning = kept
        found.sort(key=lambda pair: pair[0])
        floor = outputs * inputs * 2 / 4.3e12
        best = "  ".join(
            f"{seconds * 1e6:.2f}: n{cut.block_n} k{cut.block_k} w{cut.warps} s{cut.stages}"
            for seconds, cut in found[:4]
        )
        yield f"tune {name:8} rows {rows:2}  floor {floor * 1e6:5.2f} us  library {library * 1e6:6.2f}  ours {best}"


def _cuts(rows: int, inputs: int, make: Callable[[int, int, int, int], Cut]) -> Iterator[Cut]:
    whole = 1 << (inputs - 1).bit_length()
    for block_n, warps in itertools.product((4, 8, 16), (2, 4, 8, 16)):
        if 4096 <= block_n * whole <= 32_768 and rows * block_n * whole <= 8192 * warps:
            yield make(block_n, whole, warps, 1)


def _ours(operation: str, rows: int, matrix: Tensor) -> object:
    from voxlane.engine.kernels.linear import skinny_triton

    residual, gain, x, total = _inputs(rows, matrix)
    if operation == "norm_linear":
        return skinny_triton.norm_linear(residual, gain, 1e-6, matrix, None)
    if operation == "norm_gate":
        return skinny_triton.norm_gate(residual, gain, 1e-6, matrix, gelu=False)
    if operation == "linear_wide":
        return skinny_triton.linear_wide(x, matrix)
    skinny_triton.linear_add(x, matrix, total)
    return total


def _library(operation: str, rows: int, matrix: Tensor) -> object:
    """Return the time of torch's product with our kernels around it."""
    residual, gain, x, total = _inputs(rows, matrix)
    if operation == "linear_wide":
        return torch.mm(x, matrix.t(), out_dtype=torch.float32) if x.is_cuda else F.linear(x, matrix)
    if operation == "linear_add":
        return total.add_(F.linear(x, matrix))
    product = F.linear(rms_norm.rms_norm(residual, gain, 1e-6, torch.bfloat16), matrix)
    return silu_mul(product) if operation == "norm_gate" else product


_kept: dict[tuple[int, int, int], tuple[Tensor, Tensor, Tensor, Tensor]] = {}


def _inputs(rows: int, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    key = (rows, *matrix.shape)
    if key not in _kept:
        outputs, inputs = matrix.shape
        residual = torch.randn((rows, inputs), device=matrix.device)
        total = torch.zeros((rows, outputs), device=matrix.device)
        _kept[key] = (residual, torch.ones(inputs, device=matrix.device), residual.bfloat16(), total)
    return _kept[key]


def _time(work: Callable[[Tensor], object], matrices: list[Tensor], device: torch.device) -> float:
    """Return the seconds of one product: the time of a graph over all matrices, divided by their number."""

    def everything() -> None:
        for matrix in matrices:
            work(matrix)

    everything()
    if device.type != "cuda":
        return parts.time_device(everything, 1, device) / len(matrices)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        everything()
    return parts.time_device(graph.replay, 10, device) / len(matrices)

"""Steps of paged attention for Triton's interpreter: pages that are filled, the launch, and the check of its result."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.paged import paged_attention_ref
from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton
from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals
from voxlane.engine.kernels.attention.triton_tuning import AttentionTuning

from .batches import Shape, filled, layout

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
TOLERANCES = {F32: 1e-6, F16: 1e-3, BF16: 8e-3}
"""The error's norm over the result's, by the queries' type: what products of that type lose."""

DECODE = AttentionTuning(tile=16, warps=4, stages=1, programs=3, split=32)
EVEN = AttentionTuning(tile=16, warps=4, stages=1, programs=5, least=16)
PREFILL = AttentionTuning(tile=32, warps=4, stages=1, programs=3, split=32, rows=64, split_queries=35)
MANY = replace(PREFILL, programs=12, rows=16, split_queries=12)
"""Pieces so short that a small test has many of them, and fewer programs than pieces; EVEN's are as many as it has."""

ROWS = [(0, 40), (69, 1), (37, 30), (0, 1), (31, 2), (5, 0)]
SMALL = Shape(3, 1, 16, 16)


def step(
    shape: Shape, kind: torch.dtype, random: torch.Generator, rows: list[tuple[int, int]] | None = None
) -> tuple[Tensor, Pages, Layout]:
    """Return queries in float32, pages and layout of a batch of rows (start, count)."""
    rows = ROWS if rows is None else rows
    table, pages = filled(shape, kind, [start + count for start, count in rows], random)
    place = layout(rows, table, shape.block_tokens)
    q = torch.randn((place.positions.shape[0], shape.heads, shape.head_dim), generator=random)
    return q, pages, place


def run(
    q: Tensor,
    pages: Pages,
    place: Layout,
    scale: float = 0.25,
    window: int = 0,
    *,
    causal: bool = True,
    softcap: float = 0.0,
    decode: AttentionTuning = DECODE,
    prefill: AttentionTuning = PREFILL,
) -> Tensor:
    """Run the kernels, and check that no count of arrived pieces is left for the next launch."""
    arrivals = new_arrivals(torch.device("cpu")) if place.arrivals is None else place.arrivals
    own = replace(place, arrivals=arrivals)
    out = paged_attention_triton(
        q, pages, own, scale, window, causal=causal, softcap=softcap, decode=decode, prefill=prefill
    )
    assert not arrivals.any()
    return out


def check(got: Tensor, q: Tensor, pages: Pages, place: Layout, *args: float, **options: bool | float) -> None:
    expected = paged_attention_ref(q.to(F32), pages, place, *args, **options)  # type: ignore[arg-type]
    assert got.shape == expected.shape
    assert got.dtype is q.dtype
    error = torch.linalg.vector_norm(got.to(F32) - expected)
    assert error <= TOLERANCES[q.dtype] * torch.linalg.vector_norm(expected)  # a NaN fails

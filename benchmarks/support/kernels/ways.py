"""The way in which paged attention is served at a shape: compiled ahead, and what it needs.

Many processes compile kernels into Triton's cache on disk, so that no compilation falls into a measurement.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from support.gpu.clock import FAILURES
from support.gpu.workers import pool
from support.kernels.compiled import MULTIPROCESSORS, compiled
from support.kernels.paged import (
    DEVICE,
    Case,
    layout_of,
    random_pages,
    scrambled,
)
from torch import Tensor

from voxlane.engine.kernels import triton_overlap
from voxlane.engine.kernels.attention import paged_triton
from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.triton_tuning import AttentionTuning, hopper_tuning

Variant = tuple[Case, AttentionTuning | None]  # the way to serve a case's rows; None: as it is

LONGEST_COMPILED = 300
"""Queries a row of the run that compiles: more than the cut size."""


def launches(variant: Variant, q: Tensor, sets: list[Pages], layout: Layout) -> list[Callable[[], Tensor]]:
    """Return one call for every layer's pages."""
    case, way = variant
    served = {"prefill" if case.queries > 1 else "decode": way}
    call = partial(paged_attention_triton, causal=case.causal, **served)  # type: ignore[arg-type]  # mypy sees dict's values
    return [partial(call, q, pages, layout, case.head_dim**-0.5) for pages in sets]


def ragged(case: Case) -> tuple[Tensor, list[Pages], Layout]:
    """Return queries, pages and layout of rows of different lengths, many empty; chunks are cut as in the case."""
    count = min(case.queries, LONGEST_COMPILED)
    longest = case.context - count if count > 1 else 407
    rows = [(max(longest - 37 * row, 0), count) for row in range(min(case.batch, 12))]
    rows += [(-count, count)] * (case.batch - 12)
    table, blocks = scrambled([sum(row) for row in rows], case.page)
    layout = layout_of(rows, table, count)
    q = torch.randn((case.batch * count, case.heads, case.head_dim), device=DEVICE).to(case.compute)
    return q, [random_pages(case, blocks)], layout


def present(case: Case) -> AttentionTuning | None:
    """Return the present way of a case; None where fewer queries are served in another way."""
    chunk = case.queries > 1 and case.kind is torch.bfloat16 and paged_triton._is_hopper(DEVICE)
    return hopper_tuning(case.head_dim, case.batch * case.queries * case.heads) if chunk else None


def compile_one(variant: Variant) -> str:
    """Compile a variant by running it on ragged rows; return the failure, or ""."""
    try:
        launches(variant, *ragged(variant[0]))[0]()
    except FAILURES as failure:
        return f"{type(failure).__name__} {str(failure).strip().splitlines()[0][:120]}"
    return ""


def _kernel(variant: Variant) -> Variant:
    """Return a key that is equal for equal compiled code."""
    case, way = variant
    rows = paged_triton._row_room(case.batch)
    case = replace(case, context=0, batch=rows, queries=min(case.queries, LONGEST_COMPILED))
    return case, way and replace(way, programs=1, least=1)


def compile_all(cases: Sequence[Case], deadline: float) -> None:
    """Compile what serves these cases in parallel; print what is wrong or takes too long."""
    kernels = {_kernel(variant): variant for variant in ((case, present(case)) for case in cases)}
    under_way = {key: pool().apply_async(compile_one, (variant,)) for key, variant in kernels.items()}
    for key, result in under_way.items():
        try:
            problem = result.get(max(0.0, deadline - time.monotonic()))
        except multiprocessing.TimeoutError:
            problem = "not compiled in time"
        if problem:
            print(f"  {kernels[key][0].name} {key[1]}: {problem}", flush=True)


def report(case: Case, way: AttentionTuning) -> None:
    """Print what a way needs of an H200, on any machine."""
    paged_triton._multiprocessors = lambda device: MULTIPROCESSORS  # type: ignore[assignment]
    paged_triton._is_hopper = lambda device: True  # type: ignore[assignment]
    triton_overlap._can_overlap = lambda device: True  # type: ignore[assignment]
    print(f"{case.name}: registers, bytes of stack, KiB of shared memory; programs that fit", flush=True)
    batch = ragged(replace(case, batch=min(case.batch, 17)))
    for kernel in compiled(launches((case, way), *batch)[0]):
        needs = f"{kernel.registers:4} {kernel.stack_bytes:4} {kernel.shared_bytes / 1024:6.1f}; {kernel.fits:2}"
        fit = "" if kernel.fits == way.programs else "  NOT ITS PROGRAMS"
        fit += "  ONE PRODUCT AFTER THE OTHER" * kernel.serial
        print(f"  {kernel.name:14}{needs}  {way}{fit}", flush=True)

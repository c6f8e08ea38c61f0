"""Which way to cut and compile paged attention is fastest, by shape: the figures behind triton/attention.py's choices.

Variants are compiled by many processes into Triton's cache on disk first, and each is compared with float64 there:
none is timed that is not right. Timing them is then short.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from gpu_clock import FAILURES
from gpu_paged import (
    CUDA,
    DEVICE,
    TOLERANCES,
    Case,
    exact,
    layout_of,
    microseconds,
    prepare,
    random_pages,
    relative_error,
    scrambled,
)
from gpu_workers import pool
from gpu_workers import stop_compiling as stop_compiling
from torch import Tensor

from voxlane.engine.kernels.pages import Layout, Pages
from voxlane.engine.kernels.triton.attention import (
    Tuning,
    _row_room,
    hopper_tuning,
    paged_attention_triton,
    prefill_tuning,
)

Variant = tuple[Case, Tuning | None, Tuning | None, int, float]  # decode, prefill, window, softcap

INT8 = torch.int8
LONGEST_CHECKED = 300
"""Queries a row in the comparison: longer than what is cut, and small enough for all processes' scores in float64."""
FEW_AND_MANY = ((512, 8), (2048, 8), (2048, 1), (512, 64), (2048, 64), (4096, 64))
WIDE = [Case(16, 8, 128, context, batch) for context, batch in FEW_AND_MANY]
NARROW = [*(Case(32, 8, 64, context, batch) for context, batch in FEW_AND_MANY), Case(9, 3, 64, 2048, 64)]
WIDE_INT8, NARROW_INT8 = (
    [Case(heads, 8, dim, context, batch, kind=INT8) for context, batch in ((8192, 8), (8192, 64), (2048, 8))]
    for heads, dim in ((16, 128), (32, 64))
)
WIDE_CHUNKS = [
    Case(16, 8, 128, 2048, 1, queries=2048),
    Case(16, 8, 128, 4096, 1, queries=64),
    Case(16, 8, 128, 4096, 4, queries=512),
]
NARROW_CHUNKS = [
    Case(32, 8, 64, 2048, 4, queries=2048),
    Case(32, 8, 64, 4096, 1, queries=64),
    Case(32, 8, 64, 8192, 1, queries=256),
]


def decode_ways(case: Case) -> list[Tuning]:
    """Return the ways to try for rows of one query: (tile, warps, stages), times programs, least piece and join."""
    wide = case.head_dim > 64
    if case.kind is INT8:
        shapes = [(64, 2, 3), (64, 2, 4), (64, 4, 3)] if wide else [(64, 1, 3), (64, 1, 4), (64, 2, 3)]
    else:
        shapes = [(64, 2, 2), (32, 2, 3), (32, 2, 4)] if wide else [(32, 1, 2), (32, 1, 3), (64, 1, 2)]
    cuts = itertools.product((3, 4, 5) if wide else (6, 8, 10), (64, 128), (1024, 4096))
    return [
        Tuning(*shape, programs, least=least, join=join)
        for shape, (programs, least, join) in itertools.product(shapes, cuts)
    ]


def prefill_ways(case: Case) -> list[Tuning]:
    """Return the ways to try for rows of many queries: (rows, warps, stages, registers), times the least piece."""
    base = prefill_tuning(case.head_dim, case.kind, case.compute)
    shapes: list[tuple[int, int, int, int | None]]
    if case.head_dim > 64:
        shapes = [(64, 4, 2, None), (64, 4, 3, None), (128, 8, 3, None)]
    else:
        shapes = [(64, 4, 3, 128), (128, 4, 3, None), (128, 8, 3, 128)]
    ways = [
        replace(base, rows=rows, warps=warps, stages=stages, registers=registers, split=split)
        for (rows, warps, stages, registers), split in itertools.product(shapes, (256, 512, 1024))
    ]
    return ways + (hopper_ways(case) if CUDA and torch.cuda.get_device_capability()[0] == 9 else [])


def hopper_ways(case: Case) -> list[Tuning]:
    """Return the ways to try where one warp copies and others multiply: (stages, consumers, their registers)."""
    if case.kind is INT8 or case.page != 64:
        return []
    base = hopper_tuning(case.head_dim, case.batch * case.queries * case.heads)
    shapes = [(4, 2, 240), (3, 2, 240)] if case.head_dim > 64 else [(4, 2, 240), (8, 2, 240), (8, 3, 160)]
    return [
        replace(base, stages=stages, consumers=consumers, registers=registers, split=split)
        for (stages, consumers, registers), split in itertools.product(shapes, (512, 1024, 2048))
    ]


def compile_one(variant: Variant) -> str:
    """Compile what a variant needs and compare it with float64 on ragged rows; return what is wrong, or ""."""
    case, decode, prefill, window, softcap = variant
    count = min(case.queries, LONGEST_CHECKED)
    rows = [(37 * row % 300, count) for row in range(min(case.batch, 12))] + [(-count, count)] * (case.batch - 12)
    table, blocks = scrambled([sum(row) for row in rows], case.page)
    layout = replace(layout_of(rows, table), max_query=count if decode is not None else 0)
    q = torch.randn((case.batch * count, case.heads, case.head_dim), device=DEVICE).to(case.compute)
    pages, scale = random_pages(case, blocks), case.head_dim**-0.5
    seen: dict[str, Any] = {"causal": case.causal, "softcap": softcap}
    try:
        got = paged_attention_triton(q, pages, layout, scale, window, **seen, decode=decode, prefill=prefill)
        error = relative_error(got, exact(q, pages, layout, scale, window, **seen))
    except FAILURES as failure:
        return f"{type(failure).__name__} {str(failure).strip().splitlines()[0][:120]}"
    return "" if error <= TOLERANCES[case.compute] else f"an error of {error:.1e}"


def _kernel(variant: Variant) -> Variant:
    """Return what is equal where the compiled code is."""
    case, decode, prefill, window, softcap = variant
    case = replace(case, context=0, batch=_row_room(case.batch), queries=min(case.queries, LONGEST_CHECKED))
    decode, prefill = (way and replace(way, programs=1, least=1) for way in (decode, prefill))
    return case, decode, prefill, window, softcap


def compile_all(variants: Sequence[Variant]) -> list[Variant]:
    """Compile variants in parallel; return those that do."""
    if not CUDA:
        return list(variants)
    kernels = {_kernel(variant): variant for variant in variants}
    outcomes = dict(zip(kernels, pool().map(compile_one, kernels.values(), chunksize=1), strict=True))
    for key, problem in outcomes.items():
        if problem:
            print(f"  left out: {kernels[key][0].name} {key[1] or key[2]}: {problem}", flush=True)
    return [variant for variant in variants if not outcomes[_kernel(variant)]]


def timed(variants: Iterable[Variant]) -> dict[Variant, float]:
    """Return the µs of variants; those of one case, side by side, share its pages."""
    found = {}
    for case, group in itertools.groupby(variants, key=lambda variant: variant[0]):
        batch = prepare(case)
        for variant in group:
            try:
                found[variant] = microseconds(launches(variant, *batch))
            except FAILURES as error:
                print(f"  cannot run: {case.name} {variant[1:3]}: {str(error).splitlines()[0][:120]}", flush=True)
    return found


def launches(variant: Variant, q: Tensor, sets: list[Pages], layout: Layout) -> list[Callable[[], Tensor]]:
    """Return one call for every layer's pages."""
    case, decode, prefill, _, _ = variant
    call = partial(paged_attention_triton, causal=case.causal, decode=decode, prefill=prefill)
    return [partial(call, q, pages, layout, case.head_dim**-0.5) for pages in sets]


def tune(deadline: float, *, dry: bool) -> None:
    """Time ways to serve groups of shapes that must be served alike; print the best compromises."""
    groups = [WIDE_INT8, NARROW_INT8, WIDE, NARROW, WIDE_CHUNKS, NARROW_CHUNKS]
    if dry:
        groups = [[Case(6, 2, 16, 70, 2)], [Case(6, 2, 16, 70, 2, kind=INT8)], [Case(6, 2, 16, 70, 2, queries=30)]]
    for cases in groups:
        if time.monotonic() > deadline:
            print(f"no time left for {cases[0].name}")
            continue
        chunks = cases[0].queries > 1
        ways = prefill_ways(cases[0]) if chunks else decode_ways(cases[0])
        compare(cases, [(None, way) if chunks else (way, None) for way in (ways[:2] if dry else ways)])


def compare(cases: list[Case], ways: list[tuple[Tuning | None, Tuning | None]], most: int = 24) -> None:
    """Print the ways in the order of their worst loss: a case's time over the shortest of all ways."""
    variants: list[Variant] = [(case, *way, 0, 0.0) for case in cases for way in ways]
    times = timed(compile_all(variants))
    least = {case: min(took for variant, took in times.items() if variant[0] == case) for case in cases}
    losses = {}
    for way in ways:
        mine = [times.get((case, *way, 0, 0.0), float("inf")) for case in cases]
        losses[way] = max(took / least[case] for took, case in zip(mine, cases, strict=True)), mine
    print(f"\n{len(ways)} ways; columns: " + "; ".join(f"{case.name} (best {least[case]:.1f} µs)" for case in cases))
    for way, (loss, mine) in sorted(losses.items(), key=lambda pair: pair[1][0])[:most]:
        figures = "".join(f"{took:8.1f}" for took in mine)
        print(f"  {loss:5.2f} ×{figures}  {_words(way[0] or way[1])}", flush=True)


def _words(tuning: Tuning | None) -> str:
    assert tuning is not None
    usual = Tuning(0, 0, 0, 0, 0)
    return " ".join(f"{name} {value}" for name, value in asdict(tuning).items() if value != getattr(usual, name))

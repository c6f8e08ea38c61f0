"""Which way to cut and compile paged attention is fastest, by shape: the figures behind triton/attention.py's choices.

Variants are compiled by many processes into Triton's cache on disk first; timing them is then short.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from multiprocessing.pool import Pool

import torch
from gpu_paged import CUDA, DEVICE, Case, layout_of, microseconds, prepare, random_pages
from gpu_peers import FAILURES
from torch import Tensor
from triton.errors import TritonError

from voxlane.engine.kernels.pages import Layout, Pages
from voxlane.engine.kernels.triton.attention import (
    Tuning,
    _row_room,
    paged_attention_triton,
    prefill_tuning,
)

Variant = tuple[Case, Tuning | None, Tuning | None, int, float]  # decode, prefill, window, softcap

INT8 = torch.int8
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
    """Return the ways to try for rows of one query: (tile, warps, stages, registers), times (programs, least)."""
    wide = case.head_dim > 64
    cuts = itertools.product((2, 4, 6) if wide else (6, 8, 10), (64, 128))
    if case.kind is INT8:
        shapes: list[tuple[int, int, int, int | None]]
        shapes = [(64, 2, 3, 168), (64, 2, 3, None), (32, 2, 4, 128)] if wide else [(64, 1, 3, None), (32, 1, 4, 128)]
        cuts = itertools.product((4, 6, 8) if wide else (8, 10, 12), (64,))
    elif wide:
        shapes = [(32, 2, 3, None), (32, 2, 4, None), (64, 4, 3, None)]
    else:
        shapes = [(32, 1, 2, None), (32, 1, 3, None)]
    return [
        Tuning(tile, warps, stages, programs, least=least, registers=registers, join=join)
        for (tile, warps, stages, registers), (programs, least), join in itertools.product(shapes, cuts, (1024, 4096))
    ]


def prefill_ways(case: Case) -> list[Tuning]:
    """Return the ways to try for rows of many queries."""
    base = prefill_tuning(case.head_dim, case.kind, case.compute)
    shapes = [(64, 4, 3), (64, 4, 4), (128, 8, 3)] if case.head_dim > 64 else [(64, 4, 3), (128, 4, 3), (128, 4, 4)]
    return [
        replace(base, rows=rows, warps=warps, stages=stages, split=split)
        for (rows, warps, stages), split in itertools.product(shapes, (512, 1024, 2048))
    ]


def compile_one(variant: Variant) -> str:
    """Compile what a variant needs by launching it on rows without context; return what went wrong, or ""."""
    case, decode, prefill, window, softcap = variant
    count = case.queries
    layout = layout_of([(-count, count)] * case.batch, torch.zeros((case.batch, 1), dtype=torch.int32, device=DEVICE))
    layout = replace(layout, max_query=count if decode is not None else 0)
    q = torch.zeros((case.batch * count, case.heads, case.head_dim), dtype=case.compute, device=DEVICE)
    options = {"causal": case.causal, "softcap": softcap, "decode": decode, "prefill": prefill}
    try:
        paged_attention_triton(q, random_pages(case, 1), layout, 0.1, window, **options)  # type: ignore[arg-type]
        if CUDA:
            torch.cuda.synchronize()
    except (TritonError, *FAILURES) as error:
        return f"{type(error).__name__} {str(error).strip().splitlines()[0][:120]}"
    return ""


def compiled_ahead(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield what went wrong with each variant, or "", as soon as it is compiled; others are compiled meanwhile."""
    yield from _pool().imap(compile_one, variants) if CUDA else itertools.repeat("", len(variants))


def stop_compiling() -> None:
    """Give up what is still being compiled."""
    if CUDA:
        _pool().terminate()
        _pool.cache_clear()


@cache
def _pool() -> Pool:
    return multiprocessing.get_context("spawn").Pool(max(1, min(15, (os.cpu_count() or 2) - 1)))


def _kernel(variant: Variant) -> Variant:
    """Return what is equal where the compiled code is."""
    case, decode, prefill, window, softcap = variant
    same = {"batch": _row_room(case.batch)} if case.queries == 1 else {}
    loose = [way and replace(way, programs=1, least=1) for way in (decode, prefill)]
    return replace(case, context=0, **same), *loose, window, softcap  # type: ignore[return-value]


def compile_all(variants: Sequence[Variant]) -> list[Variant]:
    """Compile variants in parallel; return those that do."""
    if not CUDA:
        return list(variants)
    kernels = {_kernel(variant): variant for variant in variants}
    outcomes = dict(zip(kernels, _pool().map(compile_one, kernels.values(), chunksize=1), strict=True))
    for key, problem in outcomes.items():
        if problem:
            print(f"  does not compile: {kernels[key][0].name} {key[1] or key[2]}: {problem}", flush=True)
    return [variant for variant in variants if not outcomes[_kernel(variant)]]


def timed(variants: Iterable[Variant]) -> dict[Variant, float]:
    """Return the µs of variants; those of one case, side by side, share its pages."""
    found = {}
    for case, group in itertools.groupby(variants, key=lambda variant: variant[0]):
        batch = prepare(case)
        for variant in group:
            try:
                found[variant] = microseconds(launches(variant, *batch))
            except (TritonError, *FAILURES) as error:
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

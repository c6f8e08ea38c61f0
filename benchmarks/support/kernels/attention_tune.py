"""Find the fastest way to cut and compile paged attention for a shape: the figures of attention/triton_tuning.py.

Shapes that are served alike form a group with a short list of ways, the present one first. Many processes compile the
ways into Triton's cache on disk and compare them with float64. A way is compared once more at the very shape before it
is timed, so a wrong way is never timed. The ways of a shape are timed in turns; the median of all rounds counts.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from support.gpu.clock import FAILURES
from support.gpu.report import write_out
from support.gpu.workers import pool, stop_compiling
from support.kernels.compiled import MULTIPROCESSORS, compiled
from support.kernels.paged import (
    CUDA,
    DEVICE,
    TOLERANCES,
    Captured,
    Case,
    exact,
    layout_of,
    prepare,
    race,
    random_pages,
    relative_error,
    scrambled,
)
from torch import Tensor

from voxlane.engine.kernels import triton_overlap
from voxlane.engine.kernels.attention import paged_triton
from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.triton_tuning import AttentionTuning, decode_tuning, hopper_tuning, prefill_tuning

Variant = tuple[Case, AttentionTuning | None]  # the way to serve a case's rows; None: the present one

BF16, INT8 = torch.bfloat16, torch.int8
ROUNDS = 15
LONGEST_CHECKED = 300
"""Queries a row in the comparison: more than the cut size, few enough for all processes' scores in float64."""


@dataclass(frozen=True, slots=True)
class Group:
    """Shapes that are served alike, and ways to serve them, the present one first."""

    name: str
    cases: tuple[Case, ...]
    ways: tuple[AttentionTuning, ...]


def decode_ways(case: Case) -> tuple[AttentionTuning, ...]:
    """Return ways for rows of one query. `programs` is what fits according to --compile: twelve warps of 168 registers.

    The cap is given wherever it matters: without it the compiler takes 168 at one shape and 220 at the next.
    """
    changes: dict[tuple[int, torch.dtype], list[dict[str, Any]]] = {
        (64, BF16): [
            *({"registers": 168, "join": 2048, "programs": programs} for programs in (10, 12)),
            {"registers": 168, "join": 1024, "programs": 12},
            {"registers": 168, "join": 1024, "programs": 11, "stages": 3},
            {"tile": 64, "join": 2048},
            *({"registers": 168, "join": 2048, "programs": 6, "tile": 64, "warps": 2, "stages": n} for n in (2, 3)),
        ],
        (64, INT8): [
            *({"ahead": ahead} for ahead in (0, 1, 4)),
            {"stages": 4},
            *({"registers": 168, "join": 2048, "programs": 12, "ahead": ahead} for ahead in (0, 2)),
            {"registers": 168, "join": 1024, "programs": 12},
            {"registers": 168, "join": 2048, "programs": 12, "stages": 4, "tile": 32},
        ],
        (128, INT8): [
            *({"ahead": ahead} for ahead in (0, 1, 4)),
            {"stages": 4},
            *({"registers": 168, "join": 2048, "programs": 12, "ahead": ahead} for ahead in (0, 2)),
            {"registers": 168, "join": 1024, "programs": 12},
            {"tile": 64, "warps": 2, "programs": 6, "join": 2048, "registers": 168},
            {"tile": 64, "warps": 2, "programs": 4, "stages": 4},
        ],
        (128, BF16): [
            *({"join": join, "programs": 5} for join in (1024, 2048)),
            *({"tile": 32, "stages": stages, "join": 2048} for stages in (3, 4)),
            {"registers": 168, "programs": 6, "join": 2048, "tile": 32},
            {"registers": 168, "programs": 5, "join": 2048, "tile": 32, "stages": 3},
            {"warps": 4, "programs": 3},
        ],
    }
    shape = case.head_dim, case.kind
    first = decode_tuning(*shape, case.batch * case.kv_heads)
    plain = AttentionTuning(64, 2, 2, 4) if shape == (128, BF16) else decode_tuning(*shape)
    return tuple(dict.fromkeys((first, *changed(plain, *changes[shape]))))


def chunk_ways(case: Case) -> tuple[AttentionTuning, ...]:
    """Return ways for short chunks over long contexts on Hopper, which differ in how finely they are cut."""
    first = hopper_tuning(case.head_dim, case.batch * case.queries * case.heads)
    return changed(
        first,
        *({"split": split} for split in (256, 1024)),
        *({"split_queries": queries} for queries in (0, 512, 1024)),
        {"overlap": False},
    )


def groups() -> list[Group]:
    """Return the groups to try: shapes that miss a bar, and others that are served alike."""
    clips = [Case(20, 20, 64, 1500, batch, causal=False) for batch in (64, 8)]
    llama = [Case(32, 8, 64, context, batch) for context, batch in ((2048, 64), (4096, 64), (512, 8))]
    words = {dim: [Case(2048 // dim, 8, dim, 8192, rows, kind=INT8) for rows in (8, 64)] for dim in (64, 128)}
    qwen = [Case(16, 8, 128, *size) for size in ((512, 8), (2048, 8), (8192, 8), (2048, 64), (4096, 64))]
    wide = [Case(16, 8, 128, 4096, rows, queries=queries) for queries, rows in ((64, 1), (256, 1), (64, 8))]
    narrow = [Case(32, 8, 64, 8192, rows, queries=queries) for queries, rows in ((256, 1), (64, 1), (256, 4))]
    alike = {
        "decode, heads of 64": (*clips, Case(9, 3, 64, 2048, 64), *llama),
        "decode, heads of 64, int8": tuple(words[64]),
        "decode, heads of 128, int8": tuple(words[128]),
        "decode, heads of 128": tuple(qwen),
        "chunks on Hopper, heads of 128": tuple(wide),
        "chunks on Hopper, heads of 64": tuple(narrow),
    }
    found: dict[tuple[str, tuple[AttentionTuning, ...]], list[Case]] = {}
    for name, cases in alike.items():
        for case in cases:
            found.setdefault((name, chunk_ways(case) if case.queries > 1 else decode_ways(case)), []).append(case)
    return [Group(name, tuple(cases), ways) for (name, ways), cases in found.items()]


def changed(base: AttentionTuning, *changes: dict[str, Any]) -> tuple[AttentionTuning, ...]:
    """Return a way and others that differ from it."""
    return (base, *(replace(base, **change) for change in changes))


def as_a_try(group: Group) -> Group:
    """Return a group that is small enough for an interpreter, without the ways that only Hopper runs."""
    case = group.cases[0]
    small = replace(case, heads=case.heads // case.kv_heads, kv_heads=1, context=200, batch=2, queries=1)
    ways = [replace(way, warps=1, stages=1, registers=None) for way in group.ways]
    if case.queries > 1:
        small = replace(small, queries=24)
        plain = replace(prefill_tuning(case.head_dim, case.kind, case.compute), programs=8, rows=16)
        ways = [replace(plain, split=max(way.split // 8, 32), split_queries=way.split_queries) for way in group.ways]
    return Group(group.name, (small,), tuple(dict.fromkeys(ways)))


def launches(variant: Variant, q: Tensor, sets: list[Pages], layout: Layout) -> list[Callable[[], Tensor]]:
    """Return one call for every layer's pages."""
    case, way = variant
    served = {"prefill" if case.queries > 1 else "decode": way}
    call = partial(paged_attention_triton, causal=case.causal, **served)  # type: ignore[arg-type]  # mypy sees dict's values
    return [partial(call, q, pages, layout, case.head_dim**-0.5) for pages in sets]


def ragged(case: Case) -> tuple[Tensor, list[Pages], Layout]:
    """Return queries, pages and layout of rows of different lengths, many empty; chunks are cut as in the case."""
    count = min(case.queries, LONGEST_CHECKED)
    longest = case.context - count if count > 1 else 407
    rows = [(max(longest - 37 * row, 0), count) for row in range(min(case.batch, 12))]
    rows += [(-count, count)] * (case.batch - 12)
    table, blocks = scrambled([sum(row) for row in rows], case.page)
    layout = layout_of(rows, table, count)
    q = torch.randn((case.batch * count, case.heads, case.head_dim), device=DEVICE).to(case.compute)
    return q, [random_pages(case, blocks)], layout


def present(case: Case) -> AttentionTuning | None:
    """Return the present way of a case; None where fewer queries are served in another way."""
    chunk = case.queries > 1 and case.kind is BF16 and paged_triton._is_hopper(DEVICE)
    return hopper_tuning(case.head_dim, case.batch * case.queries * case.heads) if chunk else None


def compile_one(variant: Variant) -> str:
    """Compile a variant and compare it with float64 on ragged rows; return the mistake, or ""."""
    case, _ = variant
    q, sets, layout = ragged(case)
    expected = exact(q, sets[0], layout, case.head_dim**-0.5, causal=case.causal)
    return wrong(launches(variant, q, sets, layout)[0], expected)


def wrong(call: Callable[[], Tensor], expected: Tensor) -> str:
    """Return the mistake in a call's result, or ""."""
    try:
        got = call()
        error = relative_error(got, expected)
    except FAILURES as failure:
        return f"{type(failure).__name__} {str(failure).strip().splitlines()[0][:120]}"
    return "" if error <= TOLERANCES[got.dtype] else f"an error of {error:.1e}"


def _kernel(variant: Variant) -> Variant:
    """Return a key that is equal for equal compiled code."""
    case, way = variant
    rows = paged_triton._row_room(case.batch)
    case = replace(case, context=0, batch=rows, queries=min(case.queries, LONGEST_CHECKED))
    return case, way and replace(way, programs=1, least=1)


def compile_all(variants: Sequence[Variant], deadline: float) -> list[Variant]:
    """Compile variants in parallel; return those that compile in time."""
    if not CUDA:
        return list(variants)
    kernels = {_kernel(variant): variant for variant in variants}
    under_way = {key: pool().apply_async(compile_one, (variant,)) for key, variant in kernels.items()}
    good = set()
    for key, result in under_way.items():
        try:
            problem = result.get(max(0.0, deadline - time.monotonic()))
        except multiprocessing.TimeoutError:
            problem = "not compiled in time"
        if problem:
            print(f"  left out: {kernels[key][0].name} {line_of(key[1])}: {problem}", flush=True)
        else:
            good.add(key)
    return [variant for variant in variants if _kernel(variant) in good]


def times_of(case: Case, ways: Sequence[AttentionTuning]) -> dict[AttentionTuning, float]:
    """Return the µs of the correct ways of a case, timed in turns."""
    batch = prepare(case)
    expected = exact(batch[0], batch[1][0], batch[2], case.head_dim**-0.5, causal=case.causal)
    entries: dict[AttentionTuning, Captured] = {}
    for way in ways:
        calls = launches((case, way), *batch)
        if problem := wrong(calls[0], expected):
            print(f"  WRONG, left out: {case.name} {line_of(way)}: {problem}", flush=True)
        else:
            entries[way] = Captured(calls)
    took = race(list(entries.values()), ROUNDS) if entries else []
    return {way: each.median for way, each in zip(entries, took, strict=True)}


def tune(deadline: float, *, dry: bool) -> None:
    """Time every group's ways; print each case's times at once, and at the end the lines to keep."""
    begin = time.monotonic()
    tried = [as_a_try(group) for group in groups()] if dry else groups()
    half = begin + (deadline - begin) / 2
    ready = set(compile_all([(case, way) for group in tried for case in group.cases for way in group.ways], half))
    stop_compiling()  # they would use the device while it is timed
    print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    lines: list[str] = []
    figures: dict[str, dict[str, float]] = {}
    for group in tried:
        found: dict[Case, dict[AttentionTuning, float]] = {}
        for case in group.cases:
            ways = [way for way in group.ways if (case, way) in ready]
            if time.monotonic() > deadline:
                print(f"no time left for {case.name}")
                continue
            found[case] = times_of(case, ways)
            for line in told(case, found[case], group.ways[0]):
                print(line, flush=True)
            figures[case.name] = {line_of(way): took for way, took in found[case].items()}
            write_out("gpu_kernels_tune", figures)
            if CUDA:
                torch.cuda.empty_cache()
        lines += choice(group, found)
    print(f"\nfor triton_tuning.py, after {time.monotonic() - begin:.0f} s", *lines, sep="\n")


def told(case: Case, found: dict[AttentionTuning, float], present: AttentionTuning) -> Iterator[str]:
    """Yield a case's ways, fastest first, beside the present one."""
    yield f"\n{case.name}, µs, and times the present way"
    for way, took in sorted(found.items(), key=lambda pair: pair[1]):
        yield f"  {took:8.1f} {took / found.get(present, took):6.3f} ×  {line_of(way)}"


def choice(group: Group, found: dict[Case, dict[AttentionTuning, float]]) -> Iterator[str]:
    """Yield the way with the smallest worst ratio to the fastest way of a case, beside the present way."""
    shortest = {case: min(times.values()) for case, times in found.items() if times}

    def loss(way: AttentionTuning) -> float:
        return max((found[case].get(way, float("inf")) / least for case, least in shortest.items()), default=1.0)

    best = min(group.ways, key=loss)
    yield f"{group.name}: {line_of(best)}  # {loss(best):.3f} × the shortest at worst; now {loss(group.ways[0]):.3f}"
    for case, times in found.items():
        if times and best in times and group.ways[0] in times:
            yield f"    {case.name}: {times[group.ways[0]]:.1f} -> {times[best]:.1f}, shortest {shortest[case]:.1f} µs"


def line_of(way: AttentionTuning | None) -> str:
    """Return a way as it is written in triton_tuning.py."""
    if way is None:
        return "as it is"
    usual = AttentionTuning(0, 0, 0, 0)
    values = {field.name: getattr(way, field.name) for field in fields(way)}
    changed = ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(usual, name))
    return f"AttentionTuning({changed})"


def report(tried: Sequence[Group]) -> None:
    """Print what every way needs of an H200, on any machine."""
    paged_triton._multiprocessors = lambda device: MULTIPROCESSORS  # type: ignore[assignment]
    paged_triton._is_hopper = lambda device: True  # type: ignore[assignment]
    triton_overlap._can_overlap = lambda device: True  # type: ignore[assignment]
    for group in tried:
        case = group.cases[0]
        print(f"\n{case.name}: registers, bytes of stack, KiB of shared memory; programs that fit", flush=True)
        batch = ragged(replace(case, batch=min(case.batch, 17)))
        for way in group.ways:
            for kernel in compiled(launches((case, way), *batch)[0]):
                needs = (
                    f"{kernel.registers:4} {kernel.stack_bytes:4} {kernel.shared_bytes / 1024:6.1f}; {kernel.fits:2}"
                )
                fit = "" if kernel.fits == way.programs else "  NOT ITS PROGRAMS"
                fit += "  ONE PRODUCT AFTER THE OTHER" * kernel.serial
                print(f"  {kernel.name:14}{needs}  {line_of(way)}{fit}", flush=True)

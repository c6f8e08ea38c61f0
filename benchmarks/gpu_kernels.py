"""Paged attention on a GPU: checked against float64, tuned, and timed beside others' attention, in one run.

It runs on any Python with torch and Triton; of voxlane it needs the kernels alone. Where the package is not installed:

    mkdir -p build/gpu/voxlane
    for part in engine server codecs; do ln -sfn ../../../$part build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_kernels.py --check --tune --table

--check compares a grid of shapes with float64, and bits with bits. --tune times ways to cut and compile. --table prints
the figures with the peers (--fa3, --flashinfer and --flex add those to SDPA; gpu_peers.py says where they come from).
--seconds and --check-seconds bound the run: what is not begun by then is left out, and said to be. --dry-run, with
TRITON_INTERPRET=1, tries all of it on a CPU at sizes that say nothing about speed. Memory is checked on the device by

    compute-sanitizer --tool memcheck python3 benchmarks/gpu_kernels.py --check --dry-run
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.pool import AsyncResult, MaybeEncodingError

import torch
from gpu_attention_tune import Variant, compile_all, compiled_ahead, stop_compiling, tune
from gpu_clock import copy_bandwidth
from gpu_paged import (
    CUDA,
    DEVICE,
    Case,
    exact,
    layout_of,
    microseconds,
    prepare,
    random_pages,
    scrambled,
)
from gpu_peers import FAILURES, PAGED, PEERS, compile_flashinfer
from torch import Tensor

from voxlane.engine.kernels.pages import Layout, Pages
from voxlane.engine.kernels.triton.attention import Tuning, decode_tuning, paged_attention_triton

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8

TOLERANCES = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}
"""The error's norm over the result's, by the queries' type."""

DECODES = [
    Case(9, 3, 64, 2048, 64),
    Case(16, 8, 128, 512, 8),
    Case(16, 8, 128, 2048, 8),
    Case(16, 8, 128, 512, 64),
    Case(16, 8, 128, 2048, 64),
    Case(32, 8, 64, 512, 8),
    Case(32, 8, 64, 2048, 8),
    Case(32, 8, 64, 512, 64),
    Case(32, 8, 64, 2048, 64),
    Case(16, 8, 128, 2048, 1),
    Case(16, 8, 128, 4096, 64),
    Case(32, 8, 64, 4096, 64),
    Case(20, 20, 64, 1500, 8, causal=False),
    Case(20, 20, 64, 1500, 64, causal=False),
    Case(16, 8, 128, 8192, 8),
    Case(16, 8, 128, 8192, 8, kind=INT8),
    Case(16, 8, 128, 8192, 64),
    Case(16, 8, 128, 8192, 64, kind=INT8),
    Case(32, 8, 64, 8192, 8),
    Case(32, 8, 64, 8192, 8, kind=INT8),
    Case(32, 8, 64, 8192, 64),
    Case(32, 8, 64, 8192, 64, kind=INT8),
]
PREFILLS = [
    Case(16, 8, 128, 2048, 1, queries=2048),
    Case(16, 8, 128, 4096, 1, queries=64),
    Case(16, 8, 128, 4096, 4, queries=512),
    Case(32, 8, 64, 2048, 4, queries=2048),
    Case(32, 8, 64, 8192, 1, queries=256),
    Case(9, 3, 64, 512, 8, queries=512),
    Case(20, 20, 64, 1500, 1, queries=1500, causal=False),
    Case(20, 20, 64, 1500, 8, queries=1500, causal=False),
]
FLEX = {DECODES[4], PREFILLS[0], PREFILLS[7]}
"""Where FlexAttention is timed: it compiles for seconds at every shape."""

GRID_ROWS = [(0, 700), (2000, 1), (1290, 300), (0, 1), (1270, 2), (5, 0), (4095, 1), (300, 130), (511, 1), (512, 1)]
GRID_SHAPES = [(9, 3, 64), (16, 8, 128), (32, 8, 64), (20, 20, 64), (8, 1, 128), (4, 4, 80), (2, 1, 256), (40, 2, 32)]
GRID_TYPES = [(BF16, INT8), (BF16, BF16), (F32, INT8), (F16, F16), (F32, F32), (F32, BF16)]
GRID_OPTIONS = [(0, 0.0, True), (50, 0.0, True), (1000, 30.0, True), (0, 0.0, False)]


def grid(*, dry: bool) -> list[tuple[Case, int, float, bool]]:
    """Return (case, window, softcap, causal): every shape with every type, the other properties in turn."""
    shapes = [(6, 2, 16), (9, 3, 64)] if dry else GRID_SHAPES
    chosen = []
    for number, (shape, types) in enumerate(itertools.product(shapes, GRID_TYPES)):
        for page in (16, 64) if number % 2 else (32, 128):
            window, softcap, causal = GRID_OPTIONS[(number // 2 + page // 64) % len(GRID_OPTIONS)]
            if not dry or number % 5 < 2:
                chosen.append((Case(*shape, 0, 0, compute=types[0], kind=types[1], page=page), window, softcap, causal))
    return chosen


def batch(case: Case, rows: list[tuple[int, int]]) -> tuple[Tensor, Pages, Layout]:
    """Return queries, pages and layout of ragged rows (start, count)."""
    table, blocks = scrambled([sum(row) for row in rows], case.page)
    layout = layout_of(rows, table)
    q = torch.randn((layout.positions.shape[0], case.heads, case.head_dim), device=DEVICE).to(case.compute)
    return q, random_pages(case, blocks), layout


def check(deadline: float, *, dry: bool) -> bool:
    """Compare with float64, print the worst error of every type; return whether all is well."""
    cases = sorted(grid(dry=dry), key=lambda one: GRID_TYPES.index((one[0].compute, one[0].kind)))
    rows = [(0, 20), (70, 1), (40, 2), (0, 1), (5, 0)] if dry else GRID_ROWS
    wanted: list[Variant] = [(replace(case, batch=16, queries=count), way, None, 0, 0.0)
                             for case, way in bits_of(dry=dry) for count in (1, 40)]  # fmt: skip
    wanted += [(replace(case, batch=len(rows), queries=40, causal=causal), None, None, window, softcap)
               for case, window, softcap, causal in cases]  # fmt: skip
    compiled = compiled_ahead(wanted)
    problems = [problem for problem in itertools.islice(compiled, len(wanted) - len(cases)) if problem]
    good = not problems and same_bits(dry=dry)
    worst: dict[str, float] = {}
    done = wrong = 0
    for problem, (case, window, softcap, causal) in zip(compiled, cases, strict=True):
        done += 1
        error = float("nan") if problem else difference(case, rows, window, softcap, causal=causal)
        name = f"{case.compute} queries, {case.kind} pages".replace("torch.", "")
        worst[name] = max(worst.get(name, 0.0), error)
        if not error <= TOLERANCES[case.compute]:
            print(f"  WRONG {case} {window=} {softcap=} {causal=}: {error:.2e} {problem}", flush=True)
            wrong += 1
        if time.monotonic() > deadline:
            break
    stop_compiling()
    print(f"\n{done} of {len(cases)} batches of {len(rows)} ragged rows against float64, {wrong} wrong", *problems)
    for name, error in worst.items():
        print(f"  {name:34} worst relative error {error:.1e}", flush=True)
    return good and wrong == 0


def difference(case: Case, rows: list[tuple[int, int]], window: int, softcap: float, *, causal: bool) -> float:
    """Return the norm of the error against float64 over the result's."""
    q, pages, layout = batch(case, rows)
    scale = case.head_dim**-0.5
    expected = exact(q, pages, layout, scale, window, causal=causal, softcap=softcap)
    try:
        got = paged_attention_triton(q, pages, layout, scale, window, causal=causal, softcap=softcap).double()
    except FAILURES as failure:
        print(f"  FAILED {case} {window} {softcap}: {failure}")
        return float("nan")
    return float(torch.linalg.vector_norm(got - expected) / torch.linalg.vector_norm(expected))


def bits_of(*, dry: bool) -> Iterator[tuple[Case, Tuning | None]]:
    """Yield what same_bits() looks at: cases as they are cut, and cut at fixed lengths."""
    for shape, kind in itertools.product([(6, 2, 16)] if dry else [(16, 8, 128), (9, 3, 64)], (BF16, INT8)):
        case = Case(*shape, 0, 0, kind=kind)
        yield case, None
        yield case, replace(decode_tuning(case.head_dim, kind), split=512)


def same_bits(*, dry: bool) -> bool:
    """Check that a batch's bits are the same every time, and a row's in every batch if pieces have a fixed length."""
    rows = [(0, 20), (190, 2), (150, 1)] if dry else [(0, 700), (3000, 2), (1500, 1), (4095, 1)]
    good = True
    for case, way in bits_of(dry=dry):
        if way is None:
            continue
        q, pages, layout = batch(case, rows)
        run = partial(paged_attention_triton, scale=0.1)
        once = run(q, pages, layout)
        again = all(torch.equal(run(q, pages, layout), once) for _ in range(2 if dry else 50))
        fixed = partial(run, decode=way)
        together = fixed(q, pages, layout)
        alone = True
        token = 0
        for row, (start, count) in enumerate(rows):
            for n in range(count if count <= 2 else 0):
                single = layout_of([(start + n, 1)], layout.block_tables[row : row + 1], 1)
                got = fixed(q[token + n : token + n + 1], pages, single)
                alone &= torch.equal(got[0], together[token + n])
            token += count
        words = ["equal" if same else "DIFFER" for same in (again, alone)]
        name = f"{case.heads}/{case.kv_heads}×{case.head_dim} {case.kind}"
        print(f"  {name}: repeated {words[0]}, alone {words[1]}", flush=True)
        good &= again and alone
    return good and (not CUDA or replayed())


def replayed() -> bool:
    """Check that a captured launch follows lengths that change after the capture."""
    case = Case(16, 8, 128, 4096, 8)
    q, sets, layout = prepare(case)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention_triton(q, sets[0], layout, 0.1)
    good = True
    for lengths in ([1, 2, 63, 64, 65, 512, 513, 4096], [4096] * 8, [0, 0, 7, 1, 100, 3000, 2, 1]):
        layout.context_lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        expected = exact(q, sets[0], layout, 0.1)
        error = float(torch.linalg.vector_norm(out.double() - expected) / torch.linalg.vector_norm(expected))
        good &= error <= TOLERANCES[BF16]
    print(f"  a captured launch follows its lengths: {'yes' if good else 'NO'}")
    return good


def ours(case: Case) -> float:
    """Return µs of our kernel."""
    q, sets, layout = prepare(case)
    scale = case.head_dim**-0.5
    calls = [lambda pages=pages: paged_attention_triton(q, pages, layout, scale, causal=case.causal) for pages in sets]
    return microseconds(calls)


def table(names: list[str], deadline: float, *, dry: bool) -> None:
    """Print our figures beside the peers' and the bars."""
    decodes, prefills = ([small(case) for case in cases] if dry else cases for cases in (DECODES, PREFILLS))
    copy = copy_bandwidth(DEVICE)
    print(f"\ndevice copy {copy / 1e12:.2f} TB/s; µs a call under CUDA graphs, L2 cold")
    heads = "".join(f"{name:>12}" for name in names)
    print(f"{'decode':40}{'ours':>9}{'TB/s':>7}{'of copy':>9}{heads}")
    found: dict[Case, dict[str, float]] = {}
    for case, times in rows(decodes, names, deadline):
        found[case] = times
        speed = case.kv_bytes / (times["ours"] * 1e-6)
        rest = "".join(f"{times[name]:12.1f}" for name in names)
        print(f"{case.name:40}{times['ours']:9.1f}{speed / 1e12:7.2f}{speed / copy:9.0%}{rest}", flush=True)
    if not dry:
        bars(found, copy)
    print(f"{'prefill':40}{'ours':>9}{'TFLOP/s':>16}{heads}")
    for case, times in rows(prefills, names, deadline):
        rest = "".join(f"{times[name]:12.1f}" for name in names)
        print(f"{case.name:40}{times['ours']:9.1f}{case.operations / times['ours'] / 1e6:16.0f}{rest}", flush=True)


def compile_ours(cases: list[Case]) -> None:
    """Compile our kernels for the cases, many at a time."""
    variants: list[Variant] = []
    for case in cases:
        decode = decode_tuning(case.head_dim, case.kind) if case.queries == 1 else None
        variants.append((case, decode, None, 0, 0.0))
    compile_all(variants)


def build_flashinfer() -> list[AsyncResult[None]]:
    """Begin to compile FlashInfer's kernels, each module by a process of its own."""
    os.environ.setdefault("MAX_JOBS", "4")  # compilers a module
    wanted = list(itertools.product((64, 128), (True, False)))
    pool = multiprocessing.get_context("spawn").Pool(len(wanted))
    return [pool.apply_async(compile_flashinfer, way) for way in wanted]


def built(building: list[AsyncResult[None]], seconds: float) -> bool:
    """Wait for FlashInfer's kernels, and say how long they took, or that they are not there."""
    begin = time.monotonic()
    try:
        for result in building:
            result.get(max(1.0, begin + seconds - time.monotonic()))
    except (multiprocessing.TimeoutError, MaybeEncodingError, *FAILURES) as error:
        print(f"  no FlashInfer: {type(error).__name__} {str(error).strip()[-600:]}", flush=True)
        return False
    print(f"waited {time.monotonic() - begin:.0f} s more for FlashInfer to compile", flush=True)
    return True


def rows(cases: list[Case], names: list[str], deadline: float) -> Iterator[tuple[Case, dict[str, float]]]:
    """Yield every case with its times as they come, until the time is up."""
    for number, case in enumerate(cases):
        if time.monotonic() > deadline:
            print(f"  no time left for {len(cases) - number} rows: {case.name} and after")
            return
        yield case, measure(case, names)


def small(case: Case) -> Case:
    """Return a case of the same kind that an interpreter gets through."""
    context = min(case.context, 80)
    return replace(case, context=context, queries=min(case.queries, 40), batch=2)


def measure(case: Case, names: list[str]) -> dict[str, float]:
    """Return µs by name; of the peers those on contiguous keys read bfloat16 where we have int8."""
    times = {"ours": ours(case)}
    for name in names:
        if name == "Flex" and case not in FLEX:
            times[name] = float("nan")
            continue
        try:
            times[name] = PEERS[name](case)
        except FAILURES as error:
            print(f"  {name}: {type(error).__name__} {str(error).splitlines()[0][:150]}", flush=True)
            times[name] = float("inf")
        if CUDA:
            torch.cuda.empty_cache()
    return times


def bars(found: dict[Case, dict[str, float]], copy: float) -> None:
    """Print what was promised, and whether it holds."""
    print("bars")
    for case, times in found.items():
        if case.kind is INT8:
            continue
        paged = min(times.get(name, float("inf")) for name in PAGED)
        if case.batch >= 8 and paged < float("inf"):
            ratio = times["ours"] / paged
            print(f"  {case.name}: {ratio:.2f} × the best paged peer, at most 1: {yes(ratio <= 1.0)}")
        if case.batch >= 64 and "SDPA" in times:
            ratio = times["ours"] / times["SDPA"]
            print(f"  {case.name}: {ratio:.2f} × contiguous SDPA, at most 1.15: {yes(ratio <= 1.15)}")
        if case.batch == 64 and case.context == 4096:
            share = case.kv_bytes / (times["ours"] * 1e-6) / copy
            print(f"  {case.name}: {share:.0%} of copy, at least 90 %: {yes(share >= 0.9)}")
        narrow = found.get(replace(case, kind=INT8))
        if narrow is not None:
            ratio = times["ours"] / narrow["ours"]
            print(f"  {case.name}: int8 {ratio:.2f} × faster, at least 1.6: {yes(ratio >= 1.6)}")


def yes(fact: bool) -> str:
    """Return the fact as a word."""
    return "yes" if fact else "NO"


def main() -> None:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("check", "tune", "table", "fa3", "flashinfer", "flex", "dry-run"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--check-seconds", type=float, default=600.0)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    if CUDA:
        print(torch.cuda.get_device_name(), torch.__version__)
    begin = time.monotonic()
    building = build_flashinfer() if wanted.flashinfer and CUDA else []
    if wanted.table and CUDA:
        compile_ours([*DECODES, *PREFILLS])
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    good = check(begin + wanted.check_seconds, dry=wanted.dry_run) if wanted.check else True
    if wanted.table:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        peers = [*(["FA3"] if wanted.fa3 else []), "SDPA", *(["Flex"] if wanted.flex else [])]
        if building and built(building, begin + wanted.seconds * 0.7 - time.monotonic()):
            peers.insert(len(peers) - 1, "FlashInfer")
        table(peers, begin + wanted.seconds, dry=wanted.dry_run)
    if wanted.tune:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        tune(begin + wanted.seconds, dry=wanted.dry_run)
    print(f"after {time.monotonic() - begin:.0f} s")
    if not good:
        raise SystemExit("the kernels disagree with their reference")


if __name__ == "__main__":
    main()

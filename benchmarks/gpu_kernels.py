"""Paged attention on a GPU: checked against float64, tuned, and timed beside others' attention, in one run.

It runs on any Python with torch and Triton; of voxlane it needs the engine alone. Where the package is not installed:

    mkdir -p build/gpu/voxlane
    for part in engine server codecs; do ln -sfn ../../../$part build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_kernels.py --check --tune --table

--check compares attention over a grid of shapes with float64, bits with bits, and every other kernel with its reference
(gpu_kernels_check.py). --tune times ways to cut and compile. --table prints
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
from multiprocessing.pool import AsyncResult, MaybeEncodingError

import torch
from gpu_attention_tune import Variant, compile_all, stop_compiling, tune
from gpu_clock import copy_bandwidth
from gpu_kernels_check import check, kernels, sampler
from gpu_paged import CUDA, DEVICE, Case, microseconds, prepare
from gpu_peers import FAILURES, PAGED, PEERS, compile_flashinfer, compile_flex

from voxlane.engine.kernels.triton.attention import decode_tuning, paged_attention_triton

INT8 = torch.int8

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
FLEX = (DECODES[2], DECODES[4], PREFILLS[0], PREFILLS[7])
"""Where FlexAttention is timed: it compiles for seconds at every shape."""


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
        group = case.heads // case.kv_heads
        decode = decode_tuning(case.head_dim, case.kind, group) if case.queries == 1 else None
        variants.append((case, decode, None, 0, 0.0))
    compile_all(variants)


def build_peers(*, flashinfer: bool, flex: bool) -> dict[str, list[AsyncResult[None]]]:
    """Begin to compile what peers compile into their caches on disk, each by a process of its own."""
    os.environ.setdefault("MAX_JOBS", "4")  # compilers of each
    ways = list(itertools.product((64, 128), (True, False))) if flashinfer else []
    cases = FLEX if flex else ()
    if not CUDA or not (ways or cases):
        return {}
    pool = multiprocessing.get_context("spawn").Pool(len(ways) + len(cases))
    return {
        "FlashInfer": [pool.apply_async(compile_flashinfer, way) for way in ways],
        "Flex": [pool.apply_async(compile_flex, (case,)) for case in cases],
    }


def built(name: str, building: list[AsyncResult[None]], seconds: float) -> bool:
    """Wait for a peer's kernels, and say how long they took, or that they are not there."""
    begin = time.monotonic()
    try:
        for result in building:
            result.get(max(1.0, begin + seconds - time.monotonic()))
    except (multiprocessing.TimeoutError, MaybeEncodingError, *FAILURES) as error:
        print(f"  no {name}: {type(error).__name__} {str(error).strip()[-600:]}", flush=True)
        return False
    print(f"waited {time.monotonic() - begin:.0f} s more for {name} to compile", flush=True)
    return bool(building)


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
            times[name] = float("nan")  # not compiled
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
    building = build_peers(flashinfer=wanted.flashinfer, flex=wanted.flex)
    if wanted.table and CUDA:
        compile_ours([*DECODES, *PREFILLS])
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    good = True
    if wanted.check:
        others = kernels(dry=wanted.dry_run)
        good = check(begin + wanted.check_seconds, dry=wanted.dry_run) & sampler(dry=wanted.dry_run) & all(list(others))
        stop_compiling()
    if wanted.table:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        late = begin + wanted.seconds * 0.7
        there = [name for name, parts in building.items() if built(name, parts, late - time.monotonic())]
        table([*(["FA3"] if wanted.fa3 else []), "SDPA", *there], begin + wanted.seconds, dry=wanted.dry_run)
    if wanted.tune:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        tune(begin + wanted.seconds, dry=wanted.dry_run)
    print(f"after {time.monotonic() - begin:.0f} s")
    if not good:
        raise SystemExit("the kernels disagree with their reference")


if __name__ == "__main__":
    main()

"""Paged attention on a GPU: checked against float64, tuned, and timed beside others' attention, in one run.

It runs on any Python with torch and Triton; of voxlane it needs the engine alone. Where the package is not installed:

    mkdir -p build/gpu/voxlane
    for part in engine server codecs; do ln -sfn ../../../$part build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_kernels.py --check --tune --table

--check compares attention over a grid of shapes with float64, bits with bits, and every other kernel with its reference
(gpu_kernels_check.py); what is not done by --check-seconds counts as wrong. --tune times ways to cut and compile.
--table prints the figures with the peers and the bars (--fa3, --flashinfer and --flex add those to SDPA; gpu_peers.py
says where they come from); what is not timed by --seconds is left out. --dry-run, with TRITON_INTERPRET=1, tries all of
it on a CPU at sizes that say nothing about speed. Memory is checked on the device by

    compute-sanitizer --tool memcheck python3 benchmarks/gpu_kernels.py --check --dry-run

Time: nothing is begun after --seconds and --check-seconds, 600 each by default.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.pool import AsyncResult, MaybeEncodingError  # type: ignore[attr-defined]  # typeshed has it not

import gpu_interpreter
import torch
from command_line import command_line
from gpu_attention_tune import Variant, compile_all, tune
from gpu_clock import FAILURES, copy_bandwidth
from gpu_kernels_check import check
from gpu_paged import CUDA, DEVICE, Case, microseconds, prepare
from gpu_peers import DECLINES, PAGED, PEERS, compile_flashinfer, compile_flex
from gpu_workers import stop_compiling

from voxlane.engine.kernels.triton.attention import decode_tuning, paged_attention_triton

INT8 = torch.int8
NEVER = float("inf")

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


Times = dict[Case, dict[str, float]]  # µs by name


def table(building: dict[str, list[AsyncResult[None]]], deadline: float, *, fa3: bool, dry: bool) -> None:
    """Time everything, one name after the other, and print it in one table with the bars.

    Peers that are still being compiled come last, and ours is timed before and after all others: its mean counts.
    """
    decodes, prefills = ([small(case) for case in cases] if dry else cases for cases in (DECODES, PREFILLS))
    copy = copy_bandwidth(DEVICE)
    times: Times = {case: {} for case in (*decodes, *prefills)}
    names = [*(["FA3"] if fa3 else []), "SDPA"]
    for name in ("ours", *names):
        column(name, times, deadline)
    for name, parts in building.items():
        if built(name, parts, (deadline - time.monotonic()) / 2):
            names.append(name)
            column(name, times, deadline)
    apart = settle(times, deadline)
    print(f"\ndevice copy {copy / 1e12:.2f} TB/s; µs a call under CUDA graphs, L2 cold")
    print(f"ours was timed before and after the others, up to {apart:.1%} apart: the mean")
    heads = "".join(f"{name:>12}" for name in names)
    print(f"{'decode':40}{'ours':>9}{'TB/s':>7}{'of copy':>9}{heads}")
    for case in decodes:
        speed = case.kv_bytes / (times[case].get("ours", NEVER) * 1e-6)
        print(line(case, times[case], names, f"{speed / 1e12:7.2f}{speed / copy:9.0%}"))
    print(f"{'prefill':40}{'ours':>9}{'TFLOP/s':>16}{heads}")
    for case in prefills:
        rate = case.operations / times[case].get("ours", NEVER) / 1e6
        print(line(case, times[case], names, f"{rate:16.0f}"))
    if not dry:
        bars(times, copy)


def settle(times: Times, deadline: float) -> float:
    """Time ours once more, keep the mean of both times; return by how much they are apart at most."""
    again: Times = {case: {} for case in times}
    column("ours", again, deadline)
    apart = [0.0]
    for case, mine in times.items():
        if "ours" in mine and "ours" in again[case]:
            apart.append(abs(again[case]["ours"] / mine["ours"] - 1.0))
            mine["ours"] = (mine["ours"] + again[case]["ours"]) / 2
    return max(apart)


def column(name: str, times: Times, deadline: float) -> None:
    """Time one name at every case, until the time is up."""
    begin, done = time.monotonic(), 0
    cases = [case for case in times if name != "Flex" or case in FLEX]
    work, failures = (ours, FAILURES) if name == "ours" else (PEERS[name], DECLINES)
    for case in cases:
        if time.monotonic() > deadline:
            break
        try:
            times[case][name] = work(case)
        except failures as error:
            print(f"  {name}, {case.name}: {type(error).__name__} {str(error).splitlines()[0][:150]}", flush=True)
        done += 1
        if CUDA:
            torch.cuda.empty_cache()
    print(f"{name}: {done} of {len(cases)} rows in {time.monotonic() - begin:.0f} s", flush=True)


def line(case: Case, mine: dict[str, float], names: list[str], more: str) -> str:
    """Return a row of the table; what is not there was not timed, or declined."""
    others = (mine.get(name, NEVER) for name in names)
    rest = "".join(f"{each:12.1f}" if each < NEVER else f"{'-':>12}" for each in others)
    return f"{case.name:40}{mine.get('ours', float('nan')):9.1f}{more}{rest}"


def compile_ours(cases: list[Case]) -> None:
    """Compile our kernels for the cases, many at a time."""
    variants: list[Variant] = []
    for case in cases:
        decode = decode_tuning(case.head_dim, case.kind) if case.queries == 1 else None
        variants.append((case, decode, None, 0, 0.0))
    compile_all(variants)


def build_peers(*, flashinfer: bool, flex: bool) -> dict[str, list[AsyncResult[None]]]:
    """Begin to compile what peers compile into their caches on disk, each by a process of its own."""
    os.environ.setdefault("MAX_JOBS", "4")  # compilers of each
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    ways = list(itertools.product((64, 128), (True, False))) if flashinfer else []
    cases = FLEX if flex else ()
    if not CUDA or not (ways or cases):
        return {}
    pool = multiprocessing.get_context("spawn").Pool(len(ways) + len(cases))
    return {
        "Flex": [pool.apply_async(compile_flex, (case,)) for case in cases],
        "FlashInfer": [pool.apply_async(compile_flashinfer, way) for way in ways],
    }


def built(name: str, building: list[AsyncResult[None]], seconds: float) -> bool:
    """Wait for a peer's kernels, and say how long they took, or that they are not there."""
    begin = time.monotonic()
    try:
        for result in building:
            result.get(max(1.0, begin + seconds - time.monotonic()))
    except (multiprocessing.TimeoutError, MaybeEncodingError, *DECLINES) as error:
        print(f"  no {name}: {type(error).__name__} {str(error).strip()[-600:]}", flush=True)
        return False
    print(f"waited {time.monotonic() - begin:.0f} s more for {name} to compile", flush=True)
    return bool(building)


def small(case: Case) -> Case:
    """Return a case of the same kind that an interpreter gets through."""
    context = min(case.context, 80)
    return replace(case, context=context, queries=min(case.queries, 40), batch=2)


def bars(times: Times, copy: float) -> None:
    """Print what was promised, and whether it holds."""
    facts: list[tuple[str, bool]] = []
    for case, mine in times.items():
        if case.kind is INT8 or "ours" not in mine:
            continue
        took = mine["ours"]
        paged = min(mine.get(name, NEVER) for name in PAGED)
        if case.batch >= 8 and paged < NEVER:
            facts.append((f"{case.name}: {took / paged:.2f} × the best paged peer, at most 1", took <= paged))
        if case.batch >= 64 and mine.get("SDPA", NEVER) < NEVER:
            ratio = took / mine["SDPA"]
            facts.append((f"{case.name}: {ratio:.2f} × contiguous SDPA, at most 1.15", ratio <= 1.15))
        if case.batch == 64 and case.context == 4096:
            share = case.kv_bytes / (took * 1e-6) / copy
            facts.append((f"{case.name}: {share:.0%} of copy, at least 90 %", share >= 0.9))
        narrow = times.get(replace(case, kind=INT8), {})
        if "ours" in narrow:
            ratio = took / narrow["ours"]
            facts.append((f"{case.name}: int8 {ratio:.2f} × faster, at least 1.6", ratio >= 1.6))
    print(f"bars: {sum(fact for _, fact in facts)} of {len(facts)} met")
    for words, fact in facts:
        print(f"  {words}: {'yes' if fact else 'NO'}")


def main() -> None:
    """Do what the arguments ask for."""
    parser = command_line(__doc__)
    flags = {
        "check": "compare every kernel with its reference",
        "tune": "time ways to cut and compile paged attention",
        "table": "time ours and the peers",
        "fa3": "FlashAttention-3 too, in the table",
        "flashinfer": "FlashInfer too",
        "flex": "FlexAttention too",
        "dry-run": "small sizes: does the script run?",
    }
    for name, told in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    parser.add_argument("--seconds", type=float, default=600.0, help="time nothing after this long (%(default)g)")
    parser.add_argument("--check-seconds", type=float, default=600.0, help="the same for --check (%(default)g)")
    wanted = parser.parse_args()
    torch.manual_seed(0)
    if CUDA:
        print(torch.cuda.get_device_name(), torch.__version__)
    else:
        gpu_interpreter.mend()
    begin = time.monotonic()
    building = build_peers(flashinfer=wanted.flashinfer, flex=wanted.flex)
    if wanted.table and CUDA:
        compile_ours([*DECODES, *PREFILLS])
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    good = True
    if wanted.check:
        good = check(begin + wanted.check_seconds, dry=wanted.dry_run)
        stop_compiling()
    if wanted.table:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        table(building, begin + wanted.seconds, fa3=wanted.fa3, dry=wanted.dry_run)
    if wanted.tune:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        tune(begin + wanted.seconds, dry=wanted.dry_run)
    print(f"after {time.monotonic() - begin:.0f} s")
    if not good:
        raise SystemExit("the kernels disagree with their reference")


if __name__ == "__main__":
    main()

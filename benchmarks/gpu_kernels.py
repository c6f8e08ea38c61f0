"""Every kernel on a GPU against its reference, and paged attention timed beside others' attention, in one run.

It runs on any Python with torch and Triton; of voxlane it needs the engine alone. Where the package is not installed:

    mkdir -p build/gpu/voxlane
    for part in engine server codecs; do ln -sfn ../../../$part build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_kernels.py --check --table

--check    compares attention over a grid of shapes with float64, bits with bits, and every other kernel with its
           reference. A check that is not done by --check-seconds counts as wrong.
--table    times paged attention and prints the figures with the peers and the bars. The peer is SDPA; --fa3
           and --flashinfer add theirs (support/kernels/peers.py says where they come from). Ours and the peers' are
           timed in turns; of each, the median of all rounds counts. A row not begun by --seconds is left out.
--dry-run  with TRITON_INTERPRET=1, tries all of it on a CPU at small sizes.

$OUT names a folder for the figures. Memory is checked on the device by

    compute-sanitizer --tool memcheck python3 benchmarks/gpu_kernels.py --check --dry-run

Time: nothing is begun after --seconds and --check-seconds, 600 each by default.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from multiprocessing.pool import AsyncResult, MaybeEncodingError  # type: ignore[attr-defined]  # typeshed has it not

import torch
from support.command_line import command_line
from support.gpu import interpreter
from support.gpu.clock import FAILURES, copy_bandwidth
from support.gpu.report import write_out
from support.gpu.workers import stop_compiling
from support.kernels.check import check
from support.kernels.paged import CUDA, DEVICE, Captured, Case, Took, prepare, race
from support.kernels.peers import DECLINES, PAGED, PEERS, Way, compile_flashinfer
from support.kernels.ways import compile_all

from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton

INT8 = torch.int8
NEVER = float("inf")
ROUNDS = 25
QUALIFYING = 5
"""Rounds in which the ways of one peer are compared; its fastest is then timed beside ours."""

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
    Case(16, 8, 128, 512, 8, queries=512),
    Case(32, 8, 64, 512, 8, queries=512),
    Case(32, 8, 128, 512, 8, queries=512),
    Case(16, 8, 128, 4096, 8, queries=64),
    Case(32, 8, 64, 8192, 8, queries=64),
    Case(16, 8, 128, 2048, 8, queries=256),
    *(Case(16, 8, 128, context, batch, queries=16) for context, batch in ((2048, 8), (8192, 8), (2048, 64))),
    *(Case(32, 8, 64, context, batch, queries=16) for context, batch in ((2048, 8), (8192, 8), (2048, 64))),
    *(Case(9, 3, 64, context, batch, queries=16) for context, batch in ((2048, 8), (8192, 8), (2048, 64))),
    Case(20, 20, 64, 1500, 1, queries=1500, causal=False),
    Case(20, 20, 64, 1500, 8, queries=1500, causal=False),
]
Times = dict[Case, dict[str, Took]]


def ours(case: Case) -> Iterator[Way]:
    """Yield our kernel."""
    q, sets, layout = prepare(case)
    call = partial(paged_attention_triton, causal=case.causal)
    yield "ours", [partial(call, q, pages, layout, case.head_dim**-0.5) for pages in sets]


def table(building: dict[str, list[AsyncResult[None]]], deadline: float, *, fa3: bool, dry: bool) -> None:
    """Time every case and print its row at once; then print the bars."""
    decodes, prefills = (dict.fromkeys(small(case) if dry else case for case in cases) for cases in (DECODES, PREFILLS))
    names = [*(["FA3"] if fa3 else []), "SDPA"]
    names += [name for name, parts in building.items() if built(name, parts, (deadline - time.monotonic()) / 2)]
    begin, copy = time.monotonic(), copy_bandwidth(DEVICE)
    print(f"\ndevice copy {copy / 1e12:.2f} TB/s; µs a call under CUDA graphs, L2 cold: the median of {ROUNDS} rounds")
    print("in which ours and the fastest way of every peer are timed in turns")
    heads = "".join(f"{name:>12}" for name in names)
    print(f"{'decode':40}{'ours':>9}{'TB/s':>7}{'of copy':>9}{heads}")
    times: Times = {}
    for case in decodes:
        times[case] = timed(case, names, deadline)
        speed = case.kv_bytes / (median(times[case], "ours") * 1e-6)
        print(line(case, times[case], names, f"{speed / 1e12:7.2f}{speed / copy:9.0%}"), flush=True)
    print(f"{'prefill':40}{'ours':>9}{'TFLOP/s':>16}{heads}")
    for case in prefills:
        times[case] = timed(case, names, deadline)
        rate = case.operations / median(times[case], "ours") / 1e6
        print(line(case, times[case], names, f"{rate:16.0f}"), flush=True)
    apart = max((took.high / took.low - 1.0 for row in times.values() for took in row.values()), default=0.0)
    print(f"the middle half of a name's rounds lay within {apart:.1%} at most; {time.monotonic() - begin:.0f} s")
    figures = {case.name: {name: asdict(took) for name, took in row.items()} for case, row in times.items()}
    write_out("gpu_kernels", figures)
    if not dry:
        bars(times, copy)


def timed(case: Case, names: list[str], deadline: float) -> dict[str, Took]:
    """Return the times of ours and of each peer's fastest way at a case, without peers that decline it or are late."""
    if time.monotonic() > deadline:
        return {}
    entries: dict[str, Captured] = {}
    for name in ("ours", *names):
        work, failures = (ours, FAILURES) if name == "ours" else (PEERS[name], DECLINES)
        if (entry := fastest(work(case), failures)) is not None:
            entries[name] = entry
    found = dict(zip(entries, race(list(entries.values()), ROUNDS), strict=True)) if entries else {}
    entries.clear()
    if CUDA:
        torch.cuda.empty_cache()
    return found


def fastest(ways: Iterator[Way], failures: tuple[type[Exception], ...]) -> Captured | None:
    """Return the fastest way by a few rounds; others time it later, so that luck does not choose the figure."""
    best, shortest = None, NEVER
    name = "a peer"
    while True:
        try:
            name, calls = next(ways)
            entry = Captured(calls)
            took = race([entry], QUALIFYING)[0].median
        except StopIteration:
            return best
        except failures as error:
            print(f"  {name} declined: {type(error).__name__} {str(error).splitlines()[0][:150]}", flush=True)
            continue
        if took < shortest:
            best, shortest = entry, took


def median(row: dict[str, Took], name: str) -> float:
    """Return the µs of a name in a row; infinity if it was not timed."""
    return row[name].median if name in row else NEVER


def line(case: Case, mine: dict[str, Took], names: list[str], more: str) -> str:
    """Return a row of the table; a dash means not timed, or declined."""
    others = (median(mine, name) for name in names)
    rest = "".join(f"{each:12.1f}" if each < NEVER else f"{'-':>12}" for each in others)
    own = f"{median(mine, 'ours'):9.1f}" if "ours" in mine else f"{'-':>9}"
    return f"{case.name:40}{own}{more}{rest}"


def build_peers(*, flashinfer: bool) -> dict[str, list[AsyncResult[None]]]:
    """Begin to compile the peers' kernels into their caches on disk, each in a process of its own."""
    os.environ.setdefault("MAX_JOBS", "4")  # compilers of each
    if not CUDA or not flashinfer:
        return {}
    ways = list(itertools.product((64, 128), (True, False)))
    pool = multiprocessing.get_context("spawn").Pool(len(ways))
    return {"FlashInfer": [pool.apply_async(compile_flashinfer, way) for way in ways]}


def built(name: str, building: list[AsyncResult[None]], seconds: float) -> bool:
    """Wait for a peer's kernels; print how long it took, or that they are missing; return whether they are there."""
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
    """Return a case of the same kind that is small enough for an interpreter."""
    context = min(case.context, 80)
    return replace(case, context=context, queries=min(case.queries, 40), batch=2)


def bars(times: Times, copy: float) -> None:
    """Print each bar, and whether it is met."""
    facts: list[tuple[str, bool]] = []
    for case, mine in times.items():
        if case.kind is INT8 or "ours" not in mine:
            continue
        took = median(mine, "ours")
        paged = min(median(mine, name) for name in PAGED)
        if case.batch >= 8 and paged < NEVER:
            facts.append((f"{case.name}: {took / paged:.2f} × the best paged peer, at most 1", took <= paged))
        if case.batch >= 64 and "SDPA" in mine:
            ratio = took / median(mine, "SDPA")
            facts.append((f"{case.name}: {ratio:.2f} × contiguous SDPA, at most 1.15", ratio <= 1.15))
        if case.batch == 64 and case.context == 4096:
            share = case.kv_bytes / (took * 1e-6) / copy
            facts.append((f"{case.name}: {share:.0%} of copy, at least 90 %", share >= 0.9))
        narrow = times.get(replace(case, kind=INT8), {})
        if "ours" in narrow:
            ratio = took / median(narrow, "ours")
            facts.append((f"{case.name}: int8 {ratio:.2f} × faster, at least 1.6", ratio >= 1.6))
    print(f"bars: {sum(fact for _, fact in facts)} of {len(facts)} met")
    for words, fact in facts:
        print(f"  {words}: {'yes' if fact else 'NO'}")


def main() -> None:
    """Run the parts that the options name."""
    parser = command_line(__doc__)
    flags = {
        "check": "compare every kernel with its reference",
        "table": "time ours and the peers",
        "fa3": "FlashAttention-3 too, in the table",
        "flashinfer": "FlashInfer too",
        "dry-run": "small sizes, on a CPU",
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
        interpreter.mend()
    begin = time.monotonic()
    building = build_peers(flashinfer=wanted.flashinfer)
    if wanted.table and CUDA:
        compile_all((*DECODES, *PREFILLS), begin + wanted.seconds / 2)
        print(f"compiled after {time.monotonic() - begin:.0f} s", flush=True)
    good = True
    if wanted.check:
        good = check(begin + wanted.check_seconds, dry=wanted.dry_run)
        stop_compiling()
    if wanted.table:
        print(f"after {time.monotonic() - begin:.0f} s", flush=True)
        table(building, begin + wanted.seconds, fa3=wanted.fa3, dry=wanted.dry_run)
    print(f"after {time.monotonic() - begin:.0f} s")
    if not good:
        raise SystemExit("the kernels disagree with their reference")


if __name__ == "__main__":
    main()

"""Check every kernel on the device: attention over a grid of shapes against float64, bits against bits, and the rest.

The rest are the checks that an engine makes before it is ready, on the sizes of two models and in every type.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from support.gpu.clock import FAILURES
from support.gpu.workers import Given, Made, elsewhere
from support.kernels.paged import (
    CUDA,
    DEVICE,
    TOLERANCES,
    Case,
    exact,
    layout_of,
    prepare,
    random_pages,
    relative_error,
    scrambled,
)
from torch import Tensor

from voxlane.engine.kernels.attention.paged_triton import by_hopper, paged_attention_triton
from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals
from voxlane.engine.kernels.attention.triton_tuning import decode_tuning, hopper_tuning
from voxlane.engine.kernels.selfcheck import Agreement
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.runners.cuda.selfcheck import agreements
from voxlane.engine.runners.cuda.trial import STAND_IN, Trial

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8

QWEN3 = DecoderConfig.from_dict(
    {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151_936,
    }
).spec
TRIALS = [(STAND_IN, F32, F32), (STAND_IN, BF16, INT8), (QWEN3, BF16, BF16), (QWEN3, BF16, INT8)]
"""Sizes, and the types of rows and pages."""

GRID_ROWS = [(0, 700), (2000, 1), (1290, 300), (0, 1), (1270, 2), (5, 0), (4095, 1), (300, 130), (511, 1), (512, 1)]
GRID_ROWS += [
    (3000, 40),
    (64, 64),
]  # a chunk that prefill cuts, for its long context, and one without a ragged end
DRY_ROWS = [(0, 20), (70, 1), (40, 2), (0, 1), (5, 0)] + [(2100, 20)] * CUDA
FEW_ROWS = [(3000, 40), (100, 1), (900, 200), (0, 5)]  # few enough that the Hopper kernel cuts them
PADDED = [(200, 300)] * 3 + [(800, 300)]  # the last row has fewer queries than the others, few enough to be cut
GRID_SHAPES = [(9, 3, 64), (16, 8, 128), (32, 8, 64), (20, 20, 64), (8, 1, 128), (4, 4, 80), (2, 1, 256), (40, 2, 32)]
GRID_TYPES = [(BF16, INT8), (BF16, BF16), (F32, INT8), (F16, F16), (F32, F32), (F32, BF16)]
GRID_OPTIONS = [(0, 0.0, True), (50, 0.0, True), (1000, 30.0, True), (0, 0.0, False)]


CHAINED = [
    *(Case(16, 8, 128, 2048, 64), Case(16, 8, 128, 2048, 8, queries=16), Case(32, 8, 64, 512, 8, queries=512)),
    Case(16, 8, 128, 0, 0),
]
"""Decodes, chunks that are cut, prompts that are not, and FEW_ROWS, each launched while the last launch still runs."""

Ragged = tuple[Case, int, float, bool]  # window, softcap, causal


def grid(*, dry: bool) -> list[Ragged]:
    """Return every shape with every type, ordered by type, with the other properties in turn."""
    shapes = [(6, 2, 16), (9, 3, 64)] if dry else GRID_SHAPES
    chosen = []
    for number, (shape, types) in enumerate(itertools.product(shapes, GRID_TYPES)):
        for page in (16, 64) if number % 2 else (32, 128):
            window, softcap, causal = GRID_OPTIONS[(number // 2 + page // 64) % len(GRID_OPTIONS)]
            if not dry or number % 5 < 2:
                chosen.append((Case(*shape, 0, 0, compute=types[0], kind=types[1], page=page), window, softcap, causal))
    # For the Hopper kernel: rows that it cuts and rows that it does not must both be there.
    chosen += [(Case(*shape, 0, 0), 0, 0.0, causal) for shape in ((9, 3, 64), (16, 8, 128)) for causal in (True, False)]
    return sorted(chosen, key=lambda one: GRID_TYPES.index((one[0].compute, one[0].kind)))


def batch(case: Case, rows: list[tuple[int, int]]) -> tuple[Tensor, Pages, Layout]:
    """Return queries, pages and layout of ragged rows (start, count)."""
    table, blocks = scrambled([sum(row) for row in rows], case.page)
    layout = layout_of(rows, table)
    q = torch.randn((layout.positions.shape[0], case.heads, case.head_dim), device=DEVICE).to(case.compute)
    return q, random_pages(case, blocks), layout


def check(deadline: float, *, dry: bool) -> bool:
    """Compare everything with its reference and print the result; return whether all is right and done in time."""
    numbers, cases = range(2 if dry else len(TRIALS)), grid(dry=dry)
    kernels = outcomes(try_kernels, numbers, deadline, dry=dry)  # the longest check begins first
    bits = outcomes(partial(try_bits, dry=dry), bits_of(dry=dry), deadline, dry=dry)
    replays = outcomes(try_replay, [Case(16, 8, 128, 4096, 8)] if CUDA else [], deadline, dry=dry)
    chains = outcomes(try_chain, CHAINED if CUDA and not dry else [], deadline, dry=dry)
    batches = outcomes(partial(try_batch, dry=dry), cases, deadline, dry=dry)
    good, begin = True, time.monotonic()
    for told in (
        map(tell_bits, bits),
        map(tell_replay, replays),
        itertools.starmap(tell_chain, zip(CHAINED, chains, strict=False)),
        tell_batches(cases, batches),
        itertools.starmap(tell_kernels, zip(numbers, kernels, strict=True)),
    ):
        good &= in_time(told)
        print(f"  after {time.monotonic() - begin:.0f} s", flush=True)
    return good


def in_time(told: Iterable[bool]) -> bool:
    """Return whether all checks are right; a late one is not."""
    good = True
    try:
        for each in told:
            good &= each
    except multiprocessing.TimeoutError:
        print("  NOT DONE in time", flush=True)
        return False
    return good


def outcomes(work: Callable[[Given], Made], given: Sequence[Given], deadline: float, *, dry: bool) -> Iterable[Made]:
    """Run work in other processes and return the results.

    A dry run does it again in this process, with everything compiled, so that a memory checker can watch it.
    """
    if not CUDA:
        return map(work, given)
    found = elsewhere(work, given, deadline, fork=not dry)
    return (work(one) for _, one in zip(found, given, strict=True)) if dry else found


def try_batch(ragged: Ragged, *, dry: bool) -> tuple[float, str]:
    """Return the norm of the error against float64 over the result's, and why if there is none.

    The Hopper kernel is tried in all its ways, also with a batch that it cuts; the worst error counts.
    """
    case, window, softcap, causal = ragged
    scale = case.head_dim**-0.5
    errors = []
    try:
        for rows in (DRY_ROWS if dry else GRID_ROWS, FEW_ROWS):
            q, pages, layout = batch(case, rows)
            hopper = by_hopper(q, pages, window, softcap)
            if rows is FEW_ROWS and not hopper:
                continue
            expected = exact(q, pages, layout, scale, window, causal=causal, softcap=softcap)
            for way in {hopper_tuning(case.head_dim, 1 << size) for size in (0, 20)} if hopper else {None}:
                call = partial(paged_attention_triton, causal=causal, softcap=softcap, prefill=way)
                errors.append(relative_error(call(q, pages, layout, scale, window), expected))
        errors.append(0.0 if dry and not CUDA else padded_error(ragged))
        return float(torch.tensor(errors).max()), ""  # NaN if one of them is NaN
    except FAILURES as failure:
        return float("nan"), f"{type(failure).__name__} {' '.join(str(failure).split())[:300]}"


def padded_error(ragged: Ragged) -> float:
    """Return the error of a launch with a maximum of queries a row, where one row has fewer."""
    case, window, softcap, causal = ragged
    q, pages, layout = batch(case, PADDED)
    starts, lengths = layout.query_starts.clone(), layout.context_lengths.clone()
    starts[-1], lengths[-1] = 940, 840
    short = replace(layout, query_starts=starts, context_lengths=lengths)
    scale = case.head_dim**-0.5
    known = replace(short, max_query=300)
    got = paged_attention_triton(q, pages, known, scale, window, causal=causal, softcap=softcap)
    expected = exact(q[:940], pages, short, scale, window, causal=causal, softcap=softcap)
    return relative_error(got[:940], expected)


def tell_batches(cases: list[Ragged], found: Iterable[tuple[float, str]]) -> Iterator[bool]:
    """Print the worst error of every type when its batches are done; yield whether they are right."""
    done = wrong = 0
    pairs = zip(cases, found, strict=True)
    for types, group in itertools.groupby(pairs, key=lambda pair: (pair[0][0].compute, pair[0][0].kind)):
        worst, count = 0.0, 0
        for (case, window, softcap, causal), (error, problem) in group:
            count += 1
            worst = max(worst, error)
            if not error <= TOLERANCES[case.compute]:
                wrong += 1
                print(f"  WRONG {case} {window=} {softcap=} {causal=}: {error:.2e} {problem}", flush=True)
        name = f"{types[0]} queries, {types[1]} pages".replace("torch.", "")
        allowed = f"at most {TOLERANCES[types[0]]:.0e}"
        print(f"  {name:34} {count} batches, worst relative error {worst:.1e}, {allowed}", flush=True)
        done += count
        yield wrong == 0
    print(f"{done} of {len(cases)} batches of ragged rows against float64, {wrong} wrong", flush=True)


def bits_of(*, dry: bool) -> list[Case]:
    """Return the cases of try_bits()."""
    shapes = [(6, 2, 16)] if dry else [(16, 8, 128), (9, 3, 64)]
    return [Case(*shape, 0, 0, kind=kind) for shape, kind in itertools.product(shapes, (BF16, INT8))]


def try_bits(case: Case, *, dry: bool) -> tuple[Case, bool, bool]:
    """Return whether bits repeat every time, and for a row in every batch if pieces have a fixed length."""
    rows = [(0, 20), (190, 2), (150, 1)] if dry else [(0, 700), (3000, 2), (1500, 1), (4095, 1)]
    q, pages, layout = batch(case, rows)
    run = partial(paged_attention_triton, scale=0.1)
    once = run(q, pages, layout)
    again = all(torch.equal(run(q, pages, layout), once) for _ in range(2 if dry else 50))
    fixed = partial(run, decode=replace(decode_tuning(case.head_dim, case.kind), split=512))
    together = fixed(q, pages, layout)
    alone = True
    token = 0
    for row, (start, count) in enumerate(rows):
        for n in range(count if count <= 2 else 0):
            single = layout_of([(start + n, 1)], layout.block_tables[row : row + 1], 1)
            got = fixed(q[token + n : token + n + 1], pages, single)
            alone &= torch.equal(got[0], together[token + n])
        token += count
    return case, again, alone


def tell_bits(found: tuple[Case, bool, bool]) -> bool:
    """Print and return whether bits were equal."""
    case, *same = found
    words = ["equal" if each else "DIFFER" for each in same]
    name = f"{case.heads}/{case.kv_heads}×{case.head_dim} {case.kind}"
    print(f"  {name}: repeated {words[0]}, alone {words[1]}", flush=True)
    return all(same)


def try_replay(case: Case) -> bool:
    """Return whether a captured launch follows lengths that change after the capture."""
    q, sets, layout = prepare(case)
    paged_attention_triton(q, sets[0], layout, 0.1)  # compile before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention_triton(q, sets[0], layout, 0.1)
    good = True
    for lengths in ([1, 2, 63, 64, 65, 512, 513, 4096], [4096] * 8, [0, 0, 7, 1, 100, 3000, 2, 1]):
        layout.context_lengths.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(float("nan"))
        graph.replay()
        expected = exact(q, sets[0], layout, 0.1)
        good &= relative_error(out, expected) <= TOLERANCES[BF16]
    return good


def tell_replay(good: bool) -> bool:
    """Print and return whether a captured launch followed."""
    print(f"  a captured launch follows its lengths: {'yes' if good else 'NO'}", flush=True)
    return good


def try_chain(case: Case) -> bool:
    """Return whether overlapped launches give the same result: one's result is the next one's queries and pages."""
    q, _, layout = prepare(case) if case.batch else batch(case, FEW_ROWS)
    page = (case.kv_heads, case.page, case.head_dim)
    blocks = q.numel() // math.prod(page)
    layout = replace(layout, block_tables=layout.block_tables % blocks, arrivals=new_arrivals(DEVICE))

    def chain(*, waiting: bool) -> list[Tensor]:
        results = [q]
        for _ in range(8):
            side = results[-1].view(-1)[: blocks * math.prod(page)].view(blocks, *page)
            results.append(paged_attention_triton(results[-1].view(q.shape), Pages(side, side), layout, 2.0))
            if waiting:
                torch.cuda.synchronize()
        return results[1:]

    expected = chain(waiting=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(waiting=False)
    good = True
    for _ in range(20):
        for each in found:
            each.fill_(float("nan"))
        graph.replay()
        good &= all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    return good


def tell_chain(case: Case, good: bool) -> bool:
    """Print and return whether launches waited for each other."""
    name = case.name if case.batch else "decodes and chunks"
    print(f"  {name}: each launch waits for the one before: {'yes' if good else 'NO'}", flush=True)
    return good


def try_kernels(number: int) -> list[Agreement]:
    """Return how close every kernel comes to its reference on a model's sizes."""
    spec, rows, pages = TRIALS[number]
    first = number == 0
    return list(agreements(Trial(spec, rows, pages, 64, DEVICE, ears=first, voice=first, talker=number <= 1)))


def tell_kernels(number: int, found: list[Agreement]) -> bool:
    """Print how close kernels came, and return whether all are right."""
    spec, rows, pages = TRIALS[number]
    print(f"heads of {spec.pages.head_dim}, {rows} rows, {pages} pages".replace("torch.", ""))
    for each in found:
        word = "" if each.good else "WRONG "
        print(f"  {each.name:24} {word}{each.error:.1e} of {each.tolerance:.0e} {each.failure}", flush=True)
    return all(each.good for each in found)

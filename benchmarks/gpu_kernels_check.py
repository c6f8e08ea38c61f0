"""Is every kernel right on the device: attention over a grid of shapes against float64, bits against bits, the rest.

The rest is what an engine tries before it is ready, on the sizes of two models and in every type, and the sampler with
all that a request may ask of it. It knows what is right; gpu_kernels.py asks, and times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from gpu_attention_tune import Variant, compiled_ahead, elsewhere
from gpu_paged import (
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
from gpu_peers import FAILURES
from torch import Tensor

from voxlane.engine.cuda.rows import PACKET
from voxlane.engine.cuda.selfcheck import agreements
from voxlane.engine.cuda.trial import STAND_IN, Trial
from voxlane.engine.kernels import sampling
from voxlane.engine.kernels.pages import Layout, Pages
from voxlane.engine.kernels.selfcheck import Agreement
from voxlane.engine.kernels.triton.attention import Tuning, decode_tuning, paged_attention_triton
from voxlane.engine.models.decoder_config import DecoderConfig

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
)
TRIALS = [(STAND_IN, F32, F32), (STAND_IN, BF16, INT8), (QWEN3, BF16, BF16), (QWEN3, BF16, INT8)]
"""Sizes, and the types of rows and pages."""

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
        got = paged_attention_triton(q, pages, layout, scale, window, causal=causal, softcap=softcap)
    except FAILURES as failure:
        print(f"  FAILED {case} {window} {softcap}: {failure}")
        return float("nan")
    return relative_error(got, expected)


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
        good &= relative_error(out, expected) <= TOLERANCES[BF16]
    print(f"  a captured launch follows its lengths: {'yes' if good else 'NO'}")
    return good


def kernels(*, dry: bool) -> Iterator[bool]:
    """Compare every kernel with its reference on models' sizes; print each one's worst error, yield if all are right.

    Where kernels are compiled it is begun at once, by processes of its own, and told when the first is asked for.
    """
    numbers = range(2 if dry else len(TRIALS))
    outcomes = map(try_kernels, numbers) if dry else elsewhere(try_kernels, numbers)
    return (told(number, found) for number, found in enumerate(outcomes))


def try_kernels(number: int) -> list[Agreement]:
    """Return how close every kernel comes to its reference on a model's sizes."""
    shape, rows, pages = TRIALS[number]
    first = number == 0
    return list(agreements(Trial(shape, rows, pages, 64, DEVICE, ears=first, voice=first, talker=number <= 1)))


def told(number: int, found: list[Agreement]) -> bool:
    """Print how close kernels came, and return whether all are right."""
    shape, rows, pages = TRIALS[number]
    print(f"heads of {shape.head_dim}, {rows} rows, {pages} pages".replace("torch.", ""))
    for each in found:
        word = "" if each.good else "WRONG "
        print(f"  {each.name:24} {word}{each.error:.1e} of {each.tolerance:.0e} {each.failure}", flush=True)
    return all(each.good for each in found)


def sampler(*, dry: bool) -> bool:
    """Choose by every mix of filters, half of the rows with penalties, three tokens each; compare with float64."""
    rows, vocabulary = (16, 701) if dry else (48, 20_011)
    packet = torch.zeros((rows, PACKET), dtype=torch.int32)
    floats, numbers = packet.view(torch.float32), torch.randint(0, vocabulary, (rows, 300)).tolist()
    sides = [sampling.Penalties.empty(rows, vocabulary, device) for device in (DEVICE, torch.device("cpu"))]
    for row in range(rows):
        packet[row, sampling.POSITION], packet[row, sampling.SEED_LOW] = 400 + row, 77 - row
        floats[row, sampling.TEMPERATURE] = (0.0, 0.7, 1.0, 1.5)[row % 4]
        packet[row, sampling.TOP_K] = (0, 1, 20, 300)[row // 4 % 4]
        floats[row, sampling.TOP_P] = (0.9, 1.0, 0.3)[row // 16 % 3]
        floats[row, sampling.MIN_P] = (0.0, 0.05)[row // 2 % 2]
        packet[row, sampling.PENALTIES] = row + 1 if row % 8 < 4 else 0
        for side in sides:
            amounts = {"repetition": 1.0 + 0.1 * (row % 3), "presence": 0.5 * (row % 2), "frequency": 0.2}
            side.set(row, numbers[row], 100, **amounts, bias=((3, 2.0), (9, -5.0)) if row % 3 else ())
    logits, fed = (torch.randn((rows, vocabulary)) * 3.0).to(BF16), torch.arange(rows)
    tokens, logprobs = torch.zeros(rows, dtype=torch.int32, device=DEVICE), torch.zeros(rows, device=DEVICE)
    same, off = 0, 0.0
    for _ in range(3):
        sampling.sample(logits.to(DEVICE), packet.to(DEVICE), tokens, logprobs, sides[0], fed.to(DEVICE))
        expected = sampling.sample_ref(logits, packet, sides[1], fed)
        same += int((tokens.cpu() == expected[0]).sum())
        off = max(off, float((logprobs.cpu() - expected[1]).abs().max()))
        fed = expected[0].long()
        packet[:, sampling.POSITION] += 1
    counted = torch.equal(sides[0].history.cpu(), sides[1].history)
    print(f"sampler: {same} of {3 * rows} choices as in float64, log-probabilities within {off:.1e}, {counted=}")
    return same == 3 * rows and off < 1e-4 and counted

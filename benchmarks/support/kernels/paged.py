"""Batches for the kernel benchmarks: pages of random numbers, a float64 reference, graphs timed in turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from support.gpu.clock import time_in_turns
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
COLD_BYTES = 768 << 20
"""A graph reads this many bytes of pages before it returns to the first: the L2 holds 60 MB."""
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""The error's norm over the result's, by the queries' type."""
MOST_SETS = 32
LEAST_CALLS = 8
"""Calls in a graph, at least: enough that the gap between two replays does not matter."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call of attention: every row has `queries` new tokens at the end of `context`."""

    heads: int
    kv_heads: int
    head_dim: int
    context: int
    batch: int
    queries: int = 1
    kind: torch.dtype = torch.bfloat16
    compute: torch.dtype = torch.bfloat16
    page: int = 64
    causal: bool = True

    @property
    def name(self) -> str:
        new = "" if self.queries == 1 else f"{self.queries} of "
        kind = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float32: "f32"}[self.kind]
        return f"{self.heads}/{self.kv_heads}×{self.head_dim} {kind}, {new}{self.context}, batch {self.batch}"

    @property
    def kv_bytes(self) -> int:
        """The bytes of keys and values, scales included, that one call must read."""
        scale = 2 if self.kind is torch.int8 else 0
        return self.batch * self.context * self.kv_heads * 2 * (self.head_dim * self.kind.itemsize + scale)

    @property
    def operations(self) -> float:
        """The multiplications and additions of both products, masked ones not counted."""
        seen = self.context - (self.queries - 1) / 2 if self.causal else self.context
        return 4.0 * self.batch * self.queries * seen * self.heads * self.head_dim

    @property
    def sets(self) -> int:
        """The number of layers whose pages keep the L2 cold."""
        return max(2, min(MOST_SETS, -(-COLD_BYTES // max(1, self.kv_bytes)))) if CUDA else 2


def random_pages(case: Case, blocks: int) -> Pages:
    """Return one layer's pages, every value used."""
    shape = (blocks, case.kv_heads, case.page, case.head_dim)
    if case.kind is torch.int8:
        k, v = (torch.randint(-127, 128, shape, dtype=torch.int8, device=DEVICE) for _ in range(2))
        scales = (torch.rand(shape[:3], device=DEVICE).mul_(0.03).to(torch.bfloat16) for _ in range(2))
        return Pages(k, v, *scales)
    return Pages(*(torch.empty(shape, dtype=case.kind, device=DEVICE).normal_() for _ in range(2)))


def scrambled(lengths: Sequence[int], page: int) -> tuple[Tensor, int]:
    """Return block tables in random order for rows of so many positions, and the number of blocks."""
    counts = [-(-length // page) for length in lengths]
    order = torch.randperm(sum(counts) + 1, dtype=torch.int32)
    table = torch.zeros((len(lengths), max([*counts, 1])), dtype=torch.int32)
    for row, (count, end) in enumerate(zip(counts, itertools.accumulate(counts), strict=True)):
        table[row, :count] = order[end - count : end]
    return table.to(DEVICE), sum(counts) + 1


def layout_of(rows: Sequence[tuple[int, int]], table: Tensor, max_query: int = 0) -> Layout:
    """Return the layout of rows (start, count); slots are not used by attention."""

    def int32(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    positions = int32([start + n for start, count in rows for n in range(count)])
    starts = [0, *itertools.accumulate(count for _, count in rows)]
    return Layout(positions, positions, int32(starts), int32([sum(row) for row in rows]), table, max_query)


def prepare(case: Case) -> tuple[Tensor, list[Pages], Layout]:
    """Return queries, the pages of `case.sets` layers, and the layout that they share."""
    table, blocks = scrambled([case.context] * case.batch, case.page)
    layout = layout_of([(case.context - case.queries, case.queries)] * case.batch, table, case.queries)
    layout = replace(layout, arrivals=new_arrivals(DEVICE))
    q = torch.randn((case.batch * case.queries, case.heads, case.head_dim), device=DEVICE).to(case.compute)
    return q, [random_pages(case, blocks) for _ in range(case.sets)], layout


def exact(
    q: Tensor, pages: Pages, layout: Layout, scale: float, window: int = 0, *, causal: bool = True, softcap: float = 0.0
) -> Tensor:
    """Return attention's output [T, H * D] in float64, by the plain formula."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    starts = layout.query_starts.tolist()
    for row, length in enumerate(layout.context_lengths.tolist()):
        first, last = starts[row], starts[row + 1]
        if first == last or length == 0:
            continue
        blocks = layout.block_tables[row, : -(-length // pages.k.shape[2])].long()
        sides = []
        for page, scales in ((pages.k, pages.k_scale), (pages.v, pages.v_scale)):
            side = page[blocks].double()
            side = side if scales is None else side * scales[blocks].double()[..., None]
            side = side.transpose(0, 1).flatten(1, 2)[:, :length]
            sides.append(side.repeat_interleave(q.shape[1] // side.shape[0], dim=0))
        scores = torch.einsum("thd,hcd->htc", q[first:last].double(), sides[0]) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        behind = torch.arange(length - (last - first), length, device=q.device)[:, None]
        behind = behind - torch.arange(length, device=q.device)
        hidden = behind < 0 if causal else torch.zeros_like(behind, dtype=torch.bool)
        hidden = hidden | (behind >= window) if window else hidden
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[first:last] = torch.einsum("htc,hcd->thd", weights, sides[1])
    return out.flatten(1)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Return the norm of the error over the result's; NaN if a value is NaN."""
    return float(torch.linalg.vector_norm(got.double() - expected) / torch.linalg.vector_norm(expected))


class Captured:
    """Calls as one CUDA graph, which keeps their inputs alive. On a CPU, in dry runs, they stay calls."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = list(calls) * -(-LEAST_CALLS // len(calls)) if CUDA else list(calls)
        self.replay: Callable[[], object] = self._run
        if CUDA:
            for call in calls[:2]:  # compile and allocate before the capture
                call()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._run()
            self.replay = self._graph.replay

    def _run(self) -> None:
        for call in self._calls:
            call()

    def __len__(self) -> int:
        return len(self._calls)


@dataclass(frozen=True, slots=True)
class Took:
    """The µs of one call: the median of all rounds, and the range of their middle half."""

    median: float
    low: float
    high: float


def race(entries: Sequence[Captured], rounds: int) -> list[Took]:
    """Return the times of one call of each entry, all timed round by round in one loop."""
    found = []
    for entry, spans in zip(entries, time_in_turns([entry.replay for entry in entries], rounds, DEVICE), strict=True):
        count = len(spans)
        middle, low, high = (spans[index] / len(entry) * 1e6 for index in (count // 2, count // 4, count * 3 // 4))
        found.append(Took(middle, low, high))
    return found

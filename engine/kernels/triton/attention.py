"""Launches of paged attention on a CUDA device: shapes to constants, room for parts, and how many programs.

Nothing here waits for the device or reads from it, so that launches can be captured in a CUDA graph. A step's lengths
are read by the kernels themselves; the host knows capacities, and optionally how many queries the longest row has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from voxlane.engine.kernels.pages import Layout, Pages

from .attention_decode import decode_kernel
from .attention_prefill import prefill_kernel
from .overlap import launch_options, overlaps

_LOG2_E = 1.4426950408889634
_MIN_ROWS = 16  # of a matrix product's left side
_WELL_FILLED = 0.8  # of the programs that run at a time
_MOST_PROGRAMS = 16  # of a prefill, for each multiprocessor: each takes more than one tile then


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a kernel is cut and compiled; figures come from benchmarks/gpu_kernels.py --tune."""

    tile: int  # keys at a time
    warps: int
    stages: int  # tiles in flight
    programs: int  # per multiprocessor
    split: int = 0  # decode: positions of a piece, 0: what makes as many pieces as programs; prefill: at least so many
    rows: int = _MIN_ROWS  # prefill: queries × heads of a tile
    split_queries: int = 0  # prefill: rows of at most so many queries are cut into pieces
    registers: int | None = None  # the most a thread may use; fewer let more programs share a multiprocessor
    least: int = 64  # decode without split: positions of the shortest piece, a power of 2
    overlap: bool = True  # decode: a launch begins while the one before it ends
    join: int = 4096  # decode: numbers of parts held in registers at once while they are joined

    def options(self) -> dict[str, Any]:
        """Return what the compiler is told."""
        # Said aloud, because versions differ in what they take for granted, and bits would differ with them.
        options = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


def decode_tuning(head_dim: int, page: torch.dtype, group: int = 2) -> Tuning:
    """Return how rows of few queries are served: measured on an H200, but for float32 and heads wider than 128.

    `programs` is what a multiprocessor has registers for; `join` takes what the walk leaves. If it had registers for
    more, launches that overlap would be dealt unevenly: whoever ends is replaced by a program of the next launch, and
    one multiprocessor may get all it can hold while another gets few (1.28 times the time where 5 fitted and 4 would
    have done). A group of one head takes fewer of them.
    """
    if page is torch.float32:
        return Tuning(tile=32, warps=4, stages=2, programs=3 if head_dim <= 64 else 2, overlap=False)
    if head_dim > 128:
        return Tuning(tile=64, warps=4, stages=2, programs=2, overlap=False)
    if page is torch.int8:
        if head_dim > 64:
            return Tuning(tile=64, warps=2, stages=3, programs=4)
        return Tuning(tile=64, warps=1, stages=3, programs=8)
    if head_dim > 64:
        return Tuning(tile=64, warps=2, stages=2, programs=4)
    if group == 1:
        return Tuning(tile=32, warps=1, stages=2, programs=10, join=2048)
    return Tuning(tile=32, warps=1, stages=2, programs=8)


def prefill_tuning(head_dim: int, page: torch.dtype, compute: torch.dtype) -> Tuning:
    """Return how rows of many queries are served: measured on an H200, but for wide heads in float32 or beyond 128.

    At 128 wide, tiles of 64 rows cost whole prompts 3 % and save short chunks over long contexts 20 %.
    """
    if compute is torch.float32 and head_dim <= 64:
        return Tuning(tile=64, warps=4, stages=2, programs=2, split=512, rows=64, split_queries=256)
    if compute is torch.float32 or head_dim > 128:
        tile, rows = (32, 32) if head_dim <= 128 else (16, 16)
        return Tuning(tile=tile, warps=4, stages=2, programs=2, split=512, rows=rows, split_queries=256)
    if head_dim > 64:
        return Tuning(tile=64, warps=4, stages=3, programs=2, split=512, rows=64, split_queries=256)
    return Tuning(tile=64, warps=4, stages=3, programs=2, split=512, rows=128, split_queries=256)


def paged_attention_triton(
    q: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int = 0,
    *,
    causal: bool = True,
    softcap: float = 0.0,
    decode: Tuning | None = None,
    prefill: Tuning | None = None,
) -> Tensor:
    """Do paged_attention_ref's work in Triton; rows of a few queries and rows of many are one launch each.

    Positions are taken from the layout's promise that a row's queries are its newest tokens. Lengths and tables must
    have been written before the launch that comes before: they are read while that one may still run. Launches that
    may run at the same time must not share a layout's `arrivals`.
    """
    tokens, heads, head_dim = q.shape
    if window and not causal:
        raise ValueError("a window needs causal attention")
    table = layout.block_tables
    if not (pages.k.is_contiguous() and pages.v.is_contiguous() and (table.shape[1] == 1 or table.stride(1) == 1)):
        raise ValueError("pages must be contiguous, and block tables along a row")
    out = torch.empty((tokens, heads * head_dim), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    decode = decode or decode_tuning(head_dim, pages.k.dtype, heads // pages.k.shape[1])
    prefill = prefill or prefill_tuning(head_dim, pages.k.dtype, q.dtype)
    kv_heads = pages.k.shape[1]
    queries = max(1, _MIN_ROWS // (2 if _by_words(q, pages) else 1) // (heads // kv_heads))
    shared = _shared(q, out, pages, layout, scale, window, causal, softcap, queries)
    _decode(q, pages, layout, shared, queries, decode)
    if not 0 < layout.max_query <= queries:
        _prefill(q, pages, layout, shared, prefill)
    return out


def _decode(q: Tensor, pages: Pages, layout: Layout, shared: dict[str, Any], queries: int, tuning: Tuning) -> None:
    tokens, heads, _ = q.shape
    rows, kv_heads = layout.context_lengths.shape[0], pages.k.shape[1]
    group, room, slots = heads // kv_heads, rows * queries, tuning.programs * _multiprocessors(q.device)
    if tuning.split:
        splits = _splits(layout, pages, tuning.split)
        programs = min(rows * splits * kv_heads, slots)
    else:
        programs = _programs(rows * kv_heads, slots)
        # A row may be cut once more than its share of all programs says, since shares begin anywhere.
        splits = min(_splits(layout, pages, max(tuning.least, tuning.tile)) + 1, programs // kv_heads + 2)
    join_rows = triton.next_power_of_2(group)
    if words := _by_words(q, pages):
        shared = {**shared, **_words(pages, tuning.tile)}
    partials, logs = _parts(q, min(tokens, room) * heads * splits, shared["DIM"], splits)
    overlap = tuning.overlap and 2 * rows * kv_heads <= slots and overlaps(q.device)
    decode_kernel[(max(1, programs),)](
        **shared,
        partials=partials,
        logs=logs,
        arrivals=_arrivals(layout, rows * kv_heads),
        max_splits=splits,
        least=max(tuning.least // tuning.tile, 1),
        M=max(_MIN_ROWS, 2 * join_rows if words else join_rows),
        SPLIT=tuning.split,
        TILE=tuning.tile,
        SLOT_BY_TOKEN=tokens <= room,
        JOIN_ROWS=join_rows,
        JOIN_SPLITS=max(1, min(64, tuning.join // (join_rows * shared["DIM"]))),
        WORDS=words,
        PDL=overlap,
        **tuning.options(),
        **launch_options(overlap=overlap),
    )


def _programs(groups: int, slots: int) -> int:
    """Return how many programs share the work of head groups: a whole number for each if that is most of the slots.

    Rows that are all as long are then cut alike. Else all slots: every program gets as much as any other anyhow.
    """
    each = slots // groups
    return each * groups if each * groups > _WELL_FILLED * slots else slots


def _prefill(q: Tensor, pages: Pages, layout: Layout, shared: dict[str, Any], tuning: Tuning) -> None:
    tokens, heads, _ = q.shape
    rows, kv_heads = layout.context_lengths.shape[0], pages.k.shape[1]
    group = heads // kv_heads
    tile_rows = max(tuning.rows, triton.next_power_of_2(group))
    units = max(1, tuning.programs * _multiprocessors(q.device) // kv_heads)
    splits = min(_splits(layout, pages, tuning.split), units)
    room = rows * tuning.split_queries
    cut_rows = rows if tokens <= room else rows - 1  # one has more queries than are cut
    tiles = tokens // (tile_rows // group) + rows + cut_rows * units * (splits > 1)
    partials, logs = _parts(q, min(tokens, room) * heads * splits, shared["DIM"], splits)
    prefill_kernel[(max(1, min(tiles * kv_heads, _MOST_PROGRAMS * _multiprocessors(q.device))),)](
        **shared,
        partials=partials,
        logs=logs,
        arrivals=_arrivals(layout, rows * kv_heads * -(-tuning.split_queries // (tile_rows // group))),
        max_splits=splits,
        units=float(units),
        M=tile_rows,
        SPLIT=tuning.split,
        TILE=tuning.tile,
        SPLIT_QUERIES=tuning.split_queries,
        SLOT_BY_TOKEN=tokens <= room,
        **tuning.options(),
    )


def _shared(
    q: Tensor,
    out: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int,
    causal: bool,
    softcap: float,
    queries: int,
) -> dict[str, Any]:
    """Return the arguments that both kernels take."""
    _, heads, head_dim = q.shape
    kv_heads, block_tokens = pages.k.shape[1:3]
    rows = layout.context_lengths.shape[0]
    return {
        "q": q,
        "out": out,
        "k_pages": pages.k,
        "v_pages": pages.v,
        "k_scales": pages.k_scale,
        "v_scales": pages.v_scale,
        "query_starts": layout.query_starts,
        "context_lengths": layout.context_lengths,
        "block_tables": layout.block_tables,
        "rows": rows,
        "table_width": layout.block_tables.stride(0),
        "scale": scale / softcap if softcap else scale * _LOG2_E,
        "softcap": softcap * _LOG2_E,
        "ROWS": _row_room(rows),
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "HEAD_DIM": head_dim,
        "DIM": max(64 if _by_words(q, pages) else 16, triton.next_power_of_2(head_dim)),
        "BLOCK_TOKENS": block_tokens,
        "QUERIES": queries,
        "WINDOW": window,
        "CAUSAL": causal,
        "SOFTCAP": softcap > 0.0,
    }


def _by_words(q: Tensor, pages: Pages) -> bool:
    """Return whether decodes go by attention_int8.py: in float32 its 15 bits of a query would be too few."""
    return pages.k.dtype is torch.int8 and q.dtype is not torch.float32


def _words(pages: Pages, tile: int) -> dict[str, Tensor]:
    """Return what attention_int8.py reads as words."""
    assert pages.k_scale is not None
    assert pages.v_scale is not None
    words = {"v_pages": pages.v.view(torch.int32)}
    if pages.k.shape[2] % tile == 0:
        words |= {"k_scales": pages.k_scale.view(torch.int32), "v_scales": pages.v_scale.view(torch.int32)}
    return words


def _row_room(rows: int) -> int:
    """Return the compiled number of rows: 16, 64, 256, …, so that few variants serve every batch."""
    room = 16
    while room < rows:
        room *= 4
    return room


def _splits(layout: Layout, pages: Pages, length: int) -> int:
    """Return into how many pieces of a length the longest row that the tables can hold may be cut."""
    return max(1, -(-layout.block_tables.shape[1] * pages.k.shape[2] // length))


def _parts(q: Tensor, count: int, dim: int, splits: int) -> tuple[Tensor, Tensor]:
    """Return room for parts and their logarithms; the allocator gives every layer of a step the same memory again."""
    count = count if splits > 1 else 1
    partials = torch.empty((count, dim), dtype=torch.float32, device=q.device)
    return partials, torch.empty(count, dtype=torch.float32, device=q.device)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # Triton's interpreter: one program after the other
    return torch.cuda.get_device_properties(device).multi_processor_count


def _arrivals(layout: Layout, count: int) -> Tensor:
    """Return counters of finished pieces: zero between launches, since the last to arrive resets them."""
    if layout.arrivals is None or layout.arrivals.numel() < count:
        return torch.zeros(count, dtype=torch.int32, device=layout.context_lengths.device)
    return layout.arrivals

"""Launches of paged attention on a CUDA device: shapes to constants, room for parts, and how many programs.

Nothing here waits for the device or reads from it, so that launches can be captured in a CUDA graph. A step's lengths
are read by the kernels themselves; the host knows capacities, and optionally how many queries the longest row has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from voxlane.engine.kernels.attention.pages import ATTENTION_PARTS, Layout, Pages
from voxlane.engine.kernels.attention.triton_decode import decode_kernel
from voxlane.engine.kernels.attention.triton_prefill import prefill_kernel
from voxlane.engine.kernels.attention.triton_tuning import (
    MIN_ROWS,
    AttentionTuning,
    decode_tuning,
    hopper_tuning,
    prefill_tuning,
)
from voxlane.engine.kernels.triton_overlap import launch_options, overlaps

_LOG2_E = 1.4426950408889634
_WELL_FILLED = 0.8  # of the programs that run at a time
_MOST_PROGRAMS = 16  # of a prefill, for each multiprocessor: each takes more than one tile then


def by_hopper(q: Tensor, pages: Pages, window: int, softcap: float) -> bool:
    """Return whether triton_hopper.py serves rows of many queries: Hopper alone has its instructions."""
    shaped = q.shape[2] in (64, 128) and pages.k.shape[2] == 64 and q.shape[1] // pages.k.shape[1] <= 64
    typed = q.dtype is pages.k.dtype and q.dtype in (torch.bfloat16, torch.float16)
    return shaped and typed and not window and not softcap and _is_hopper(q.device)


def paged_attention_triton(
    q: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int = 0,
    *,
    causal: bool = True,
    softcap: float = 0.0,
    decode: AttentionTuning | None = None,
    prefill: AttentionTuning | None = None,
) -> Tensor:
    """Do paged_attention_ref's work in Triton; rows of a few queries and rows of many are one launch each.

    Positions are taken from the layout's promise that a row's queries are its newest tokens. Lengths and tables are
    read while launches before may still run: between what writes them and this must lie one that does not overlap.
    Launches that may run at the same time must not share a layout's `arrivals`.
    """
    tokens, heads, head_dim = q.shape
    if window and not causal:
        raise ValueError("a window needs causal attention")
    if layout.thinned_from is not None:
        raise ValueError("keys that stand for several are for CPUs")
    table = layout.block_tables
    if not (pages.k.is_contiguous() and pages.v.is_contiguous() and (table.shape[1] == 1 or table.stride(1) == 1)):
        raise ValueError("pages must be contiguous, and block tables along a row")
    # Rows beyond the batch are not written. Triton's interpreter, which runs on CPU tensors, would compute on what the
    # memory held before and warn of overflows.
    make = torch.zeros if q.is_cpu else torch.empty
    out = make((tokens, heads * head_dim), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    groups = layout.context_lengths.shape[0] * pages.k.shape[1]
    decode = decode or decode_tuning(head_dim, pages.k.dtype, groups)
    if prefill is None and by_hopper(q, pages, window, softcap):
        prefill = hopper_tuning(head_dim, tokens * heads)
    prefill = prefill or prefill_tuning(head_dim, pages.k.dtype, q.dtype)
    queries = max(1, MIN_ROWS // (2 if _by_words(q, pages) else 1) // (heads // pages.k.shape[1]))
    shared = _shared(q, out, pages, layout, scale, window, causal, softcap)
    many = layout.max_query > queries and tokens == layout.context_lengths.shape[0] * layout.max_query  # in every row
    if not many:
        _decode(q, pages, layout, shared, queries, decode)
    if not 0 < layout.max_query <= queries:
        serve = _hopper if prefill.consumers else _prefill
        serve(q, pages, layout, shared, 0 if many else queries, prefill)
    return out


def _decode(
    q: Tensor, pages: Pages, layout: Layout, shared: dict[str, Any], queries: int, tuning: AttentionTuning
) -> None:
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
        QUERIES=queries,
        M=max(MIN_ROWS, 2 * join_rows if words else join_rows),
        SPLIT=tuning.split,
        TILE=tuning.tile,
        SLOT_BY_TOKEN=tokens <= room,
        JOIN_ROWS=join_rows,
        JOIN_SPLITS=max(1, min(64, tuning.join // (join_rows * shared["DIM"]))),
        WORDS=words,
        PDL=overlap,
        AHEAD=tuning.ahead,
        **tuning.options(),
        **launch_options(overlap=overlap),
    )


def _programs(groups: int, slots: int) -> int:
    """Return how many programs share the work of head groups: a whole number for each if that is most of the slots.

    Rows that are all as long are then cut alike. Else all slots: every program gets as much as any other anyhow.
    """
    each = slots // groups
    return each * groups if each * groups > _WELL_FILLED * slots else slots


def _prefill(
    q: Tensor, pages: Pages, layout: Layout, shared: dict[str, Any], least: int, tuning: AttentionTuning
) -> None:
    kv_heads, group = pages.k.shape[1], q.shape[1] // pages.k.shape[1]
    tile_rows = max(tuning.rows, triton.next_power_of_2(group))
    cut, tiles = _cut(q, pages, layout, shared["DIM"], tile_rows // group, tuning)
    prefill_kernel[(max(1, min(tiles * kv_heads, _MOST_PROGRAMS * _multiprocessors(q.device))),)](
        **shared,
        **cut,
        arrivals=_arrivals(layout, _cut_tiles(layout, tile_rows // group, tuning) * kv_heads),
        least=least,
        M=tile_rows,
        TILE=tuning.tile,
        **tuning.options(),
    )


def _hopper(
    q: Tensor, pages: Pages, layout: Layout, shared: dict[str, Any], least: int, tuning: AttentionTuning
) -> None:
    from voxlane.engine.kernels.attention import (
        triton_hopper as hopper,  # here: it is made of instructions that other devices have not
    )

    heads, kv_heads = q.shape[1], pages.k.shape[1]
    tile_queries = tuning.consumers * (hopper.PROGRAM_ROWS // tuning.consumers // (heads // kv_heads))
    begins_with, each_has = hopper.registers(tuning.programs, tuning.consumers)
    cut, tiles = _cut(q, pages, layout, shared["DIM"], tile_queries, tuning)
    is_cut, overlap = cut["max_splits"] > 1, tuning.overlap and overlaps(q.device)
    names = ("q", "out", "query_starts", "context_lengths", "block_tables", "rows", "table_width", "scale")
    hopper.hopper_kernel[(tiles * kv_heads,)](
        **{name: shared[name] for name in (*names, "KV_HEADS", "GROUP", "DIM", "CAUSAL")},
        **{name: cut[name] for name in ("partials", "logs", "max_splits", "units", "SPLIT", "SPLIT_QUERIES")},
        k_pages=hopper.page_copies(pages.k),
        v_pages=hopper.page_copies(pages.v),
        arrivals=_arrivals(layout, _cut_tiles(layout, tile_queries, tuning) * kv_heads * tuning.consumers),
        least=least,
        by_token=int(cut["SLOT_BY_TOKEN"]),
        alike=int(not is_cut and least == 0),
        ROWS=max(64, shared["ROWS"]),
        CUT=is_cut,
        WORKERS=tuning.consumers,
        STAGES=tuning.stages,
        TOGETHER=tuning.programs == 1,
        REGISTERS=each_has,
        PDL=overlap,
        num_warps=tuning.warps,
        maxnreg=begins_with,
        enable_fp_fusion=True,
        **launch_options(overlap=overlap),
    )


def _cut(
    q: Tensor, pages: Pages, layout: Layout, dim: int, tile_queries: int, tuning: AttentionTuning
) -> tuple[dict[str, Any], int]:
    """Return what a prefill is told about pieces, with room for them, and how many tiles and pieces there may be."""
    tokens, heads, _ = q.shape
    rows = layout.context_lengths.shape[0]
    room = rows * tuning.split_queries
    units = tuning.programs * _multiprocessors(q.device) // pages.k.shape[1]
    units = max(1, min(units, ATTENTION_PARTS // max(1, min(tokens, room))))
    splits = min(_splits(layout, pages, tuning.split), units)
    tiles = tokens // tile_queries + rows
    if layout.max_query and tokens >= rows * layout.max_query:  # there is room for as many in every row
        tiles = rows * -(-layout.max_query // tile_queries)
        if layout.max_query > tuning.split_queries or (tuning.consumers and tiles >= units):
            splits = 1
    if splits > 1 and tuning.consumers:  # all pieces are `units`, rounded up; of a tile that is less than one, one
        tiles += units + units // 1000 + 1
    elif splits > 1:
        tiles += (rows if tokens <= room else rows - 1) * units  # one has more queries than are cut
    partials, logs = _parts(q, min(tokens, room) * heads * splits, dim, splits)
    cut = {
        "partials": partials,
        "logs": logs,
        "max_splits": splits,
        "units": float(units if splits > 1 else 0),
        "SPLIT": tuning.split,
        "SPLIT_QUERIES": tuning.split_queries,
        "SLOT_BY_TOKEN": tokens <= room,
    }
    return cut, tiles


def _cut_tiles(layout: Layout, tile_queries: int, tuning: AttentionTuning) -> int:
    """Return how many tiles the rows that are cut may have together."""
    return layout.context_lengths.shape[0] * -(-tuning.split_queries // tile_queries)


def _shared(
    q: Tensor,
    out: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int,
    causal: bool,
    softcap: float,
) -> dict[str, Any]:
    """Return the arguments that decode and prefill take."""
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
        "WINDOW": window,
        "CAUSAL": causal,
        "SOFTCAP": softcap > 0.0,
    }


def _by_words(q: Tensor, pages: Pages) -> bool:
    """Return whether decodes go by triton_int8.py: in float32 its 15 bits of a query would be too few."""
    return pages.k.dtype is torch.int8 and q.dtype is not torch.float32


def _words(pages: Pages, tile: int) -> dict[str, Tensor]:
    """Return what triton_int8.py reads as words."""
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
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


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

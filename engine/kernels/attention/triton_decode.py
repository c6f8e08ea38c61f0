"""Paged attention for rows of a few queries: decodes, and drafts to be verified.

The number of programs of a launch does not depend on the lengths in the batch: each program reads the lengths and finds
its share of the work. So a launch can be captured once for a batch size and replayed with any lengths. The work is the
tiles of all rows and head groups, one after the other. Without SPLIT every program gets equally many, wherever that
cuts a row. With SPLIT a row is cut at multiples of it, and its bits depend on the row alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.attention.triton_int8 import split_queries, walk_words
from voxlane.engine.kernels.attention.triton_tile import fetch_pages, finish, load_queries, tile_blocks, touch, walk


@triton.jit
def numbered(ends, sizes, unit, HEADS: tl.constexpr):
    """Return which row a unit of work belongs to, and its number there, where rows have `sizes` for each head."""
    before = ends * HEADS <= unit
    return tl.sum(before.to(tl.int32), 0), unit - tl.sum(tl.where(before, sizes, 0), 0) * HEADS


@triton.jit
def first_seen(length, count, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return where the first tile begins that a row's oldest query attends to."""
    if WINDOW > 0:
        return tl.maximum(length - count + 1 - WINDOW, 0) // TILE * TILE
    else:
        return length * 0


@triton.jit
def attend_range(
    q, out, k_pages, v_pages, k_scales, v_scales, table, partials, logs, arrived,
    token, slot, count, length, head, begin, end, split, splits, max_splits, scale, softcap,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr, JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Attend with a row's `count` queries, one head group of them, to its positions begin : end."""
    seen_rows: tl.constexpr = M // 2 if WORDS else M
    touch(table, begin, end, BLOCK_TOKENS)
    blocks = tile_blocks(table, begin, end, BLOCK_TOKENS, TILE)
    limits = tl.full([seen_rows], 0, dtype=tl.int32) + length
    if CAUSAL:
        limits += tl.minimum(tl.arange(0, seen_rows) // GROUP + 1 - count, 0)
    if AHEAD > 0 and end > begin:
        fetch_pages(k_pages, table, begin, end, head, KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, AHEAD)
        if WORDS:
            fetch_pages(v_pages, table, begin, end, head, KV_HEADS, HEAD_DIM // 4, DIM // 4, BLOCK_TOKENS, AHEAD)
        else:
            fetch_pages(v_pages, table, begin, end, head, KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, AHEAD)
    if PDL:  # lengths and tables are older than the layers; wait for queries, keys and values
        gdc_wait()
    if WORDS:
        queries, unit = split_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M)
        acc, top, total = walk_words(
            queries, unit, limits, table, blocks, head, begin, end,
            k_pages, v_pages, k_scales, v_scales, scale, softcap,
            KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, q.dtype.element_ty,
        )  # fmt: skip
    else:
        acc, top, total = walk(
            tl.zeros([M, DIM], dtype=tl.float32), tl.full([M], float("-inf"), dtype=tl.float32),
            tl.zeros([M], dtype=tl.float32), load_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M),
            limits, table, blocks, head, begin, end,
            k_pages, v_pages, k_scales, v_scales, scale, softcap,
            KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, True,
        )  # fmt: skip
    finish(
        acc, top, total, out, partials, logs, arrived, token, slot, count, split, splits, max_splits, head,
        KV_HEADS, GROUP, HEAD_DIM, DIM, seen_rows, JOIN_ROWS, JOIN_SPLITS,
    )  # fmt: skip


@triton.jit
def work_of(
    query_starts, context_lengths, rows,
    ROWS: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Return how many units of UNIT positions each row has, and where they end if rows are laid end to end.

    A row without context has one too: its zeros must be written.
    """
    index = tl.arange(0, ROWS)
    starts = tl.load(query_starts + index, mask=index < rows, other=0)
    counts = tl.load(query_starts + index + 1, mask=index < rows, other=0) - starts
    lengths = tl.load(context_lengths + index, mask=index < rows, other=0)
    served = (counts > 0) & (counts <= QUERIES)
    extents = lengths - first_seen(lengths, counts, TILE, WINDOW)
    sizes = tl.where(served, tl.maximum(tl.cdiv(extents, UNIT), 1), 0)
    return sizes, tl.cumsum(sizes, 0)


@triton.jit
def share_of(number, work, programs):
    """Return where the share of a program begins; that of the next one is its end. Exact: float64 holds the product."""
    return (number * work.to(tl.float64) / programs).to(tl.int32)


@triton.jit
def owner_of(unit, work, programs):
    """Return the program in whose share a unit is."""
    return (((unit + 1) * programs.to(tl.float64) - 1.0) / work).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "table_width", "max_splits", "least"])
def decode_kernel(
    q, out, k_pages, v_pages, k_scales, v_scales, query_starts, context_lengths, block_tables,
    partials, logs, arrivals, rows, table_width, max_splits, least, scale, softcap,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, M: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, SLOT_BY_TOKEN: tl.constexpr,
    JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Serve the rows that have 1 to QUERIES queries; with WORDS the pages are int8, the values' read as int32."""
    UNIT: tl.constexpr = SPLIT if SPLIT > 0 else TILE
    if PDL:
        gdc_launch_dependents()
    sizes, ends = work_of(query_starts, context_lengths, rows, ROWS, QUERIES, TILE, WINDOW, UNIT)
    work = tl.sum(sizes, 0) * KV_HEADS
    me = tl.program_id(0)
    if SPLIT > 0:
        programs, at, stop = tl.num_programs(0), me, work
    else:
        programs = tl.minimum(tl.num_programs(0), tl.maximum(work // least, 1))
        at, stop = share_of(me, work, programs), tl.where(me < programs, share_of(me + 1, work, programs), 0)
    while at < stop:
        row, within = numbered(ends, sizes, at, KV_HEADS)
        token = tl.load(query_starts + row)
        count = tl.load(query_starts + row + 1) - token
        length = tl.load(context_lengths + row)
        first = first_seen(length, count, TILE, WINDOW)
        own = tl.maximum(tl.cdiv(length - first, UNIT), 1)
        head, unit = within // own, within % own
        if SPLIT > 0:
            split, splits, units, step = unit, own, 1, programs
        else:
            before = owner_of(at - unit, work, programs)
            split, splits = me - before, owner_of(at - unit + own - 1, work, programs) - before + 1
            units = tl.minimum(own - unit, stop - at)
            step = units
        begin = first + unit * UNIT
        attend_range(
            q, out, k_pages, v_pages, k_scales, v_scales, block_tables + row.to(tl.int64) * table_width,
            partials, logs, arrivals + row * KV_HEADS + head, token, token if SLOT_BY_TOKEN else row * QUERIES,
            count, length, head, begin, tl.minimum(begin + units * UNIT, length), split, splits, max_splits,
            scale, softcap, KV_HEADS, GROUP, HEAD_DIM, DIM, BLOCK_TOKENS, M, TILE, WINDOW, CAUSAL, SOFTCAP,
            JOIN_ROWS, JOIN_SPLITS, WORDS, PDL, AHEAD,
        )  # fmt: skip
        at += step
    if PDL:  # a program without work also waits for the launch before
        gdc_wait()

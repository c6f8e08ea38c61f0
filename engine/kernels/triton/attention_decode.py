"""Paged attention for rows of a few queries: decodes, and drafts to be verified. The keys are cut at fixed positions.

A launch is a number of programs that does not depend on the batch's content; each reads the lengths, numbers the work
of the whole batch, and takes every so-many-th piece. So a launch can be captured once for a batch size and replayed
whatever the lengths are. A piece is SPLIT positions of one row and head group, computed alike whatever else is in the
batch: the bits of a row's result depend on the row alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_tile import finish, load_queries, walk


@triton.jit
def numbered(ends, sizes, unit):
    """Return which row the unit of work belongs to, and its number within that row."""
    before = ends <= unit
    return tl.sum(before.to(tl.int32), 0), unit - tl.sum(tl.where(before, sizes, 0), 0)


@triton.jit
def first_split(length, count, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """Return the number of the first split in which a row's oldest query sees anything."""
    if WINDOW > 0:
        return tl.maximum(length - count + 1 - WINDOW, 0) // SPLIT
    else:
        return length * 0


@triton.jit(do_not_specialize=["rows", "table_width", "max_splits"])
def decode_kernel(
    q, out, k_pages, v_pages, k_scales, v_scales, query_starts, context_lengths, block_tables,
    partials, logs, arrivals, rows, table_width, max_splits, scale, softcap,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, M: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, SLOT_BY_TOKEN: tl.constexpr,
    JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr,
):  # fmt: skip
    """Serve the rows that have 1 to QUERIES queries."""
    index = tl.arange(0, ROWS)
    starts = tl.load(query_starts + index, mask=index < rows, other=0)
    counts = tl.load(query_starts + index + 1, mask=index < rows, other=0) - starts
    lengths = tl.load(context_lengths + index, mask=index < rows, other=0)
    sizes = tl.cdiv(lengths, SPLIT) - first_split(lengths, counts, SPLIT, WINDOW)
    # A row that sees nothing still gets its zeros written.
    sizes = tl.where((counts > 0) & (counts <= QUERIES), tl.maximum(sizes, 1), 0)
    ends = tl.cumsum(sizes, 0)
    for item in range(tl.program_id(0), tl.sum(sizes, 0) * KV_HEADS, tl.num_programs(0)):
        head = item % KV_HEADS
        row, split = numbered(ends, sizes, item // KV_HEADS)
        token = tl.load(query_starts + row)
        count = tl.load(query_starts + row + 1) - token
        length = tl.load(context_lengths + row)
        first = first_split(length, count, SPLIT, WINDOW)
        begin = (first + split) * SPLIT
        end = tl.minimum(begin + SPLIT, length)
        limits = tl.full([M], 0, dtype=tl.int32) + length
        if CAUSAL:
            limits += tl.minimum(tl.arange(0, M) // GROUP + 1 - count, 0)
        if WINDOW > 0:
            begin = tl.maximum(begin, tl.maximum(length - count + 1 - WINDOW, 0) // TILE * TILE)
        acc, top, total = walk(
            tl.zeros([M, DIM], dtype=tl.float32), tl.full([M], float("-inf"), dtype=tl.float32),
            tl.zeros([M], dtype=tl.float32),
            load_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M),
            limits, block_tables + row.to(tl.int64) * table_width, head, begin, end,
            k_pages, v_pages, k_scales, v_scales, scale, softcap,
            KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, True,
        )  # fmt: skip
        slot = token if SLOT_BY_TOKEN else row * QUERIES
        splits = tl.maximum(tl.cdiv(length, SPLIT) - first, 1)
        finish(
            acc, top, total, out, partials, logs, arrivals + row * KV_HEADS + head,
            token, slot, count, split, splits, max_splits, head,
            KV_HEADS, GROUP, HEAD_DIM, DIM, M, JOIN_ROWS, JOIN_SPLITS,
        )  # fmt: skip

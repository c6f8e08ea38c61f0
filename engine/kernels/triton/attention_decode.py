"""Paged attention for rows of a few queries: decodes, and drafts to be verified.

A launch is a number of programs that does not depend on the batch's content; each reads the lengths, cuts the whole
batch into pieces, numbers them, and takes every so-many-th. So a launch can be captured once for a batch size and
replayed whatever the lengths are. A piece is so many positions of one row and head group: with SPLIT always as many,
and then the bits of a row's result depend on the row alone; without, as few as there are programs that run at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_int8 import split_queries, walk_words
from .attention_tile import finish, load_queries, walk


@triton.jit
def numbered(ends, sizes, unit):
    """Return which row the unit of work belongs to, and its number within that row."""
    before = ends <= unit
    return tl.sum(before.to(tl.int32), 0), unit - tl.sum(tl.where(before, sizes, 0), 0)


@triton.jit
def first_seen(length, count, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return where the tile begins in which a row's oldest query first sees anything."""
    if WINDOW > 0:
        return tl.maximum(length - count + 1 - WINDOW, 0) // TILE * TILE
    else:
        return length * 0


@triton.jit
def span_of(total, share, least):
    """Return the length of pieces, a multiple of `least`, that makes about 1 / share of `total` positions.

    It has three leading bits: lengths that change a little are cut alike. `least` is a power of 2.
    """
    even = total.to(tl.float32) * share + 1.0
    step = tl.maximum(1 << tl.maximum((even.to(tl.int32, bitcast=True) >> 23) - 129, 0), least)
    return (even.to(tl.int32) + step - 1) & -step


@triton.jit
def pieces_of(extent, span, SPLIT: tl.constexpr):
    """Return how many pieces there are in so many positions."""
    if SPLIT > 0:
        return tl.cdiv(extent, SPLIT)
    else:  # exact up to two million, and a fifth of an integer division
        return ((extent + span - 0.5) * (1.0 / span)).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "table_width", "max_splits", "least"])
def decode_kernel(
    q, out, k_pages, v_pages, k_scales, v_scales, query_starts, context_lengths, block_tables,
    partials, logs, arrivals, rows, table_width, max_splits, share, least, scale, softcap,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, QUERIES: tl.constexpr, M: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, SLOT_BY_TOKEN: tl.constexpr,
    JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Serve the rows that have 1 to QUERIES queries; with WORDS the pages are int8, the values' read as int32."""
    seen_rows: tl.constexpr = M // 2 if WORDS else M
    index = tl.arange(0, ROWS)
    starts = tl.load(query_starts + index, mask=index < rows, other=0)
    counts = tl.load(query_starts + index + 1, mask=index < rows, other=0) - starts
    lengths = tl.load(context_lengths + index, mask=index < rows, other=0)
    served = (counts > 0) & (counts <= QUERIES)
    extents = tl.where(served, lengths - first_seen(lengths, counts, TILE, WINDOW), 0)
    span = SPLIT if SPLIT > 0 else span_of(tl.sum(extents, 0), share, least)
    # A row that sees nothing still gets its zeros written.
    sizes = tl.where(served, tl.maximum(pieces_of(extents, span, SPLIT), 1), 0)
    ends = tl.cumsum(sizes, 0)
    for item in range(tl.program_id(0), tl.sum(sizes, 0) * KV_HEADS, tl.num_programs(0)):
        head = item % KV_HEADS
        row, split = numbered(ends, sizes, item // KV_HEADS)
        token = tl.load(query_starts + row)
        count = tl.load(query_starts + row + 1) - token
        length = tl.load(context_lengths + row)
        first = first_seen(length, count, TILE, WINDOW)
        splits = tl.maximum(pieces_of(length - first, span, SPLIT), 1)
        if SPLIT > 0:
            begin = first + split * SPLIT
            end = tl.minimum(begin + SPLIT, length)
        else:  # a row's own pieces are alike, in whole tiles
            even = tl.cdiv(pieces_of(length - first, splits, SPLIT), TILE) * TILE
            begin = first + split * even
            end = tl.minimum(begin + even, length)
        limits = tl.full([seen_rows], 0, dtype=tl.int32) + length
        if CAUSAL:
            limits += tl.minimum(tl.arange(0, seen_rows) // GROUP + 1 - count, 0)
        table = block_tables + row.to(tl.int64) * table_width
        if WORDS:
            queries, unit = split_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M)
            acc, top, total = walk_words(
                queries, unit, limits, table, head, begin, end,
                k_pages, v_pages, k_scales, v_scales, scale, softcap,
                KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, q.dtype.element_ty,
            )  # fmt: skip
        else:
            acc, top, total = walk(
                tl.zeros([M, DIM], dtype=tl.float32), tl.full([M], float("-inf"), dtype=tl.float32),
                tl.zeros([M], dtype=tl.float32),
                load_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M),
                limits, table, head, begin, end,
                k_pages, v_pages, k_scales, v_scales, scale, softcap,
                KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, True,
            )  # fmt: skip
        slot = token if SLOT_BY_TOKEN else row * QUERIES
        finish(
            acc, top, total, out, partials, logs, arrivals + row * KV_HEADS + head,
            token, slot, count, split, splits, max_splits, head,
            KV_HEADS, GROUP, HEAD_DIM, DIM, M, JOIN_ROWS, JOIN_SPLITS,
        )  # fmt: skip

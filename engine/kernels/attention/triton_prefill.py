"""Paged attention for rows of many queries: chunks of a prompt over the cache before them, clips of an encoder.

Queries of a head group are packed into tiles of M rows, so that keys are read once for the group. Short chunks over
long contexts would leave most of the device idle: they are cut, as decodes are, but as if each was alone in its batch.
So whether and where a row is cut depends on its own numbers of queries and positions; it depends on the queries of the
batch only where parts would outgrow their room (ATTENTION_PARTS). triton_hopper.py, which float32 does not use, cuts by
the whole batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from voxlane.engine.kernels.attention.triton_decode import numbered
from voxlane.engine.kernels.attention.triton_tile import finish, load_queries, tile_blocks, touch, walk


@triton.jit
def work_of(count, length, TILE_QUERIES: tl.constexpr):
    """Return how many pairs of a tile of queries and 64 positions a row has: a whole number, also the sum of many."""
    return tl.cdiv(count, TILE_QUERIES) * tl.cdiv(length, 64)


@triton.jit
def cuts_of(count, length, work, units, SPLIT: tl.constexpr, SPLIT_QUERIES: tl.constexpr):
    """Return into how many pieces a row's positions are cut, none shorter than SPLIT: `units` for all `work` there is.

    A row of more than SPLIT_QUERIES queries is not cut.
    """
    # A little more, so that rounding does not lose a piece; a product, because compilers differ in how they sum.
    pieces = (units / tl.maximum(work, 1) * 1.0001 * tl.cdiv(length, 64)).to(tl.int32)
    return tl.where(count <= SPLIT_QUERIES, tl.maximum(tl.minimum(pieces, tl.cdiv(length, SPLIT)), 1), 1)


@triton.jit
def pieces_of(
    count, length, tile, work, units,
    SPLIT: tl.constexpr, SPLIT_QUERIES: tl.constexpr, TILE_QUERIES: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Return a tile's oldest query, its and the newest's context, a piece's length, the first piece, their number."""
    pieces = cuts_of(count, length, work, units, SPLIT, SPLIT_QUERIES)
    span = tl.maximum(tl.cdiv(tl.cdiv(length, pieces), TILE), 1) * TILE
    oldest = tile * TILE_QUERIES
    inside = tl.minimum(count - oldest, TILE_QUERIES)
    seen = length - count + oldest + 1 if CAUSAL else length
    visible = seen + inside - 1 if CAUSAL else length
    first = tl.maximum(seen - WINDOW, 0) // span if WINDOW > 0 else 0
    return oldest, inside, seen, visible, span, first, tl.maximum(tl.cdiv(visible, span) - first, 1)


@triton.jit
def attend_piece(
    q, out, k_pages, v_pages, k_scales, v_scales, table, partials, logs, arrived,
    token, slot, inside, head, begin, end, seen, split, splits, max_splits, scale, softcap,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Attend with `inside` queries from `token` on to positions begin : end; the oldest attends to those < seen."""
    limits = tl.full([M], 0, dtype=tl.int32) + seen
    if CAUSAL:
        limits += tl.minimum(tl.arange(0, M) // GROUP, inside - 1)
    # Up to here every query attends to every key, unless a window hides old ones.
    clear = begin if WINDOW > 0 else tl.maximum(tl.minimum(end, seen) // TILE * TILE, begin)
    touch(table, begin, end, BLOCK_TOKENS)
    blocks = tile_blocks(table, begin, end, BLOCK_TOKENS, TILE)
    queries = load_queries(q, token, inside, head, KV_HEADS, GROUP, HEAD_DIM, DIM, M)
    acc = tl.zeros([M, DIM], dtype=tl.float32)
    top = tl.full([M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    if WINDOW == 0:
        acc, top, total = walk(
            acc, top, total, queries, limits, table, blocks, head, begin, clear,
            k_pages, v_pages, k_scales, v_scales, scale, softcap,
            KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, False,
        )  # fmt: skip
        blocks = tile_blocks(table, clear, end, BLOCK_TOKENS, TILE)
    acc, top, total = walk(
        acc, top, total, queries, limits, table, blocks, head, clear, end,
        k_pages, v_pages, k_scales, v_scales, scale, softcap,
        KV_HEADS, HEAD_DIM, DIM, BLOCK_TOKENS, TILE, WINDOW, SOFTCAP, True,
    )  # fmt: skip
    finish(
        acc, top, total, out, partials, logs, arrived, token, slot, inside, split, splits, max_splits, head,
        KV_HEADS, GROUP, HEAD_DIM, DIM, M, M, 1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "table_width", "max_splits", "least"])
def prefill_kernel(
    q, out, k_pages, v_pages, k_scales, v_scales, query_starts, context_lengths, block_tables,
    partials, logs, arrivals, rows, table_width, max_splits, least, units, scale, softcap,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, M: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
    SPLIT_QUERIES: tl.constexpr, WINDOW: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr,
    SLOT_BY_TOKEN: tl.constexpr,
):  # fmt: skip
    """Serve the rows that have more than `least` queries."""
    tile_queries: tl.constexpr = M // GROUP
    cut_tiles: tl.constexpr = (SPLIT_QUERIES + tile_queries - 1) // tile_queries  # at most, of a row that is cut
    index = tl.arange(0, ROWS)
    starts = tl.load(query_starts + index, mask=index < rows, other=0)
    counts = tl.load(query_starts + index + 1, mask=index < rows, other=0) - starts
    lengths = tl.load(context_lengths + index, mask=index < rows, other=0)
    cuts = cuts_of(counts, lengths, work_of(counts, lengths, tile_queries), units, SPLIT, SPLIT_QUERIES)
    sizes = tl.where(counts > least, tl.cdiv(counts, tile_queries) * cuts, 0)
    ends = tl.cumsum(sizes, 0)
    for item in range(tl.program_id(0), tl.sum(sizes, 0) * KV_HEADS, tl.num_programs(0)):
        head = item % KV_HEADS
        row, number = numbered(ends, sizes, item // KV_HEADS, 1)
        token = tl.load(query_starts + row)
        count = tl.load(query_starts + row + 1) - token
        length = tl.load(context_lengths + row)
        work = work_of(count, length, tile_queries)
        pieces = cuts_of(count, length, work, units, SPLIT, SPLIT_QUERIES)
        tile = tl.cdiv(count, tile_queries) - 1 - number // pieces  # the longest work first
        split = number % pieces
        oldest, inside, seen, visible, span, first, splits = pieces_of(
            count, length, tile, work, units, SPLIT, SPLIT_QUERIES, tile_queries, TILE, WINDOW, CAUSAL
        )
        low = tl.maximum(seen - WINDOW, 0) if WINDOW > 0 else 0
        if (split >= first) & (split < first + splits):
            attend_piece(
                q, out, k_pages, v_pages, k_scales, v_scales,
                block_tables + row.to(tl.int64) * table_width, partials, logs,
                arrivals + (row * cut_tiles + tile) * KV_HEADS + head,
                token + oldest, (token if SLOT_BY_TOKEN else row * SPLIT_QUERIES) + oldest, inside, head,
                tl.maximum(split * span, low // TILE * TILE), tl.minimum(split * span + span, visible), seen,
                split - first, splits, max_splits, scale, softcap,
                KV_HEADS, GROUP, HEAD_DIM, DIM, BLOCK_TOKENS, M, TILE, WINDOW, CAUSAL, SOFTCAP,
            )  # fmt: skip

"""What paged decode and paged prefill share on the device: a walk over a range of keys, and how ranges are joined.

It knows pages, tiles and the online softmax; which program does which range is the kernels' business. Logarithms are to
base 2 throughout: the caller's `scale` carries the factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def product(left, right, acc):
    """Return acc + left · right, the right side in the left's type, summed in float32."""
    if _INTERPRETED:  # the interpreter multiplies bfloat16 as integers, and cannot convert integers to it
        return tl.dot(left.to(tl.float32), right.to(tl.float32).to(left.dtype).to(tl.float32), acc)
    else:
        # float32: three passes of the tensor cores, as exact as float32 (3e-7 from float64), 3.6 times as fast.
        return tl.dot(left, right.to(left.dtype), acc, input_precision="tf32x3")


@triton.jit
def touch(table, begin, end, BLOCK_TOKENS: tl.constexpr):
    """Prefetch a first part of the block table of positions begin : end, without waiting.

    Behind keys and values that are under way, a table that has yet to come from memory would come late.
    """
    if not _INTERPRETED:
        last = tl.maximum(end - 1, 0) // BLOCK_TOKENS
        entries = tl.minimum(begin // BLOCK_TOKENS + tl.arange(0, 32) * 8, last)  # eight are what memory gives at once
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [table + entries], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def fetch_pages(
    pages, table, begin, end, head,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    """Prefetch a head's first PAGES pages of positions begin : end into the L2, without waiting.

    Pages may be written at the same time: the write goes to the L2 too.
    """
    if not _INTERPRETED:
        LINE: tl.constexpr = 1024 // pages.dtype.element_ty.primitive_bitwidth  # 128 bytes
        LINES: tl.constexpr = triton.next_power_of_2(triton.cdiv(BLOCK_TOKENS * DIM, LINE))
        numbers = begin // BLOCK_TOKENS + tl.arange(0, PAGES)
        last = tl.maximum(end - 1, 0) // BLOCK_TOKENS
        blocks = tl.load(table + tl.minimum(numbers, last)).to(tl.int64)
        firsts = (blocks * KV_HEADS + head) * (BLOCK_TOKENS * HEAD_DIM)
        lines = tl.minimum(tl.arange(0, LINES) * LINE, BLOCK_TOKENS * HEAD_DIM - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pages + firsts[:, None] + lines[None, :]],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def tile_blocks(table, start, end, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr):
    """Return the blocks of positions start : start + TILE: one number if a page holds the tile, else one a position."""
    if BLOCK_TOKENS % TILE == 0:
        return tl.load(table + start // BLOCK_TOKENS, mask=start < end, other=0)
    else:
        positions = start + tl.arange(0, TILE)
        return tl.load(table + positions // BLOCK_TOKENS, mask=positions < end, other=0)


@triton.jit
def tile_rows(blocks, head, start, KV_HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr):
    """Return where positions start : start + TILE of one head are in the pages: a base and offsets, in vectors."""
    first = (blocks.to(tl.int64) * KV_HEADS + head) * BLOCK_TOKENS
    if BLOCK_TOKENS % TILE == 0:  # one address, the rest is constant
        return first + start % BLOCK_TOKENS, tl.arange(0, TILE)
    else:
        return tl.zeros([], dtype=tl.int64), first + (start + tl.arange(0, TILE)) % BLOCK_TOKENS


@triton.jit
def load_vectors(pages, base, offsets, positions, end, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Return a tile of keys or values [TILE, DIM]; if MASKED, positions past `end` are not read and count as zero."""
    dims = tl.arange(0, DIM)
    where = pages + base * HEAD_DIM + offsets[:, None] * HEAD_DIM + dims[None, :]
    if MASKED and DIM != HEAD_DIM:
        return tl.load(where, mask=(positions < end)[:, None] & (dims < HEAD_DIM)[None, :], other=0)
    elif MASKED:
        return tl.load(where, mask=(positions < end)[:, None], other=0)
    elif DIM != HEAD_DIM:
        return tl.load(where, mask=(dims < HEAD_DIM)[None, :], other=0)
    else:
        return tl.load(where)


@triton.jit
def capped(products, scale, softcap, SOFTCAP: tl.constexpr):
    """Return scores in base 2, and the factor they still need: the exponent's subtraction applies it for free.

    With a cap, `scale` is scale / cap and `softcap` is cap · log2 e.
    """
    if SOFTCAP:
        return softcap * (2.0 * tl.sigmoid(2.0 * products * scale) - 1.0), 1.0  # tanh
    else:
        return products, scale


@triton.jit
def walk(
    acc, top, total, q, limits, table, blocks, head, begin, end,
    k_pages, v_pages, k_scales, v_scales, scale, softcap,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Carry the online softmax (acc [M, DIM], top [M], total [M]) of queries `q` over positions begin : end.

    `begin` is a multiple of TILE, and `blocks` are its tile's. Query m attends to positions below limits[m], and with a
    WINDOW only to the last so many of those; without MASKED the caller promises that every query attends to all of
    begin : end, a multiple of TILE as well.
    """
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        base, offsets = tile_rows(blocks, head, start, KV_HEADS, BLOCK_TOKENS, TILE)
        blocks = tile_blocks(table, start + TILE, end, BLOCK_TOKENS, TILE)  # one tile ahead: addresses are ready
        # Positions past the end within a page may be read: their scores are masked.
        k = load_vectors(k_pages, base, offsets, positions, end, HEAD_DIM, DIM, MASKED and BLOCK_TOKENS % TILE != 0)
        products = product(q, tl.trans(k), tl.zeros([q.shape[0], TILE], dtype=tl.float32))
        if k_scales is not None:
            products *= tl.load(k_scales + base + offsets, mask=positions < end, other=0.0).to(tl.float32)[None, :]
        scores, factor = capped(products, scale, softcap, SOFTCAP)
        if MASKED:
            seen = positions[None, :] < limits[:, None]
            if WINDOW > 0:
                seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * factor)
        level = tl.where(higher == float("-inf"), 0.0, higher) if MASKED else higher
        weights = tl.exp2(scores * factor - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(weights, 1)
        if v_scales is not None:
            weights *= tl.load(v_scales + base + offsets, mask=positions < end, other=0.0).to(tl.float32)[None, :]
        v = load_vectors(v_pages, base, offsets, positions, end, HEAD_DIM, DIM, MASKED)
        acc = product(weights.to(q.dtype), v, acc * fade[:, None])
        top = higher
    return acc, top, total


@triton.jit
def join(
    out, partials, logs, token, slot, count, splits, max_splits, head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr,
):  # fmt: skip
    """Write the output of `count` queries of one head group from their parts, taken in the order of positions."""
    dims = tl.arange(0, DIM)
    for first in range(0, count * GROUP, JOIN_ROWS):
        rows = first + tl.arange(0, JOIN_ROWS)
        live = rows < count * GROUP
        heads = head * GROUP + rows % GROUP
        parts = ((slot + rows // GROUP) * (KV_HEADS * GROUP) + heads).to(tl.int64) * max_splits
        acc = tl.zeros([JOIN_ROWS, DIM], dtype=tl.float32)
        top = tl.full([JOIN_ROWS], float("-inf"), dtype=tl.float32)
        total = tl.zeros([JOIN_ROWS], dtype=tl.float32)
        for begin in range(0, splits, JOIN_SPLITS):
            numbers = begin + tl.arange(0, JOIN_SPLITS)
            there = (numbers < splits)[:, None] & live[None, :]
            where = parts[None, :] + numbers[:, None]  # [JOIN_SPLITS, JOIN_ROWS]
            # .cg: other multiprocessors wrote these during this launch, and only the L2 has seen it.
            level = tl.load(logs + where, mask=there, other=float("-inf"), cache_modifier=".cg")
            part = tl.load(
                partials + where[:, :, None] * DIM + dims[None, None, :], mask=there[:, :, None], other=0.0,
                cache_modifier=".cg",
            )  # fmt: skip
            higher = tl.maximum(top, tl.max(level, 0))
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            share, fade = tl.exp2(level - safe[None, :]), tl.exp2(top - safe)
            total = total * fade + tl.sum(share, 0)
            acc = acc * fade[:, None] + tl.sum(part * share[:, :, None], 0)
            top = higher
        where = ((token + rows // GROUP) * (KV_HEADS * GROUP) + heads).to(tl.int64) * HEAD_DIM
        values = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        mask = live[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out + where[:, None] + dims[None, :], values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def finish(
    acc, top, total, out, partials, logs, arrived, token, slot, count, split, splits, max_splits, head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
    JOIN_ROWS: tl.constexpr, JOIN_SPLITS: tl.constexpr,
):  # fmt: skip
    """Write a range's result: the output itself if it is the only range, else a part; the last program joins the parts.

    `arrived` counts the programs that have written their parts. Any program may be the last; the result is the same:
    it reads all parts, its own too, in order.
    """
    dims = tl.arange(0, DIM)
    rows = tl.arange(0, M)
    live = rows < count * GROUP
    heads = head * GROUP + rows % GROUP
    values = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if splits <= 1:
        where = ((token + rows // GROUP) * (KV_HEADS * GROUP) + heads).to(tl.int64) * HEAD_DIM
        mask = live[:, None] & (dims < HEAD_DIM)[None, :]
        tl.store(out + where[:, None] + dims[None, :], values.to(out.dtype.element_ty), mask=mask)
    else:
        where = ((slot + rows // GROUP) * (KV_HEADS * GROUP) + heads).to(tl.int64) * max_splits + split
        tl.store(partials + where[:, None] * DIM + dims[None, :], values, mask=live[:, None])
        tl.store(logs + where, top + tl.log2(total), mask=live)
        tl.debug_barrier()  # every thread's part is stored before the arrival is counted
        before = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
        if before == splits - 1:
            tl.store(arrived, 0)  # ready for the next launch
            join(
                out, partials, logs, token, slot, count, splits, max_splits, head,
                KV_HEADS, GROUP, HEAD_DIM, DIM, JOIN_ROWS, JOIN_SPLITS,
            )  # fmt: skip


@triton.jit
def load_queries(
    q, token, count, head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Return `count` queries of one head group as rows [M, DIM], heads within a query adjacent, zeros below."""
    rows, dims = tl.arange(0, M), tl.arange(0, DIM)
    heads = (token + rows // GROUP) * (KV_HEADS * GROUP) + head * GROUP + rows % GROUP
    mask = (rows < count * GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(q + heads.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)

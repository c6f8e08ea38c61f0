"""A walk over int8 pages that converts as little as it can: what counts there is not bytes but instructions.

Made into bfloat16 one by one, keys and values take four instructions for each that is multiplied, and the loop is bound
by them at half of what the memory gives. So keys are multiplied as they are: a query becomes two integers of 8 bits,
high and low, 15 bits together, in rows of the product's left side that a decode leaves empty. Values are read four to a
word, and each of a word's four bytes has a sum of its own; the sums are interleaved at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_tile import _INTERPRETED, capped, load_vectors, product, tile_blocks, tile_rows

_LEVELS = tl.constexpr(127 * 128)  # of a query's number: high · 128 + low
_FLIP = tl.constexpr(-2139062144)  # 0x80808080: makes signed bytes unsigned ones, 128 too large


@triton.jit
def twice(x, HALF: tl.constexpr, WIDTH: tl.constexpr):
    """Return x [HALF, WIDTH] on top of itself."""
    return tl.reshape(tl.broadcast_to(x[None, :, :], [2, HALF, WIDTH]), [2 * HALF, WIDTH])


@triton.jit
def split_queries(
    q, token, count, head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Return `count` queries of one head group as rows of int8 [M, DIM], high above low, and their units [M / 2].

    A query is off by at most its largest number / 32,512. One that is not finite has a unit that is not a number.
    """
    HALF: tl.constexpr = M // 2
    rows, dims = tl.arange(0, M) % HALF, tl.arange(0, DIM)
    heads = (token + rows // GROUP) * (KV_HEADS * GROUP) + head * GROUP + rows % GROUP
    mask = (rows < count * GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    x = tl.load(q + heads.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), 1)
    unit = tl.where(largest == 0.0, 1.0, largest) * (1.0 / _LEVELS)
    whole = x / unit[:, None]
    high = tl.floor(whole * (1.0 / 128.0) + 0.5)
    low = tl.floor(whole - high * 128.0 + 0.5)
    parts = tl.where((tl.arange(0, M) < HALF)[:, None], high, low).to(tl.int8)
    unit += tl.sum(x * 0.0, 1)
    return parts, tl.max(tl.reshape(unit, [2, HALF]), 0)


@triton.jit
def byte_plane(words, PLANE: tl.constexpr, COMPUTE: tl.constexpr):
    """Return one byte of every word as a number of type COMPUTE, or of a wider one."""
    if COMPUTE.is_bf16() and not _INTERPRETED:
        # Two words a time. With seven bits of its fraction taken from a byte, 0x43.. is 128 + those bits; with the sign
        # for its last bit, 0xC3.. is -128 or -256.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 bytes, bits, base;
            prmt.b32 bytes, $1, $2, $3;
            lop3.b32 bits, bytes, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 base, bytes, 0x00800080, 0xC300C300, 0xEA;
            add.rn.bf16x2 $0, bits, base; }""",
            "=r,r,r,r,r", [words, 0x0400 + 0x0101 * PLANE], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        byte = ((words ^ _FLIP) >> (8 * PLANE)) & 0xFF
        return (byte | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + 128.0)  # 0x4B...... is 2²³ + a byte


@triton.jit
def byte_planes(words, COMPUTE: tl.constexpr):
    """Return the four bytes of every word as numbers."""
    return (
        byte_plane(words, 0, COMPUTE), byte_plane(words, 1, COMPUTE),
        byte_plane(words, 2, COMPUTE), byte_plane(words, 3, COMPUTE),
    )  # fmt: skip


@triton.jit
def load_scales(scales, base, offsets, start, end, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr):
    """Return the scales of a tile; beyond `end` they may be anything.

    Where a page holds the tile they come two to an int32: four bytes can be fetched ahead as keys and values are, two
    cannot, and waiting for them behind all those was half of the time.
    """
    if BLOCK_TOKENS % TILE == 0:
        words = tl.load(scales + base // 2 + tl.arange(0, TILE // 2))
        even, odd = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
        return tl.interleave(even, odd)
    else:
        mask = start + tl.arange(0, TILE) < end
        return tl.load(scales + base + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def walk_words(
    q, unit, limits, table, blocks, head, begin, end,
    k_pages, v_words, k_scales, v_scales, scale, softcap,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return the softmax's sums (acc [M, DIM], top [M], total [M]) over positions begin : end, every row of them twice.

    `q` and `unit` are split_queries'. Query m sees positions below limits[m], and with a WINDOW only the last so many
    of those. `begin` is a multiple of TILE, and `blocks` are its tile's.
    """
    M: tl.constexpr = q.shape[0]
    HALF: tl.constexpr = M // 2
    WORDS: tl.constexpr = DIM // 4
    APART: tl.constexpr = BLOCK_TOKENS % TILE != 0  # else the rest of a page may be read: integers are always numbers
    a0 = tl.zeros([M, WORDS], dtype=tl.float32)
    a1 = tl.zeros([M, WORDS], dtype=tl.float32)
    a2 = tl.zeros([M, WORDS], dtype=tl.float32)
    a3 = tl.zeros([M, WORDS], dtype=tl.float32)
    top = tl.full([HALF], float("-inf"), dtype=tl.float32)
    total = tl.zeros([HALF], dtype=tl.float32)
    worth = tl.where(tl.arange(0, M) < HALF, 128, 1)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        base, offsets = tile_rows(blocks, head, start, KV_HEADS, BLOCK_TOKENS, TILE)
        blocks = tile_blocks(table, start + TILE, end, BLOCK_TOKENS, TILE)  # a tile ahead: addresses wait for nothing
        k = load_vectors(k_pages, base, offsets, positions, end, HEAD_DIM, DIM, APART)
        k_scale = load_scales(k_scales, base, offsets, start, end, BLOCK_TOKENS, TILE)
        v_scale = load_scales(v_scales, base, offsets, start, end, BLOCK_TOKENS, TILE)
        words = load_vectors(v_words, base, offsets, positions, end, HEAD_DIM // 4, WORDS, APART)
        parts = tl.dot(q, tl.trans(k), out_dtype=tl.int32) * worth[:, None]  # below 2²⁹, exact
        products = tl.sum(tl.reshape(parts, [2, HALF, TILE]), 0).to(tl.float32) * unit[:, None]
        scores, factor = capped(products * k_scale[None, :], scale, softcap, SOFTCAP)
        seen = positions[None, :] < limits[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * factor)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores * factor - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(weights, 1)
        top = higher
        weights *= tl.where(positions < end, v_scale, 0.0)[None, :]
        weights = twice(weights.to(COMPUTE), HALF, TILE)
        fade = twice(fade[:, None], HALF, 1)
        v0, v1, v2, v3 = byte_planes(words, COMPUTE)
        a0 = product(weights, v0, a0 * fade)
        a1 = product(weights, v1, a1 * fade)
        a2 = product(weights, v2, a2 * fade)
        a3 = product(weights, v3, a3 * fade)
    acc = tl.reshape(tl.join(tl.join(a0, a2), tl.join(a1, a3)), [M, DIM])
    top, total = twice(top[:, None], HALF, 1), twice(total[:, None], HALF, 1)
    return acc, tl.reshape(top, [M]), tl.reshape(total, [M])

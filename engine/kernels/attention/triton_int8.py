"""A walk over int8 pages that converts as little as possible: there instructions are the limit, not bytes.

Made into bfloat16 one by one, keys and values take four instructions for each that is multiplied, and the loop is bound
by them at half of what the memory gives. So keys are multiplied as they are: a query becomes two integers of 8 bits,
high and low, 15 bits together, in rows of the product's left side that a decode leaves empty. Values are read four to a
word, and each of a word's four bytes has a sum of its own; the sums are interleaved at the end. There values are the
left side and weights the right one, which may be as narrow as eight queries: weights lie in the threads that computed
them, and sums take half the registers. With one warp a program nothing is exchanged through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from voxlane.engine.kernels.attention.triton_tile import (
    _INTERPRETED,
    capped,
    load_queries,
    load_vectors,
    product,
    tile_blocks,
    tile_rows,
)

_LEVELS = tl.constexpr(127.0 * 128.0)  # of a query's number: high · 128 + low
_LEAST = tl.constexpr(1e-30)  # a query whose largest number is smaller gives all keys the same weight
_ROUND = tl.constexpr(12582912.0)  # 1.5 · 2²³: what is added to it is rounded to an integer
_FLIP = tl.constexpr(-2139062144)  # 0x80808080: makes signed bytes unsigned ones, 128 too large


@triton.jit
def split_queries(
    q, token, count, head,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Return `count` queries of one head group as rows of int8 [M, DIM], high above low, and their units [M / 2].

    A query is off by at most its largest number / 32,512. One that is not finite has a unit that is not a number.
    """
    HALF: tl.constexpr = M // 2
    x = load_queries(q, token, count, head, KV_HEADS, GROUP, HEAD_DIM, DIM, HALF).to(tl.float32)
    # As integers: the largest of them is then what is not a number, if one is.
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1).to(tl.float32, bitcast=True)
    largest = tl.where(largest < _LEAST, _LEAST, largest)
    whole = x * (1.0 / largest * _LEVELS)[:, None]
    high = whole * (1.0 / 128.0) + _ROUND  # its lowest byte is the integer
    low = (whole - (high - _ROUND) * 128.0) + _ROUND
    is_high = (tl.arange(0, 2) == 0)[:, None, None]
    parts = tl.where(is_high, lowest_byte(high)[None, :, :], lowest_byte(low)[None, :, :])
    return tl.reshape(parts, [M, DIM]), largest * (1.0 / _LEVELS) + largest * 0.0


@triton.jit
def lowest_byte(x):
    """Return the lowest byte of numbers of float32 as an integer."""
    return x.to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def byte_plane(words, PLANE: tl.constexpr, COMPUTE: tl.constexpr):
    """Return one byte of every word as a number of type COMPUTE."""
    if COMPUTE.is_bf16() and not _INTERPRETED:
        # Two words a time. With seven bits of its fraction taken from a byte, 0x43.. is 128 + those bits; with the sign
        # for its last bit, 0xC3.. is -128 or -256. Devices before Hopper add in products only.
        return tl.inline_asm_elementwise(
            """{ .reg .b32 bytes, bits, base, one;
            prmt.b32 bytes, $1, $2, $3;
            lop3.b32 bits, bytes, 0x007F007F, 0x43004300, 0xEA;
            lop3.b32 base, bytes, 0x00800080, 0xC300C300, 0xEA;
            mov.b32 one, 0x3F803F80;
            fma.rn.bf16x2 $0, bits, one, base; }""",
            "=r,r,r,r,r", [words, 0x0400 + 0x0101 * PLANE], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        byte = ((words ^ _FLIP) >> (8 * PLANE)) & 0xFF
        value = (byte | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + 128.0)  # 0x4B...... is 2²³ + a byte
        return value.to(COMPUTE)


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
def load_upright(pages, base, offsets, positions, end, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, MASKED: tl.constexpr):
    """Return what load_vectors does with a column for each vector [DIM, TILE]: of a tile that was turned later, copies
    ahead would be of single words."""
    dims = tl.arange(0, DIM)
    where = pages + base * HEAD_DIM + offsets[None, :] * HEAD_DIM + dims[:, None]
    if MASKED:
        return tl.load(where, mask=(positions < end)[None, :] & (dims < HEAD_DIM)[:, None], other=0)
    else:
        return tl.load(where, mask=(dims < HEAD_DIM)[:, None], other=0)


@triton.jit
def load_together(start, TILE: tl.constexpr, DIM: tl.constexpr, UPRIGHT: tl.constexpr):
    """Return vectors that lie one after the other from `start` on [TILE, DIM], or UPRIGHT [DIM, TILE].

    Counted through they are one address and constants; of rows and columns each copy's address is computed anew.
    """
    VECTOR: tl.constexpr = 128 // start.dtype.element_ty.primitive_bitwidth  # what a thread copies at once
    where = tl.reshape(tl.arange(0, TILE * DIM), [TILE, DIM])
    if UPRIGHT:
        where = tl.max_contiguous(tl.multiple_of(tl.trans(where), [VECTOR, 1]), [VECTOR, 1])
    else:
        where = tl.max_contiguous(tl.multiple_of(where, [1, VECTOR]), [1, VECTOR])
    return tl.load(start + where)


@triton.jit
def load_tile(
    k_pages, v_words, base, offsets, positions, end,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Return a tile's keys [TILE, DIM] and its values' words [DIM / 4, TILE]."""
    if APART or HEAD_DIM != DIM:
        k = load_vectors(k_pages, base, offsets, positions, end, HEAD_DIM, DIM, APART)
        return k, load_upright(v_words, base, offsets, positions, end, HEAD_DIM // 4, DIM // 4, APART)
    else:
        k = load_together(k_pages + base * DIM, TILE, DIM, False)
        return k, load_together(v_words + base * (DIM // 4), TILE, DIM // 4, True)


@triton.jit
def opaque(x):
    """Return x. The compiler orders a product's left and right side by the smallest type that it finds behind them;
    behind the weights these are keys, and weights would be exchanged between threads. It does not look behind this."""
    if _INTERPRETED or x.dtype.primitive_bitwidth != 16:
        return x
    else:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@triton.jit
def walk_words(
    q, unit, limits, table, blocks, head, begin, end,
    k_pages, v_words, k_scales, v_scales, scale, softcap,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Return the softmax's sums (acc [M / 2, DIM], top [M / 2], total [M / 2]) over positions begin : end.

    `q` and `unit` are split_queries'. Query m sees positions below limits[m], and with a WINDOW only the last so many
    of those. `begin` is a multiple of TILE, and `blocks` are its tile's.
    """
    M: tl.constexpr = q.shape[0]
    HALF: tl.constexpr = M // 2
    WORDS: tl.constexpr = DIM // 4
    APART: tl.constexpr = BLOCK_TOKENS % TILE != 0  # else the rest of a page may be read: integers are always numbers
    a0 = tl.zeros([WORDS, HALF], dtype=tl.float32)
    a1 = tl.zeros([WORDS, HALF], dtype=tl.float32)
    a2 = tl.zeros([WORDS, HALF], dtype=tl.float32)
    a3 = tl.zeros([WORDS, HALF], dtype=tl.float32)
    top = tl.full([HALF], float("-inf"), dtype=tl.float32)
    total = tl.zeros([HALF], dtype=tl.float32)
    gain = unit * scale
    factor = gain * 0.0 + 1.0 if SOFTCAP else gain  # capped's, of every query
    # Tiles within these are seen by all queries: the others alone are masked.
    whole_from, whole_to = tl.max(limits, 0) - WINDOW if WINDOW > 0 else begin, tl.min(limits, 0)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        base, offsets = tile_rows(blocks, head, start, KV_HEADS, BLOCK_TOKENS, TILE)
        blocks = tile_blocks(table, start + TILE, end, BLOCK_TOKENS, TILE)  # a tile ahead: addresses wait for nothing
        k, words = load_tile(k_pages, v_words, base, offsets, positions, end, HEAD_DIM, DIM, TILE, APART)
        k_scale = load_scales(k_scales, base, offsets, start, end, BLOCK_TOKENS, TILE)
        v_scale = load_scales(v_scales, base, offsets, start, end, BLOCK_TOKENS, TILE)
        parts = tl.reshape(tl.dot(q, tl.trans(k), out_dtype=tl.int32), [2, HALF, TILE])
        high, low = tl.split(tl.permute(parts, (1, 2, 0)))
        products = (high * 128 + low).to(tl.float32)  # below 2²⁹, exact
        scores, _ = capped(products * k_scale[None, :], gain[:, None], softcap, SOFTCAP)
        if start < whole_from or start + TILE > whole_to:
            seen = positions[None, :] < limits[:, None]
            if WINDOW > 0:
                seen = seen & (positions[None, :] >= limits[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            v_scale = tl.where(positions < end, v_scale, 0.0)
        higher = tl.maximum(top, tl.max(scores, 1) * factor)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores * factor[:, None] - level[:, None])
        fade = tl.exp2(top - level)
        total = total * fade + tl.sum(weights, 1)
        top = higher
        right = tl.trans(opaque((weights * v_scale[None, :]).to(COMPUTE)))
        v0, v1, v2, v3 = byte_planes(words, COMPUTE)
        a0 = product(v0, right, a0 * fade[None, :])
        a1 = product(v1, right, a1 * fade[None, :])
        a2 = product(v2, right, a2 * fade[None, :])
        a3 = product(v3, right, a3 * fade[None, :])
    pairs = tl.join(tl.join(a0, a2), tl.join(a1, a3))  # [WORDS, HALF, 2, 2]
    return tl.reshape(tl.permute(pairs, (1, 0, 2, 3)), [HALF, DIM]), top, total

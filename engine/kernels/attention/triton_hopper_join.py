"""Joins the parts of rows that triton_hopper.py cut: each consumer writes its own, and the last one joins them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

NOTHING = gl.constexpr(float("-inf"))

meet = getattr(gl, "thread_barrier", None) or gl.barrier  # Triton 3.7 to 3.9 gave it the other name


@gluon.jit
def places_of(count, SUMS: gl.constexpr, EACH: gl.constexpr, DIM: gl.constexpr):
    """Return lines, which of them are among the first `count`, and where those lie in a part.

    Eight columns of all lines at a time, so that what a warp holds is adjacent: 256 queries over 4,096, 16/8 heads of
    128, take 24.0 µs, with line after line 28.9.
    """
    lines = gl.arange(0, EACH, layout=gl.SliceLayout(1, SUMS))
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, SUMS))
    places = gl.expand_dims(lines * 8, 1) + gl.expand_dims(columns // 8 * (count * 8) + columns % 8, 0)
    return lines, lines < count, places


@gluon.jit
def fetch(parts, logs, at, count, SUMS: gl.constexpr, EACH: gl.constexpr, DIM: gl.constexpr):
    """Return one part of `count` lines, and its logarithms."""
    lines, there, places = places_of(count, SUMS, EACH, DIM)
    # .cg: other multiprocessors wrote these during this launch, and only the L2 has seen it.
    level = gl.load(logs + at + lines, mask=there, other=NOTHING, cache_modifier=".cg")
    part = gl.load(parts + at * DIM + places, mask=gl.expand_dims(there, 1), other=0.0, cache_modifier=".cg")
    return level, part


@gluon.jit
def join(
    parts, logs, first, count, splits,
    SUMS: gl.constexpr, EACH: gl.constexpr, DIM: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Return the sum of the parts of `count` lines, in the order of positions.

    AHEAD: load each part while another is added.
    """
    acc = gl.zeros([EACH, DIM], gl.float32, SUMS)
    top = gl.full([EACH], NOTHING, gl.float32, gl.SliceLayout(1, SUMS))
    total = gl.zeros([EACH], gl.float32, gl.SliceLayout(1, SUMS))
    if AHEAD:
        level, part = fetch(parts, logs, first, count, SUMS, EACH, DIM)
    for split in range(splits):
        if AHEAD:
            after = gl.minimum(split + 1, splits - 1)
            next_level, next_part = fetch(parts, logs, first + after * count, count, SUMS, EACH, DIM)
        else:
            # Hide from the compiler that `count` is the same for all: else it keeps the offsets of a part's numbers in
            # registers, and chunks that are cut take up to 15 % longer (heads of 64).
            hidden = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [count], gl.int32, is_pure=False, pack=1)
            level, part = fetch(parts, logs, first + split * count, hidden, SUMS, EACH, DIM)
        higher = gl.maximum(top, level)
        safe = gl.where(higher == NOTHING, 0.0, higher)
        share, fade = gl.exp2(level - safe), gl.exp2(top - safe)
        total = total * fade + share
        acc = acc * gl.expand_dims(fade, 1) + part * gl.expand_dims(share, 1)
        top = higher
        if AHEAD:
            level, part = next_level, next_part
    return acc, total


@gluon.jit
def bring(
    acc, top, total, pieces, oldest, mine, head, WORKER: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, EACH: gl.constexpr, SUMS: gl.constexpr,
    AHEAD: gl.constexpr,
):  # fmt: skip
    """Write a part of `mine` queries; return the sum of all parts and `mine` if it was the last of them, else 0.

    Any consumer may be the last; the result is the same: it reads all parts, its own too, in order.
    """
    parts, logs, arrived, slot, split, splits, max_splits = pieces
    count = mine * GROUP
    lines, there, places = places_of(count, SUMS, EACH, DIM)
    first = ((slot + oldest) * KV_HEADS + head * mine).to(gl.int64) * (GROUP * max_splits)
    at = first + split * count
    part = acc / gl.expand_dims(gl.where(total == 0.0, 1.0, total), 1)
    gl.store(parts + at * DIM + places, part, mask=gl.expand_dims(there, 1))
    gl.store(logs + at + lines, top + gl.log2(total), mask=there)
    meet()  # every thread's part is stored before the arrival is counted
    before = gl.atomic_add(arrived + WORKER, 1, sem="acq_rel", scope="gpu")
    if before == splits - 1:
        gl.store(arrived + WORKER, 0)  # ready for the next launch
        acc, total = join(parts, logs, first, count, splits, SUMS, EACH, DIM, AHEAD)
    else:
        mine = mine * 0
    return acc, total, mine

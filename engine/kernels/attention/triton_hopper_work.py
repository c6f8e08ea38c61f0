"""Which piece of which row a program of triton_hopper.py takes: each program finds it from the rows' lengths."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def plus(a, b):
    """Return the sum."""
    return a + b


@gluon.jit
def cuts_of(count, length, work, units, SPLIT: gl.constexpr, SPLIT_QUERIES: gl.constexpr):
    """Return into how many pieces a row's positions are cut, as triton_prefill.py's function of that name does."""
    pieces = (units / gl.maximum(work, 1) * 1.0001 * ((length + 63) // 64)).to(gl.int32)
    pieces = gl.maximum(gl.minimum(pieces, (length + (SPLIT - 1)) // SPLIT), 1)
    return gl.where(count <= SPLIT_QUERIES, pieces, 1)


@gluon.jit
def range_of(visible, length, pieces, split, TILE: gl.constexpr):
    """Return begin and end of piece `split` of a tile's positions, and how many pieces the tile has."""
    begin, end, splits = 0, visible, 1
    if pieces > 1:
        span = gl.maximum(((length + (pieces - 1)) // pieces + (TILE - 1)) // TILE, 1) * TILE
        splits = gl.maximum((visible + (span - 1)) // span, 1)
        begin, end = split * span, gl.minimum(split * span + span, visible)
    return begin, end, splits


@gluon.jit
def find(
    unit, query_starts, context_lengths, rows, least, units,
    ROWS: gl.constexpr, SPLIT: gl.constexpr, SPLIT_QUERIES: gl.constexpr, TILE_QUERIES: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """Return the row of piece `unit`, the number it has there, and, if CUT, how much work there is in all.

    If there are fewer pieces, the row does not exist.

    Rows take turns, so that of all of them the first pieces go first, and those are the longest.
    """
    index = gl.arange(0, ROWS, layout=gl.BlockedLayout([ROWS // 32], [32], [4], [0]))  # all of them in every warp
    starts = gl.load(query_starts + index, mask=index < rows, other=0)
    counts = gl.load(query_starts + index + 1, mask=index < rows, other=0) - starts
    sizes = gl.where(counts > least, (counts + (TILE_QUERIES - 1)) // TILE_QUERIES, 0)
    work = 0
    if CUT:
        lengths = gl.load(context_lengths + index, mask=index < rows, other=0)
        work = gl.sum(sizes * ((lengths + 63) // 64), 0)
        sizes *= cuts_of(counts, lengths, work, units, SPLIT, SPLIT_QUERIES)
    turn, left = 0, unit  # whole turns before this program's, and programs of its own turn before it
    taking = gl.where(unit < gl.sum(sizes, 0), gl.sum((sizes > 0).to(gl.int32), 0), 0)
    while (taking > 0) & (left >= taking):  # no later turn has more programs: so many are whole at least
        turn += left // taking
        left = unit - gl.sum(gl.minimum(sizes, turn), 0)
        taking = gl.sum((sizes > turn).to(gl.int32), 0)
    before = gl.associative_scan((sizes > turn).to(gl.int32), 0, plus) <= left
    return gl.sum(before.to(gl.int32), 0), turn, work

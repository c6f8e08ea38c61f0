"""Paged attention for rows of many queries on Hopper, in Gluon: some warps copy pages, others multiply.

A program takes 128 rows of a head group's queries over a range of keys. One warp has pages copied into a ring in shared
memory; one or two consumers, four warps each, multiply them with all rows or half of them. While one computes exponents
the tensor cores work for another, which may be in another program: where two share a multiprocessor, one also works
while the other begins or ends. The registers that are left decide the order of a tile's products. Rows are cut by the
work of the whole batch, and pieces joined as in triton_prefill.py. It takes pages of 64 tokens in the queries' own
type, two bytes a number, heads of 64 or 128; no window and no cap. Triton's interpreter cannot run Gluon: the check at
start-up and gpu_kernels.py --check test this file.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.attention.triton_hopper_join import NOTHING, bring, meet
from voxlane.engine.kernels.attention.triton_hopper_work import cuts_of, find, range_of

PAGE_TOKENS = 64
PROGRAM_ROWS = 128
TILE = gl.constexpr(PAGE_TOKENS)  # keys at a time
ALL_ROWS = gl.constexpr(PROGRAM_ROWS)

copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # Triton 3.7 to 3.9: the other name


def registers(programs: int, consumers: int) -> tuple[int, int]:
    """Return how many registers a thread begins with, and a consumer's has, if so many programs share a multiprocessor.

    Beside its consumers a program has four warps, the one that copies and three that do nothing; these keep 24. The
    compiler gives the first consumer what is left, which may be 8 more. Counts are multiples of 8.
    """
    warps = 4 * consumers + 4
    first = 65_536 // (programs * warps * 32) // 8 * 8
    return first, (warps * first - 4 * 24) // (4 * consumers) // 8 * 8


def page_copies(side: Tensor) -> TensorDescriptor:
    """Return the descriptor to copy a page of one head at a time: rows of 128 bytes, interleaved by eights."""
    shape = [PAGE_TOKENS, side.shape[3]]
    return TensorDescriptor.from_tensor(side.view(-1, side.shape[3]), shape, gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def hide(scores, first, limits, SCORES: gl.constexpr):
    """Return a tile's scores, minus infinity where a query does not attend to a position."""
    positions = first + gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
    return gl.where(gl.expand_dims(positions, 0) < gl.expand_dims(limits, 1), scores, NOTHING)


@gluon.jit
def weigh(scores, top, scale, MASKED: gl.constexpr):
    """Return a tile's weights, their row sums, the rows' new top, and how much of older sums remains."""
    higher = gl.maximum(top, gl.max(scores, 1) * scale)
    level = gl.where(higher == NOTHING, 0.0, higher) if MASKED else higher
    weights = gl.exp2(scores * scale - gl.expand_dims(level, 1))
    return weights, gl.sum(weights, 1), higher, gl.exp2(top - level)


@gluon.jit
def numbered(number, count: gl.constexpr, layout: gl.constexpr):
    """Return 0, 1, … count - 1, hidden from the compiler: else it would keep them, and what follows, in registers."""
    none = gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [number], gl.int32, is_pure=False, pack=1)
    return gl.arange(0, count, layout=layout) + none * 8  # times 8: still known to be aligned


@gluon.jit
def score(q, ring, number, SCORES: gl.constexpr, STAGES: gl.constexpr):
    """Begin the products of queries with a tile of keys as soon as it is copied."""
    keys, _, k_full, _, _, _ = ring
    stage = number % STAGES
    mbarrier.wait(k_full.index(stage), (number // STAGES) & 1)
    rows: gl.constexpr = q.shape[0]
    none = gl.zeros([rows, TILE], gl.float32, SCORES)
    return warpgroup_mma(q, keys.index(stage).permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def fold(acc, scores, top, total, scale, DTYPE: gl.constexpr, MASKED: gl.constexpr, SUMS: gl.constexpr):
    """Take a tile's scores into the softmax: return the sums as far as they remain, and the weights of its values."""
    fresh, added, top, fade = weigh(scores, top, scale, MASKED)
    acc = acc * gl.expand_dims(gl.convert_layout(fade, gl.SliceLayout(1, SUMS)), 1)
    weights = gl.convert_layout(fresh, gl.DotOperandLayout(0, SUMS, 2)).to(DTYPE)
    return acc, weights, top, total * fade + added


@gluon.jit
def attend_tile(
    acc, scores, top, total, q, limits, scale, first, ring, number,
    MASKED: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """Take tile `number`, which is not the last, into softmax and sums; return the scores of the next one too."""
    _, values, _, k_empty, v_full, v_empty = ring
    stage = number % STAGES
    if MASKED:
        scores = hide(scores, first + number * TILE, limits, SCORES)
    acc, weights, top, total = fold(acc, scores, top, total, scale, q.dtype, MASKED, SUMS)
    mbarrier.wait(v_full.index(stage), number // STAGES & 1)
    acc = warpgroup_mma(weights, values.index(stage), acc, is_async=True)
    if TOGETHER:
        acc, scores = warpgroup_mma_wait(0, deps=[acc, score(q, ring, number + 1, SCORES, STAGES)])
    else:  # scores take the weights' registers
        acc = warpgroup_mma_wait(0, deps=[acc])
        scores = warpgroup_mma_wait(0, deps=[score(q, ring, number + 1, SCORES, STAGES)])
    mbarrier.arrive(v_empty.index(stage), count=1)
    mbarrier.arrive(k_empty.index((number + 1) % STAGES), count=1)
    return acc, scores, top, total


@gluon.jit
def clear_rest(values, left, WIDE: gl.constexpr):
    """Clear a tile's values but for the first `left`: zero times memory past the end need not be zero."""
    some: gl.constexpr = 16  # at a time: registers are few
    for part in gl.static_range(TILE // some):
        place = values.slice(part * some, some, dim=0)
        there = part * some + gl.arange(0, some, layout=gl.SliceLayout(1, WIDE)) < left
        found = place.load(WIDE)
        place.store(gl.where(gl.expand_dims(there, 1), found, gl.zeros_like(found)))
    fence_async_shared()
    meet()


@gluon.jit
def places(
    token, head, lines, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, WIDE: gl.constexpr
):  # fmt: skip
    """Return the offsets of lines of queries from `token` on: heads within a query are adjacent."""
    heads = (token + lines // GROUP) * (KV_HEADS * GROUP) + head * GROUP + lines % GROUP
    dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, WIDE))
    return gl.expand_dims(heads.to(gl.int64) * DIM, 1) + gl.expand_dims(dims, 0)


@gluon.jit
def attend(
    q, limits, clear, begin, end, tiles, scale, ring,
    DIM: gl.constexpr, WIDE: gl.constexpr, SCORES: gl.constexpr, SUMS: gl.constexpr, STAGES: gl.constexpr,
    TOGETHER: gl.constexpr,
):  # fmt: skip
    """Return the sums, tops and totals of rows over all tiles; every row attends to all of the first `clear`."""
    _, values, _, k_empty, v_full, _ = ring
    rows: gl.constexpr = q.shape[0]
    last = tiles - 1
    clear = gl.maximum(gl.minimum(clear, last), 0)  # a piece may begin past the oldest query's context
    top = gl.full([rows], NOTHING, gl.float32, gl.SliceLayout(1, SCORES))
    total = gl.zeros([rows], gl.float32, gl.SliceLayout(1, SCORES))
    acc = gl.zeros([rows, DIM], gl.float32, SUMS)
    scores = warpgroup_mma_wait(0, deps=[score(q, ring, 0, SCORES, STAGES)])
    mbarrier.arrive(k_empty.index(0), count=1)
    for number in range(clear):
        acc, scores, top, total = attend_tile(
            acc, scores, top, total, q, limits, scale, begin, ring, number, False, SCORES, SUMS, STAGES, TOGETHER
        )
    for number in range(clear, last):
        acc, scores, top, total = attend_tile(
            acc, scores, top, total, q, limits, scale, begin, ring, number, True, SCORES, SUMS, STAGES, TOGETHER
        )
    scores = hide(scores, begin + last * TILE, limits, SCORES)
    acc, weights, top, total = fold(acc, scores, top, total, scale, q.dtype, True, SUMS)
    mbarrier.wait(v_full.index(last % STAGES), last // STAGES & 1)
    if end - begin < tiles * TILE:
        clear_rest(values.index(last % STAGES), end - begin - last * TILE, WIDE)
    acc = warpgroup_mma_wait(0, deps=[warpgroup_mma(weights, values.index(last % STAGES), acc, is_async=True)])
    return acc, top, total


@gluon.jit
def consume(
    given, WORKER: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr, CUT: gl.constexpr,
    WORKERS: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend with one consumer's rows of a program's work, and write the result."""
    q_from, out, scale, work, pieces, ring, q_rows = given
    token, inside, head, seen, begin, end, tiles = work
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WIDE: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    EACH: gl.constexpr = ALL_ROWS // WORKERS
    oldest = WORKER * (EACH // GROUP)
    mine = gl.minimum(inside - oldest, EACH // GROUP)
    lines = gl.arange(0, EACH, layout=gl.SliceLayout(1, WIDE))
    where = places(token + oldest, head, lines, KV_HEADS, GROUP, DIM, WIDE)
    if PDL:
        gdc_wait()
    found = gl.load(q_from + where, mask=gl.expand_dims(lines < mine * GROUP, 1), other=0.0)
    if TOGETHER:
        q = gl.convert_layout(found, gl.DotOperandLayout(0, SCORES, 2))
    else:  # registers would be too few
        q = q_rows.index(WORKER)
        q.store(found)
        fence_async_shared()
        meet()
    limits = gl.arange(0, EACH, layout=gl.SliceLayout(1, SCORES))
    if CAUSAL:
        limits = seen + oldest + gl.minimum(limits // GROUP, mine - 1)
        clear = (gl.minimum(seen + oldest, end) - begin) // TILE  # tiles that every row attends to whole
    else:
        limits = limits * 0 + end
        clear = (end - begin) // TILE
    acc, top, total = attend(
        q, limits, clear, begin, end, tiles, scale, ring, DIM, WIDE, SCORES, SUMS, STAGES, TOGETHER
    )
    total = gl.convert_layout(total, gl.SliceLayout(1, SUMS))
    if CUT:
        level = gl.convert_layout(top, gl.SliceLayout(1, SUMS))
        if pieces[5] > 1:
            acc, total, mine = bring(
                acc, level, total, pieces, oldest, mine, head, WORKER, KV_HEADS, GROUP, DIM, EACH, SUMS, TOGETHER
            )
    result = (acc / gl.expand_dims(gl.where(total == 0.0, 1.0, total), 1)).to(q.dtype)
    lines = numbered(token, EACH, gl.SliceLayout(1, WIDE))
    where = places(token + oldest, head, lines, KV_HEADS, GROUP, DIM, WIDE)
    gl.store(out + where, gl.convert_layout(result, WIDE), mask=gl.expand_dims(lines < mine * GROUP, 1))


@gluon.jit
def let_go(tiles, ring, STAGES: gl.constexpr):
    """Mark every tile as read."""
    _, _, k_full, k_empty, v_full, v_empty = ring
    for number in range(tiles):
        stage, turn = number % STAGES, number // STAGES & 1
        mbarrier.wait(k_full.index(stage), turn)
        mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.wait(v_full.index(stage), turn)
        mbarrier.arrive(v_empty.index(stage), count=1)


@gluon.jit
def consume_rest(
    given, WORKER: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr, CUT: gl.constexpr,
    WORKERS: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend with the rows that other consumers leave, if any: a row's last tile of queries may have few."""
    work, ring = given[3], given[5]
    if work[1] > WORKER * (ALL_ROWS // WORKERS // GROUP):
        consume(given, WORKER, KV_HEADS, GROUP, DIM, CAUSAL, CUT, WORKERS, STAGES, TOGETHER, PDL)
    else:
        let_go(work[6], ring, STAGES)


@gluon.jit
def produce(
    k_pages, v_pages, table, block, head, tiles, ring,
    PDL: gl.constexpr, KV_HEADS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy `tiles` pages of one head into the ring, each as soon as every consumer has read its place."""
    keys, values, k_full, k_empty, v_full, v_empty = ring
    if PDL:
        gdc_wait()
    for number in range(tiles):
        stage, turn = number % STAGES, number // STAGES & 1
        line = (block * KV_HEADS + head) * TILE
        block = gl.load(table + gl.minimum(number + 1, tiles - 1))  # ahead: the copy waits for its place alone
        mbarrier.wait(k_empty.index(stage), turn ^ 1)
        mbarrier.expect(k_full.index(stage), k_pages.block_type.nbytes)
        copy_tile(k_pages, [line, 0], k_full.index(stage), keys.index(stage))
        mbarrier.wait(v_empty.index(stage), turn ^ 1)
        mbarrier.expect(v_full.index(stage), v_pages.block_type.nbytes)
        copy_tile(v_pages, [line, 0], v_full.index(stage), values.index(stage))


@gluon.jit
def make_ring(k_pages, v_pages, STAGES: gl.constexpr, WORKERS: gl.constexpr):
    """Return places for tiles, and for each a barrier that it was filled and one that all consumers have read it."""
    shape: gl.constexpr = [STAGES, TILE, k_pages.block_type.shape[1]]
    keys = gl.allocate_shared_memory(k_pages.dtype, shape, k_pages.layout)
    values = gl.allocate_shared_memory(v_pages.dtype, shape, v_pages.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=WORKERS)
        mbarrier.init(v_empty.index(stage), count=WORKERS)
    return keys, values, k_full, k_empty, v_full, v_empty


@gluon.jit
def share_out(
    given, copying,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, CAUSAL: gl.constexpr, CUT: gl.constexpr,
    WORKERS: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr, REGISTERS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Run each group of warps."""
    if WORKERS == 1:
        gl.warp_specialize(
            [
                (consume, (given, 0, KV_HEADS, GROUP, DIM, CAUSAL, CUT, WORKERS, STAGES, TOGETHER, PDL)),
                (produce, copying),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (given, 0, KV_HEADS, GROUP, DIM, CAUSAL, CUT, WORKERS, STAGES, TOGETHER, PDL)),
                (consume_rest, (given, 1, KV_HEADS, GROUP, DIM, CAUSAL, CUT, WORKERS, STAGES, TOGETHER, PDL)),
                (produce, copying),
            ],
            [4, 1],
            [REGISTERS, 24],
        )


@gluon.jit(do_not_specialize=["rows", "table_width", "max_splits", "least", "by_token", "alike"])
def hopper_kernel(
    q, out, k_pages, v_pages, query_starts, context_lengths, block_tables, partials, logs, arrivals,
    rows, table_width, max_splits, least, by_token, alike, units, scale,
    ROWS: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    CAUSAL: gl.constexpr, SPLIT: gl.constexpr, SPLIT_QUERIES: gl.constexpr, CUT: gl.constexpr,
    WORKERS: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr, REGISTERS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Serve the rows that have more than `least` queries: one piece of one tile of one head group a program.

    Without CUT the caller promises that no row is cut, which saves each program some work; with `alike`, that all rows
    are served and none has more tiles than there are programs for each of them, which saves more.
    TOGETHER: there are registers for the queries, and for both of a tile's products under way at once. PDL: the launch
    before may still run: all programs, also those without work, wait for its results, but for lengths and tables.
    """
    if PDL:
        gdc_launch_dependents()
    tile_queries: gl.constexpr = WORKERS * (ALL_ROWS // WORKERS // GROUP)
    cut_tiles: gl.constexpr = (SPLIT_QUERIES + tile_queries - 1) // tile_queries  # at most, of a row that is cut
    unit, head = gl.program_id(0) // KV_HEADS, gl.program_id(0) % KV_HEADS
    row, number, all_work = unit % rows, unit // rows, 0
    if alike == 0:
        row, number, all_work = find(
            unit, query_starts, context_lengths, rows, least, units,
            ROWS, SPLIT, SPLIT_QUERIES, tile_queries, CUT,
        )  # fmt: skip
    if row >= rows:
        if PDL:
            gdc_wait()
        return
    table = block_tables + row.to(gl.int64) * table_width
    block = gl.load(table)  # early: it has arrived by the time it is needed
    token = gl.load(query_starts + row)
    count = gl.load(query_starts + row + 1) - token
    length = gl.load(context_lengths + row)
    pieces, split = 1, 0
    if CUT:
        pieces = cuts_of(count, length, all_work, units, SPLIT, SPLIT_QUERIES)
        if pieces > 1:
            number, split = number // pieces, number % pieces
    tile = (count + (tile_queries - 1)) // tile_queries - 1 - number  # the longest work first
    oldest = tile * tile_queries
    inside = gl.minimum(count - oldest, tile_queries)
    seen = length - count + oldest + 1  # positions that the tile's oldest query attends to
    begin, end, splits = range_of(seen + inside - 1 if CAUSAL else length, length, pieces, split, TILE)
    if (tile < 0) | (split >= splits):  # the row has fewer queries than the others, or the tile fewer positions
        if PDL:
            gdc_wait()
        return
    if pieces > 1:
        table += begin // TILE
        block = gl.load(table)
    tiles = gl.maximum((end - begin + (TILE - 1)) // TILE, 1)
    ring = make_ring(k_pages, v_pages, STAGES, WORKERS)
    q_rows = gl.allocate_shared_memory(q.dtype.element_ty, [WORKERS, ALL_ROWS // WORKERS, DIM], k_pages.layout)
    work = (token + oldest, inside, head, seen, begin, end, tiles)
    arrived = arrivals + ((row * cut_tiles + tile) * KV_HEADS + head) * WORKERS
    slot = gl.where(by_token != 0, token, row * SPLIT_QUERIES) + oldest
    given = (q, out, scale, work, (partials, logs, arrived, slot, split, splits, max_splits), ring, q_rows)
    copying = (k_pages, v_pages, table, block, head, tiles, ring, PDL, KV_HEADS, STAGES)
    share_out(given, copying, KV_HEADS, GROUP, DIM, CAUSAL, CUT, WORKERS, STAGES, TOGETHER, REGISTERS, PDL)

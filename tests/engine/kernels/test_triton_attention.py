"""Paged attention in Triton, interpreted on the CPU: against the reference, and the same to the bit in any batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from voxlane.engine.kernels.attention import paged_triton
from voxlane.engine.kernels.attention.paged import paged_attention_ref
from voxlane.engine.kernels.attention.paged_triton import by_hopper, paged_attention_triton
from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals
from voxlane.engine.kernels.attention.triton_prefill import cuts_of, work_of
from voxlane.engine.kernels.attention.triton_tuning import AttentionTuning, hopper_tuning

from .attention_steps import BF16, DECODE, EVEN, F16, F32, INT8, MANY, PREFILL, SMALL, check, run, step
from .batches import Shape, filled, layout

# The interpreter computes in numpy, which warns where a GPU gives an infinity or a NaN and goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning"),
    pytest.mark.usefixtures("interpreter"),
]


@pytest.mark.parametrize(
    ("compute", "kind", "window", "softcap"),
    [
        (F32, F32, 0, 0.0), (F32, F32, 1, 0.0), (F32, F32, 32, 0.0), (F32, F32, 25, 3.0),
        (F32, BF16, 25, 0.0), (F32, INT8, 0, 0.0), (BF16, BF16, 0, 3.0),
        (BF16, INT8, 25, 3.0), (F16, F16, 0, 0.0),
    ],
)  # fmt: skip
def test_every_type(
    compute: torch.dtype, kind: torch.dtype, window: int, softcap: float, random: torch.Generator
) -> None:
    q, pages, place = step(SMALL, kind, random)
    q = q.to(compute)
    check(run(q, pages, place, 0.25, window, softcap=softcap), q, pages, place, 0.25, window, softcap=softcap)


@pytest.mark.parametrize(
    "shape",
    [Shape(6, 2, 64, 16), Shape(2, 2, 20, 5), Shape(8, 1, 128, 32), Shape(2, 1, 256, 64), Shape(20, 1, 32, 128)],
)
def test_every_shape(shape: Shape, random: torch.Generator) -> None:
    q, pages, place = step(shape, BF16, random, [(37, 20), (69, 1), (0, 1)])
    check(run(q, pages, place), q, pages, place, 0.25)


@pytest.mark.parametrize("kind", [F32, INT8])
def test_cross_attention_sees_everything(kind: torch.dtype, random: torch.Generator) -> None:
    shape = SMALL
    table, pages = filled(shape, kind, [70, 0, 33, 50, 0], random)
    place = Layout(
        positions=torch.zeros(52, dtype=torch.int32),  # of no meaning here
        slots=torch.full((52,), -1, dtype=torch.int32),
        query_starts=torch.tensor([0, 2, 3, 4, 44, 52], dtype=torch.int32),
        context_lengths=torch.tensor([70, 0, 33, 50, 0], dtype=torch.int32),
        block_tables=table,
    )
    q = torch.randn((52, shape.heads, shape.head_dim), generator=random)
    got = run(q, pages, place, causal=False)
    check(got, q, pages, place, 0.25, causal=False)
    assert (got[2] == 0.0).all()  # nothing to see, for a row of few queries
    assert (got[44:] == 0.0).all()  # and for one of many


@pytest.mark.parametrize(("kind", "window"), [(F32, 0), (BF16, 0), (INT8, 40)])
def test_bits_of_a_decode_do_not_depend_on_its_batch(kind: torch.dtype, window: int, random: torch.Generator) -> None:
    """Alone, among prefills, or as one of several drafts: where pieces have a fixed length, the result is the same."""
    q, pages, place = step(SMALL, kind, random, [(0, 20), (90, 2), (70, 1)])
    q = q.to(BF16) if kind is INT8 else q
    together = run(q, pages, place, 0.25, window)
    table = place.block_tables
    for row, position, token in ((1, 90, 20), (1, 91, 21), (2, 70, 22)):
        alone = replace(layout([(position, 1)], table[row : row + 1], 16), max_query=1)
        assert torch.equal(run(q[token : token + 1], pages, alone, 0.25, window)[0], together[token])


def test_bits_of_a_chunk_do_not_depend_on_its_batch(random: torch.Generator) -> None:
    q, pages, place = step(SMALL, BF16, random, [(30, 50), (50, 30), (70, 1)])
    together = run(q, pages, place)
    for row, (start, count, token) in enumerate([(30, 50, 0), (50, 30, 50)]):
        alone = layout([(start, count)], place.block_tables[row : row + 1], 16)
        assert torch.equal(run(q[token : token + count], pages, alone), together[token : token + count])


@pytest.mark.parametrize(("kind", "window"), [(F32, 0), (INT8, 0), (F32, 100)])
def test_pieces_as_many_as_programs(kind: torch.dtype, window: int, random: torch.Generator) -> None:
    """One long row among short ones, then alone: cut finely or not at all, the result is the same."""
    q, pages, place = step(Shape(4, 2, 16, 16), kind, random, [(200, 1), (3, 1), (90, 2), (0, 20), (-1, 1)])
    q = q.to(BF16) if kind is INT8 else q
    check(run(q, pages, place, 0.25, window, decode=EVEN), q, pages, place, 0.25, window)
    many = replace(layout([(200, 1), *[(3, 1)] * 18, (90, 1)], place.block_tables[[0, *[1] * 18, 2]], 16), max_query=1)
    queries = torch.randn((20, 4, 16), generator=random).to(q.dtype)
    check(run(queries, pages, many, 0.25, window, decode=EVEN), queries, pages, many, 0.25, window)
    alone = replace(layout([(200, 1)], place.block_tables[:1], 16), max_query=1)
    check(run(q[:1], pages, alone, 0.25, window, decode=EVEN), q[:1], pages, alone, 0.25, window)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for parts as it may be found: what is read before it is written is seen at once."""
    room = paged_triton._parts

    def poisoned(*sizes: Any) -> tuple[Tensor, Tensor]:
        partials, logs = room(*sizes)
        return partials.fill_(torch.nan), logs.fill_(torch.nan)

    monkeypatch.setattr(paged_triton, "_parts", poisoned)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("compute", "kind", "window", "softcap", "causal"),
    [
        (F32, F32, 0, 0.0, True), (BF16, BF16, 0, 0.0, False), (F32, F32, 25, 3.0, True), (BF16, INT8, 0, 3.0, True),
        (F32, INT8, 70, 0.0, True), (F16, F16, 1, 0.0, True),
    ],
)  # fmt: skip
def test_a_row_in_many_pieces(
    compute: torch.dtype, kind: torch.dtype, window: int, softcap: float, causal: bool, random: torch.Generator
) -> None:
    """Rows that are cut, one that is not, one that sees nothing, and a decode."""
    seen: dict[str, Any] = {"causal": causal, "softcap": softcap}
    q, pages, place = step(SMALL, kind, random, [(0, 14), (100, 12), (69, 1), (25, 12), (-9, 9), (5, 0)])
    q = q.to(compute)
    check(run(q, pages, place, 0.25, window, **seen, prefill=MANY), q, pages, place, 0.25, window, **seen)


@pytest.mark.usefixtures("bare")
def test_a_row_too_long_to_be_cut_among_pieces(random: torch.Generator) -> None:
    """More queries than there is room for if each had a part: parts are then numbered by row."""
    q, pages, place = step(SMALL, F32, random, [(60, 10), (0, 40), (90, 12), (5, 0)])
    check(run(q, pages, place, prefill=MANY), q, pages, place, 0.25)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("rows", "tuning", "room", "pieces"),
    [
        ([(100, 12), (3, 12)], PREFILL, 80, 3),
        ([(100, 12), (3, 12)], PREFILL, 23, 1),  # fewer than queries
        ([(60, 10), (0, 40), (90, 12)], MANY, 107, 2),  # and parts are numbered by row
    ],
)
def test_parts_stay_within_their_room(
    rows: list[tuple[int, int]],
    tuning: AttentionTuning,
    room: int,
    pieces: int,
    random: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device that has programs for four pieces of a row, and on which there is room for fewer."""
    told: list[dict[str, Any]] = []
    cut = paged_triton._cut

    def noted(*given: Any) -> tuple[dict[str, Any], int]:
        rules, tiles = cut(*given)
        told.append(rules)
        return rules, tiles

    monkeypatch.setattr(paged_triton, "_cut", noted)
    monkeypatch.setattr(paged_triton, "_multiprocessors", lambda device: 2)
    monkeypatch.setattr(paged_triton, "ATTENTION_PARTS", room)
    q, pages, place = step(SMALL, F32, random, rows)
    check(run(q, pages, place, prefill=tuning), q, pages, place, 0.25)
    assert [rules["max_splits"] for rules in told] == [pieces]
    assert told[0]["partials"].shape[0] <= room * SMALL.heads


def test_a_prefill_that_cuts_nothing(random: torch.Generator) -> None:
    q, pages, place = step(SMALL, F32, random, [(60, 10), (0, 6)])
    check(run(q, pages, place, prefill=replace(PREFILL, split_queries=0)), q, pages, place, 0.25)


@pytest.mark.usefixtures("bare")
def test_layouts_share_no_counters(random: torch.Generator) -> None:
    """A launch does not see what a launch of another layout has counted: each layout has its own counters, or none."""
    q, pages, place = step(SMALL, F32, random)
    under_way = torch.ones_like(new_arrivals(torch.device("cpu")))  # a launch of another layout, half way
    expected = run(q, pages, place)
    own = replace(place, arrivals=new_arrivals(torch.device("cpu")))
    for each in (own, place, own):
        assert torch.equal(paged_attention_triton(q, pages, each, 0.25, decode=DECODE, prefill=PREFILL), expected)
    assert under_way.all()
    shared = paged_attention_triton(q, pages, replace(place, arrivals=under_way), 0.25, decode=DECODE, prefill=PREFILL)
    assert not torch.equal(shared, expected)  # what sharing would do
    few = replace(place, arrivals=torch.ones(3, dtype=torch.int32))  # too few: then they are left alone
    assert torch.equal(paged_attention_triton(q, pages, few, 0.25, decode=DECODE, prefill=PREFILL), expected)


def test_chunks_that_are_all_as_long_need_no_second_launch(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, pages, place = step(SMALL, F32, random, [(7, 20), (0, 20), (40, 20)])
    few = replace(  # fewer queries than the layout was made for
        place,
        query_starts=torch.tensor([0, 20, 38, 40], dtype=torch.int32),
        context_lengths=torch.tensor([27, 18, 2], dtype=torch.int32),
    )
    expected = [run(q, pages, each) for each in (place, few)]

    def refuse(*_: object) -> None:
        raise AssertionError("there is no row of few queries")

    monkeypatch.setattr("voxlane.engine.kernels.attention.paged_triton._decode", refuse)
    got = [run(q, pages, replace(each, max_query=20)) for each in (place, few)]
    assert torch.equal(got[0], expected[0])
    assert torch.allclose(got[1][:40], expected[1][:40], atol=1e-5)


@pytest.mark.usefixtures("bare")
def test_a_row_short_enough_to_be_cut_where_nothing_is(random: torch.Generator) -> None:
    """There is no room for parts in a launch whose rows may all have more queries than are cut."""
    q, pages, place = step(SMALL, F32, random, [(90, 40), (110, 40)])
    few = replace(
        place,
        query_starts=torch.tensor([0, 40, 50], dtype=torch.int32),
        context_lengths=torch.tensor([130, 120], dtype=torch.int32),
    )
    expected = paged_attention_ref(q[:50], pages, replace(few, positions=few.positions[:50]), 0.25)
    assert torch.allclose(run(q, pages, replace(few, max_query=40))[:50], expected, atol=1e-5)


def test_hopper_is_given_what_it_serves_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def served(*shape: int, q: torch.dtype = BF16, kind: torch.dtype = BF16, window: int = 0, cap: float = 0.0) -> bool:
        heads, kv_heads, dim, page = shape
        sides = (torch.empty((1, kv_heads, page, dim), dtype=kind) for _ in range(2))
        return by_hopper(torch.empty((1, heads, dim), dtype=q), Pages(*sides), window, cap)

    assert not served(16, 8, 128, 64)  # not on this device
    monkeypatch.setattr("voxlane.engine.kernels.attention.paged_triton._is_hopper", lambda device: True)
    assert served(16, 8, 128, 64)
    assert served(9, 3, 64, 64, q=F16, kind=F16)
    assert not served(16, 8, 128, 16)
    assert not served(16, 8, 96, 64)
    assert not served(16, 8, 128, 64, kind=INT8)
    assert not served(16, 8, 128, 64, q=F32, kind=F32)
    assert not served(16, 8, 128, 64, window=100)
    assert not served(16, 8, 128, 64, cap=30.0)


def test_no_tokens(random: torch.Generator) -> None:
    _, pages, place = step(SMALL, F32, random, [(0, 0)])
    assert run(torch.zeros((0, 3, 16)), pages, place).shape == (0, 48)


def test_large_scores_do_not_overflow(random: torch.Generator) -> None:
    q, pages, place = step(SMALL, F32, random, [(0, 20), (70, 1)])
    got, expected = run(q * 1e4, pages, place, 1.0), paged_attention_ref(q * 1e4, pages, place, 1.0)
    assert torch.allclose(got, expected, rtol=1e-3, atol=1e-3)


def test_nan_stays_in_its_row(random: torch.Generator) -> None:
    q, pages, place = step(SMALL, F32, random, [(0, 20), (70, 1), (50, 1)])
    clean = run(q, pages, place)
    pages.v[place.block_tables[1, 3].long()] = float("nan")
    got = run(q, pages, place)
    assert got[20].isnan().all()
    assert torch.equal(got[:20], clean[:20])
    assert torch.equal(got[21], clean[21])


@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40)), min_size=1, max_size=3),
    shape=st.builds(
        lambda kv, group, dim, block: Shape(kv * group, kv, dim * 4, block),
        *(st.integers(1, 2), st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 3, 16, 64])),
    ),
    types=st.sampled_from([(F32, F32), (F32, BF16), (F32, INT8), (BF16, INT8), (F16, INT8)]),
    window=st.sampled_from([0, 1, 7, 50]),
    decode=st.sampled_from([DECODE, EVEN]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=6)
def test_any_batch(
    rows: list[tuple[int, int]],
    shape: Shape,
    types: tuple[torch.dtype, torch.dtype],
    window: int,
    decode: AttentionTuning,
    seed: int,
) -> None:
    random = torch.Generator().manual_seed(seed)
    q, pages, place = step(shape, types[1], random, rows)
    q = q.to(types[0])
    check(run(q, pages, place, 0.2, window, decode=decode), q, pages, place, 0.2, window)


@triton.jit
def count_pieces(
    counts_at, lengths_at, out, rows, units,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, SPLIT_QUERIES: tl.constexpr,
):  # fmt: skip
    """Write how many pieces rows are cut into, all of them together and the one that has most."""
    index = tl.arange(0, ROWS)
    counts = tl.load(counts_at + index, mask=index < rows, other=0)
    lengths = tl.load(lengths_at + index, mask=index < rows, other=0)
    work = tl.sum(work_of(counts, lengths, TILE), 0)
    cuts = cuts_of(counts, lengths, work, units, SPLIT, SPLIT_QUERIES)
    tl.store(out, tl.sum(tl.cdiv(counts, TILE) * cuts, 0))
    tl.store(out + 1, tl.max(tl.where(counts > 0, cuts, 1), 0))


@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 131_072)), min_size=1, max_size=64),
    alike=st.booleans(),
    heads=st.sampled_from([(9, 3), (16, 8), (32, 8), (20, 20), (64, 1)]),
    way=st.sampled_from([hopper_tuning(dim, size) for dim in (64, 128) for size in (1, 1 << 20)]),
)
@settings(max_examples=examples(40))
def test_hopper_starts_a_program_for_every_piece(
    rows: list[tuple[int, int]], alike: bool, heads: tuple[int, int], way: AttentionTuning
) -> None:
    """By how the other kernel cuts: Hopper's own does the same, and cannot run here."""
    counts, lengths = zip(*[(rows[0][0] if alike else count, length) for count, length in rows], strict=True)
    tile = way.consumers * (128 // way.consumers // (heads[0] // heads[1]))
    with pytest.MonkeyPatch.context() as patch, torch.device("meta"):
        patch.setattr(paged_triton, "_multiprocessors", lambda device: 132)
        none, tables = torch.empty(0), torch.empty((len(rows), 2048))
        pages = Pages(torch.empty((1, heads[1], 64, 64)), none)
        place = Layout(none, none, none, torch.empty(len(rows)), tables, max_query=max(counts))
        rules, programs = paged_triton._cut(torch.empty((sum(counts), heads[0], 64)), pages, place, 64, tile, way)
    pieces = torch.zeros(2, dtype=torch.int32)
    given = (torch.tensor(each, dtype=torch.int32) for each in (counts, lengths))
    count_pieces[(1,)](*given, pieces, len(rows), rules["units"], 64, tile, way.split, way.split_queries)
    assert pieces[0] <= programs
    assert pieces[1] <= rules["max_splits"]


def test_what_does_not_fit_is_named(random: torch.Generator) -> None:
    q, pages, place = step(Shape(), F32, random, [(0, 40)])
    with pytest.raises(ValueError, match="window needs causal"):
        run(q, pages, place, 0.25, 5, causal=False)
    with pytest.raises(ValueError, match="contiguous"):
        run(q, replace(pages, k=pages.k.transpose(2, 3)), place)
    with pytest.raises(ValueError, match="contiguous"):
        run(q, pages, replace(place, block_tables=place.block_tables[:, ::2]))

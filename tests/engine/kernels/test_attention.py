"""paged_attention: against its reference and torch's own attention, and to the bit however the work is cut."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from voxlane.engine.kernels.attention.paged import gather, paged_attention, paged_attention_ref
from voxlane.engine.kernels.attention.pages import Layout, Pages

from .batches import Shape, filled, layout

KINDS = [torch.float32, torch.bfloat16, torch.int8]
SHAPES = [Shape(), Shape(9, 3, 64, 16), Shape(4, 4, 20, 5), Shape(8, 1, 128, 32), Shape(2, 1, 256, 16)]
WINDOWS = [(0, 0.0), (1, 0.0), (50, 0.0), (129, 30.0), (0, 5.0)]  # with soft caps
ROWS = [(0, 40), (300, 1), (129, 30), (0, 1), (127, 2), (5, 0), (260, 1)]


def step(shape: Shape, kind: torch.dtype, random: torch.Generator) -> tuple[Tensor, Pages, Layout]:
    table, pages = filled(shape, kind, [start + count for start, count in ROWS], random)
    place = layout(ROWS, table, shape.block_tokens)
    q = torch.randn((place.positions.shape[0], shape.heads, shape.head_dim), generator=random)
    return q, pages, place


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_native_matches_reference(
    kind: torch.dtype, shape: Shape, library: ctypes.CDLL, random: torch.Generator
) -> None:
    q, pages, place = step(shape, kind, random)
    scale = shape.head_dim**-0.5
    for window, softcap in WINDOWS:
        got = paged_attention(q, pages, place, scale, window, softcap=softcap)
        expected = paged_attention_ref(q, pages, place, scale, window, softcap=softcap)
        assert got.shape == (q.shape[0], shape.heads * shape.head_dim)
        assert torch.allclose(got, expected, rtol=1e-4, atol=2e-5), (window, softcap)


@pytest.mark.parametrize("kind", KINDS)
def test_cross_attention_sees_everything(kind: torch.dtype, library: ctypes.CDLL, random: torch.Generator) -> None:
    shape = Shape()
    table, pages = filled(shape, kind, [150, 0, 33], random)
    place = Layout(
        positions=torch.tensor([4, 5, 6, 0, 90], dtype=torch.int32),  # the decoder's own: of no meaning here
        slots=torch.full((5,), -1, dtype=torch.int32),
        query_starts=torch.tensor([0, 3, 4, 5], dtype=torch.int32),
        context_lengths=torch.tensor([150, 0, 33], dtype=torch.int32),
        block_tables=table,
    )
    q = torch.randn((5, shape.heads, shape.head_dim), generator=random)
    got = paged_attention(q, pages, place, 0.25, causal=False)
    assert torch.allclose(got, paged_attention_ref(q, pages, place, 0.25, causal=False), rtol=1e-4, atol=2e-5)
    assert (got[3] == 0.0).all()  # nothing to see
    k, v = (gather(pages, table[0], 150, part).repeat_interleave(3, dim=0) for part in ("k", "v"))
    expected = F.scaled_dot_product_attention(q[:3].transpose(0, 1), k, v, scale=0.25)
    assert torch.allclose(got[:3], expected.transpose(0, 1).flatten(1), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 12])
def test_thinned_keys_count_as_several(
    kind: torch.dtype, heads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    shape = Shape(heads, heads, 16, 16)
    table, pages = filled(shape, kind, [300, 40, 7], random)
    place = Layout(
        positions=torch.tensor([0, 1, 0, 5], dtype=torch.int32),
        slots=torch.full((4,), -1, dtype=torch.int32),
        query_starts=torch.tensor([0, 2, 3, 4], dtype=torch.int32),
        context_lengths=torch.tensor([300, 40, 7], dtype=torch.int32),
        block_tables=table,
        thinned_from=torch.tensor([130, 0, 7], dtype=torch.int32),  # in the middle of a tile; all keys; none
        thinned=3,
    )
    q = torch.randn((4, heads, 16), generator=random)
    got = paged_attention(q, pages, place, 0.3, causal=False)
    assert torch.allclose(got, paged_attention_ref(q, pages, place, 0.3, causal=False), rtol=1e-4, atol=2e-5)
    for row, (length, first, queries) in enumerate([(300, 130, q[:2]), (40, 0, q[2:3]), (7, 7, q[3:])]):
        parts = [gather(pages, table[row], length, part) for part in ("k", "v")]
        k, v = (torch.cat([one[:, :first], one[:, first:].repeat(1, 3, 1)], dim=1) for one in parts)
        expected = F.scaled_dot_product_attention(queries.transpose(0, 1), k, v, scale=0.3)
        start = int(place.query_starts[row])
        found = got[start : start + len(queries)]
        assert torch.allclose(found, expected.transpose(0, 1).flatten(1), rtol=1e-4, atol=2e-5)


def test_reference_matches_torch(random: torch.Generator) -> None:
    shape = Shape()
    table, pages = filled(shape, torch.float32, [70], random)
    q = torch.randn((70, shape.heads, shape.head_dim), generator=random)
    k, v = (gather(pages, table[0], 70, part).repeat_interleave(3, dim=0) for part in ("k", "v"))
    expected = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True)
    got = paged_attention_ref(q, pages, layout([(0, 70)], table, shape.block_tokens), shape.head_dim**-0.5)
    assert torch.allclose(got, expected.transpose(0, 1).flatten(1), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [Shape(), Shape(9, 3, 64, 16), Shape(4, 4, 20, 5)])
@pytest.mark.parametrize("window", [0, 100])
def test_bits_do_not_depend_on_chunks_batch_or_threads(
    kind: torch.dtype, shape: Shape, window: int, threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    length = 420
    table, pages = filled(shape, kind, [length, 50], random)
    q = torch.randn((length, shape.heads, shape.head_dim), generator=random)
    other = torch.randn((9, shape.heads, shape.head_dim), generator=random)
    library.vox_set_threads(1)
    whole = paged_attention(q, pages, layout([(0, length)], table[:1], shape.block_tokens), 0.3, window)
    library.vox_set_threads(threads)
    for chunk in (1, 3, 16, 100, length):
        starts = range(0, length, chunk) if chunk > 1 else (0, 1, 127, 128, 129, 255, 256, 300, 419)
        for start in starts:
            count = min(chunk, length - start)
            place = layout([(start, count)], table[:1], shape.block_tokens)
            got = paged_attention(q[start : start + count], pages, place, 0.3, window)
            assert torch.equal(got, whole[start : start + count]), (chunk, start)
    place = layout([(200, 7), (41, 9)], table, shape.block_tokens)
    got = paged_attention(torch.cat((q[200:207], other)), pages, place, 0.3, window)
    assert torch.equal(got[:7], whole[200:207])


@given(
    rows=st.lists(st.tuples(st.integers(0, 290), st.integers(0, 9)), min_size=1, max_size=4),
    shape=st.builds(
        lambda kv, group, dim, block: Shape(kv * group, kv, dim * 4, block),
        *(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.sampled_from([1, 3, 8, 16])),
    ),
    kind=st.sampled_from(KINDS),
    window=st.sampled_from([0, 1, 7, 130]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=examples(40))
def test_any_batch(
    rows: list[tuple[int, int]], shape: Shape, kind: torch.dtype, window: int, seed: int, library: ctypes.CDLL
) -> None:
    random = torch.Generator().manual_seed(seed)
    table, pages = filled(shape, kind, [start + count for start, count in rows], random)
    place = layout(rows, table, shape.block_tokens)
    q = torch.randn((place.positions.shape[0], shape.heads, shape.head_dim), generator=random)
    got = paged_attention(q, pages, place, 0.2, window)
    assert torch.allclose(got, paged_attention_ref(q, pages, place, 0.2, window), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nan_reaches_only_those_who_may_see_it(
    kind: torch.dtype, library: ctypes.CDLL, random: torch.Generator
) -> None:
    """A masked value is not even multiplied by zero: a later token's NaN cannot change an earlier one's bits."""
    shape = Shape()
    table, pages = filled(shape, kind, [60, 60], random)
    place = layout([(0, 60), (0, 60)], table, shape.block_tokens)
    q = torch.randn((120, shape.heads, shape.head_dim), generator=random)
    clean = paged_attention(q, pages, place, 0.3, 20)
    block, offset = int(table[0, 31 // shape.block_tokens]), 31 % shape.block_tokens
    pages.v[block, :, offset] = float("nan")
    got = paged_attention(q, pages, place, 0.3, 20)
    sees = list(range(31, 51))  # the window of 20 ends its reach
    assert got[sees].isnan().all()
    rest = [n for n in range(120) if n not in sees]
    assert torch.equal(got[rest], clean[rest])


def test_nan_query_stays_alone(library: ctypes.CDLL, random: torch.Generator) -> None:
    q, pages, place = step(Shape(), torch.float32, random)
    clean = paged_attention(q, pages, place, 0.3)
    q[5, 2, 3] = float("nan")
    got = paged_attention(q, pages, place, 0.3).view(clean.shape[0], 6, 16)
    assert got[5, 2].isnan().all()
    got[5, 2] = clean.view(-1, 6, 16)[5, 2]
    assert torch.equal(got.view(clean.shape), clean)


def test_no_tokens(library: ctypes.CDLL, random: torch.Generator) -> None:
    shape = Shape()
    table, pages = filled(shape, torch.float32, [0], random)
    got = paged_attention(torch.zeros((0, 6, 16)), pages, layout([(0, 0)], table, 16), 1.0)
    assert got.shape == (0, 96)


def test_large_scores_do_not_overflow(library: ctypes.CDLL, random: torch.Generator) -> None:
    q, pages, place = step(Shape(), torch.float32, random)
    got = paged_attention(q * 1e4, pages, place, 1.0)
    assert torch.allclose(got, paged_attention_ref(q * 1e4, pages, place, 1.0), rtol=1e-3, atol=1e-3)


def test_what_does_not_fit_is_named(random: torch.Generator) -> None:
    q, pages, place = step(Shape(), torch.float32, random)
    with pytest.raises(ValueError, match="multiple of 2 heads"):
        paged_attention(q[:, :5].contiguous(), pages, place, 1.0)
    with pytest.raises(ValueError, match="head_dim 6"):
        paged_attention(q[..., :6].contiguous(), pages, place, 1.0)
    with pytest.raises(ValueError, match="do not hold"):
        paged_attention(q[..., :8].contiguous(), pages, place, 1.0)

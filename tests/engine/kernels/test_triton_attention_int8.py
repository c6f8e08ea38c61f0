"""Decodes over int8 pages in Triton, interpreted on the CPU: queries as two integers, values four to a word."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.triton_tuning import AttentionTuning, decode_tuning

from .attention_steps import BF16, DECODE, EVEN, F16, INT8, SMALL, check, run, step
from .batches import Shape

# The interpreter computes in numpy, which warns where a GPU gives an infinity or a NaN and goes on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.usefixtures("interpreter"),
]

DRAFTS = [(90, 3), (60, 4), (31, 2), (0, 1), (0, 4), (5, 0)]
"""Rows (start, count) of a few queries each, of which the oldest see less than the newest; one row has none."""

PAIR = Shape(4, 2, 64, 16)


@pytest.mark.parametrize(
    ("shape", "compute"),
    [
        (Shape(4, 2, 64, 64), BF16),
        (Shape(2, 1, 64, 64), F16),
        (Shape(2, 1, 64, 32), BF16),  # a tile of two pages
        (Shape(2, 2, 64, 5), BF16),
        (Shape(2, 1, 80, 16), F16),
        (Shape(2, 2, 96, 64), BF16),  # columns that no number fills
        (Shape(4, 1, 128, 64), BF16),  # two tiles in a page
        (Shape(2, 1, 128, 16), F16),
        (Shape(2, 1, 256, 64), BF16),
        (Shape(16, 1, 64, 64), BF16),  # more heads than a group of eight
        (Shape(20, 1, 20, 32), F16),
    ],
)
def test_every_shape_as_it_is_served(shape: Shape, compute: torch.dtype, random: torch.Generator) -> None:
    q, pages, place = step(shape, INT8, random, [(129, 1), (63, 1), (64, 1), (0, 1), (-1, 1)])
    q = q.to(compute)
    got = run(q, pages, replace(place, max_query=1), 0.1, decode=decode_tuning(shape.head_dim, INT8))
    check(got, q, pages, place, 0.1)
    assert (got[4] == 0.0).all()


@pytest.mark.parametrize("decode", [DECODE, EVEN])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (0, 3.0), (1, 0.0), (17, 3.0), (48, 0.0)])
def test_drafts_see_what_is_theirs(
    window: int, softcap: float, decode: AttentionTuning, random: torch.Generator
) -> None:
    """Tiles that all queries see are not masked: what only some of them see, or none any more, is."""
    q, pages, place = step(PAIR, INT8, random, DRAFTS)
    q = q.to(BF16)
    got = run(q, pages, replace(place, max_query=4), 0.25, window, softcap=softcap, decode=decode)
    check(got, q, pages, place, 0.25, window, softcap=softcap)


def test_queries_in_two_parts_keep_what_is_small_and_what_is_not_a_number(random: torch.Generator) -> None:
    """Over int8 pages a query is two integers: one number a thousand times the others, zeros, a NaN, an infinity."""
    q, pages, place = step(SMALL, INT8, random, [(70, 1), (50, 1), (40, 1), (33, 1), (20, 1)])
    place = replace(place, max_query=1)
    q[0, :, 0] *= 1000.0
    q[1] = 0.0
    q = q.to(BF16)
    check(run(q, pages, place, 0.01), q, pages, place, 0.01)
    clean = run(q, pages, place)
    q[2, 1, 3], q[3, 0, 0] = float("nan"), float("inf")
    got = run(q, pages, place)
    assert torch.equal(got[[0, 1, 4]], clean[[0, 1, 4]])
    assert got[2, 16:32].isnan().all()
    assert got[3, :16].isnan().all()


@pytest.mark.parametrize(
    ("size", "scale", "softcap"),
    [(1e30, 2.5e-31, 0.0), (1e-20, 2.5e19, 3.0), (1e-36, 0.25, 0.0), (0.0, 0.25, 0.0), (0.0, 0.25, 3.0)],
)
def test_queries_of_any_size(size: float, scale: float, softcap: float, random: torch.Generator) -> None:
    """Huge, tiny, too small for any key to matter, or zero; the first query of each row has equal numbers."""
    q, pages, place = step(PAIR, INT8, random, [(70, 1), (30, 2)])
    q[:, 0] = 1.0
    q[:, 1] = -1.0
    q = (q * size).to(BF16)
    got = run(q, pages, replace(place, max_query=2), scale, softcap=softcap)
    check(got, q, pages, place, scale, softcap=softcap)


@pytest.mark.parametrize(
    ("number", "window", "softcap"),
    [(float("nan"), 0, 0.0), (float("inf"), 20, 0.0), (float("-inf"), 0, 3.0), (float("nan"), 20, 3.0)],
)
def test_what_is_not_a_number_stays_in_its_query(
    number: float, window: int, softcap: float, random: torch.Generator
) -> None:
    """Also among queries and heads that one program serves, and where the row is cut into pieces."""
    q, pages, place = step(PAIR, INT8, random, [(80, 3), (20, 1)])
    q = q.to(BF16)
    place = replace(place, max_query=3)
    clean = heads_of(run(q, pages, place, 0.25, window, softcap=softcap), PAIR)
    q[1, 2, 5] = number
    got = heads_of(run(q, pages, place, 0.25, window, softcap=softcap), PAIR)
    spoilt = torch.zeros(q.shape[:2], dtype=torch.bool)
    spoilt[1, 2] = True
    assert got[spoilt].isnan().all()
    assert torch.equal(got[~spoilt], clean[~spoilt])


def test_scales_that_are_not_numbers_stay_in_their_row(random: torch.Generator) -> None:
    q, pages, place = step(PAIR, INT8, random, [(40, 1), (70, 1)])
    q, place = q.to(BF16), replace(place, max_query=1)
    clean = run(q, pages, place)
    assert pages.v_scale is not None
    pages.v_scale[place.block_tables[1, 2].long()] = float("nan")
    got = run(q, pages, place)
    assert torch.equal(got[0], clean[0])
    assert got[1].isnan().all()


def heads_of(out: Tensor, shape: Shape) -> Tensor:
    return out.view(-1, shape.heads, shape.head_dim)

"""Word times from weights whose answer is known, and the path search against a plain one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from voxlane.engine.audio.word_times import Word, cheapest_path, token_states, word_times


def staircase(ends: list[int], states: int, heads: int = 3) -> torch.Tensor:
    """Return weights in which row i looks at the states from ends[i - 1] to ends[i], with noise on all of them."""
    noise = torch.rand((heads, len(ends), states), generator=torch.Generator().manual_seed(1)) * 0.1
    begin = 0
    for row, end in enumerate(ends):
        noise[:, row, begin:end] += 1.0
        begin = end
    return noise / noise.sum(dim=-1, keepdim=True)


def test_tokens_begin_where_they_are_looked_at() -> None:
    assert token_states(staircase([20, 35, 70, 90, 100], 100)) == pytest.approx([0, 20, 35, 70, 90], abs=2)


def test_a_clip_shorter_than_the_filter() -> None:
    assert token_states(torch.full((2, 3, 2), 0.5)) == sorted(token_states(torch.full((2, 3, 2), 0.5)))
    assert token_states(torch.ones((1, 1, 1))) == [0]


def test_pieces_become_words() -> None:
    pieces = [b" Hel", b"lo", b",", b" w", "ö".encode()[:1], "ö".encode()[1:], b"rld", b".", b" "]
    states = [1, 2, 3, 5, 6, 6, 7, 8, 9, 10]
    assert word_times(pieces, states, 0.5) == [Word("Hello,", 0.5, 2.5), Word("wörld.", 2.5, 4.5)]
    assert word_times([], [0], 0.5) == []


def cheapest(cost: NDArray[np.float64]) -> float:
    """Return the cost of the cheapest path, cell by cell."""
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for row in range(rows):
        for column in range(columns):
            before = min(total[row, column], total[row, column + 1], total[row + 1, column])
            total[row + 1, column + 1] = cost[row, column] + before
    return float(total[rows, columns])


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.integers(-9, 9).map(float))
)
def test_the_path_is_a_cheapest_one(cost: NDArray[np.float64]) -> None:
    path = cheapest_path(cost)
    assert (path[0], path[-1]) == ((0, 0), (cost.shape[0] - 1, cost.shape[1] - 1))
    steps = {(row - above, column - left) for (above, left), (row, column) in itertools.pairwise(path)}
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert sum(cost[cell] for cell in path) == cheapest(cost)

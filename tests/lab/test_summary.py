"""Distributions with n, and Wilson intervals against published values."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane_lab.metrics import StepFigures
from voxlane_lab.summary import Distribution, distribution, share_of, summarise, wilson
from voxlane_lab.values import StepResult


def step(result: StepResult = "done", **values: Any) -> StepFigures:
    return StepFigures(0, "a step", "stop", result, values)


# Newcombe 1998 (81 of 263, 15 of 148, 0 of 20, 1 of 29) and Brown, Cai and DasGupta's form of the interval.
@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_wilson_interval_has_known_values(hits: int, n: int, low: float, high: float) -> None:
    assert wilson(hits, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
@settings(deadline=None, max_examples=examples(300))
def test_the_wilson_interval_contains_the_share(drawn: tuple[int, int]) -> None:
    hits, n = drawn
    found = share_of(hits, n)
    assert 0 <= found.low <= found.share <= found.high <= 1
    assert found.high - found.low > 0
    mirrored = share_of(n - hits, n)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low))


def test_a_distribution_carries_its_n() -> None:
    assert distribution([400.0, 100.0, 300.0, 200.0, 500.0]) == Distribution(5, 300.0, 480.0, 100.0, 500.0, 300.0)
    assert distribution([7.0]) == Distribution(1, 7.0, 7.0, 7.0, 7.0, 7.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
@settings(deadline=None, max_examples=examples(200))
def test_percentiles_are_in_order(values: list[float]) -> None:
    found = distribution(values)
    assert found.n == len(values)
    assert found.min <= found.p50 <= found.p95 <= found.max
    assert found.p95 == pytest.approx(np.quantile(values, 0.95))


def test_a_summary_leaves_out_what_is_not_measured() -> None:
    steps = [
        step(yield_ms=300.0, missed=False, stale_ms=None),
        step(yield_ms=500.0, missed=True),
        step("late", yield_ms=None, missed=None),
    ]
    found = summarise(steps)
    assert found.numbers == {"yield_ms": distribution([300.0, 500.0])}
    assert found.flags == {"missed": share_of(1, 2)}
    assert found.steps == {"done": 2, "late": 1}


def test_a_count_has_a_distribution() -> None:
    assert summarise([step(split_turns=2), step(split_turns=1)]).numbers["split_turns"].max == 2


def test_nothing_gives_nothing() -> None:
    found = summarise([])
    assert (found.numbers, found.flags, found.steps) == ({}, {}, {})

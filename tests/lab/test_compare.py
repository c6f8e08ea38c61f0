"""Comparing runs: a server does not differ from itself, and a true difference is found."""

from __future__ import annotations

from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane_lab.compare import LEVEL, able_to_differ, compare, holm, signed_rank
from voxlane_lab.metrics import METRICS, StepFigures
from voxlane_lab.results import CallResult, RunResult, ScenarioResult
from voxlane_lab.summary import Summary

NUMBERS = [name for name, metric in METRICS.items() if metric.kind == "number"]
FLAGS = [name for name, metric in METRICS.items() if metric.kind == "flag"]


def result(rows: list[list[dict[str, Any]]], name: str = "hard_stop") -> RunResult:
    """Return a run of one scenario: calls, steps, values."""
    calls = [
        CallResult(
            repeat=repeat,
            steps=[StepFigures(number, "", "stop", "done", values) for number, values in enumerate(steps)],
        )
        for repeat, steps in enumerate(rows)
    ]
    return RunResult(scenarios=[ScenarioResult(name=name, calls=calls, summary=Summary(), gates=[])])


def measured(
    seed: int, calls: int = 20, *, steps: int = 2, shift_ms: float = 0.0, spread_ms: float = 60.0, tail: float = 0.05
) -> RunResult:
    """Return a run with noise: values around 400 ms, a share `tail` of them 400 ms slower on average, in ticks."""
    chance = np.random.default_rng(seed)

    def number() -> float:
        slow = chance.exponential(400.0) if chance.random() < tail else 0.0
        return float(np.round((400 + chance.normal(0, spread_ms) + slow) / 20) * 20)

    def values() -> dict[str, Any]:
        found: dict[str, Any] = {name: number() for name in NUMBERS}
        found |= {name: bool(chance.random() < 0.15) for name in FLAGS}
        found["yield_ms"] += shift_ms
        return found

    return result([[values() for _ in range(steps)] for _ in range(calls)])


def verdicts(first: RunResult, second: RunResult) -> dict[str, str]:
    return {one.metric: one.verdict for one in compare(first, second).differences}


@pytest.mark.parametrize("spread_ms", [60.0, 300.0])
def test_a_server_does_not_differ_from_itself_in_20_of_20_runs(spread_ms: float) -> None:
    for seed in range(examples(20)):
        one = measured(1000 + seed, spread_ms=spread_ms)
        other = measured(2000 + seed, spread_ms=spread_ms)
        assert set(verdicts(one, other).values()) == {"no difference"}, seed


def test_a_true_shift_of_150_ms_in_20_pairs_is_found() -> None:
    for seed in range(examples(20)):
        noise: dict[str, Any] = {"steps": 1, "tail": 0.0}
        found = verdicts(measured(3000 + seed, **noise), measured(4000 + seed, shift_ms=150.0, **noise))
        assert found.pop("yield_ms") == "worse", seed
        assert set(found.values()) == {"no difference"}, seed


@pytest.mark.soak
def test_a_true_shift_is_mostly_found_among_calls_that_are_slow_by_chance() -> None:
    found = [verdicts(measured(5000 + seed), measured(6000 + seed, shift_ms=150.0))["yield_ms"] for seed in range(20)]
    assert found.count("worse") >= 17
    assert "better" not in found


def test_an_improvement_is_better() -> None:
    comparison = compare(measured(1, shift_ms=150.0), measured(2))
    found = {one.metric: one for one in comparison.differences}["yield_ms"]
    assert found.verdict == "better"
    assert found.high < 0 < found.before - found.after
    assert comparison.worse == []


def test_less_than_a_tick_does_not_matter() -> None:
    one = result([[{"yield_ms": 400.0 + number}] for number in range(100)])
    other = result([[{"yield_ms": 415.0 + number}] for number in range(100)])
    (found,) = compare(one, other).differences
    assert (found.difference, found.low, found.high, found.verdict) == (15.0, 15.0, 15.0, "no difference")


def test_a_flag_that_is_always_set_now_is_worse() -> None:
    one, other = (result([[{"missed": value}]] * 20) for value in (False, True))
    (found,) = compare(one, other).differences
    assert (found.before, found.after, found.difference, found.verdict) == (0.0, 1.0, 1.0, "worse")


def test_metrics_that_are_equal_in_all_pairs_do_not_hide_the_others() -> None:
    """Ten calls can tell a difference in every call, beside any number of metrics that never differ."""
    equal: dict[str, Any] = dict.fromkeys(NUMBERS, 0.0) | dict.fromkeys(FLAGS, False)
    one, other = (result([[{**equal, "yield_ms": value}]] * 10) for value in (100.0, 900.0))
    found = verdicts(one, other)
    assert found.pop("yield_ms") == "worse"
    assert len(found) > 10
    assert set(found.values()) == {"no difference"}


def test_a_metric_that_differs_too_rarely_to_tell_is_said_to_have_too_few_pairs() -> None:
    """Four metrics differ in all of eight calls: by chance that happens more often than the level allows."""
    names = NUMBERS[:4]
    one, other = (result([[dict.fromkeys(names, value)]] * 8) for value in (100.0, 900.0))
    assert set(verdicts(one, other).values()) == {"too few pairs"}


@settings(max_examples=examples(100))
@given(st.dictionaries(st.integers(), st.integers(0, 30).map(lambda calls: 2 * 0.5**calls), max_size=20))
def test_no_more_metrics_are_tested_than_the_level_allows(least: dict[int, float]) -> None:
    able, limit = able_to_differ({str(name): chance for name, chance in least.items()})
    assert len(able) * limit <= LEVEL * (1 + 1e-9)
    assert able == {str(name) for name, chance in least.items() if chance <= limit}


def test_few_calls_say_nothing() -> None:
    (found,) = compare(result([[{"yield_ms": 100.0}]] * 5), result([[{"yield_ms": 900.0}]] * 5)).differences
    assert (found.verdict, found.calls) == ("too few pairs", 5)


def test_steps_of_one_call_are_one_case() -> None:
    (found,) = compare(result([[{"yield_ms": 100.0}] * 50] * 3), result([[{"yield_ms": 900.0}] * 50] * 3)).differences
    assert (found.pairs, found.calls, found.verdict) == (150, 3, "too few pairs")


def test_only_what_both_have_measured_is_compared() -> None:
    one = result([[{"yield_ms": 100.0, "missed": None}, {"yield_ms": 100.0}]] * 7)
    other = result([[{"yield_ms": None, "missed": True}]] * 7 + [[{"yield_ms": 1.0}]])
    comparison = compare(one, other)
    assert comparison.differences == []
    assert (comparison.only_first, comparison.only_second) == (7, 1)


def test_the_testers_lateness_is_not_compared() -> None:
    assert compare(result([[{"late_ms": 1.0}]] * 20), result([[{"late_ms": 90.0}]] * 20)).differences == []


def test_scenarios_are_paired_by_name() -> None:
    assert compare(result([[{"yield_ms": 1.0}]]), result([[{"yield_ms": 1.0}]], "another")).differences == []


def test_the_same_seed_gives_the_same_comparison() -> None:
    one, other = measured(1), measured(2)
    assert compare(one, other, seed=7) == compare(one, other, seed=7)


@given(st.integers(0, 10_000), st.integers(6, 30), st.sampled_from((0.0, 60.0, 150.0)))
@settings(deadline=None, max_examples=examples(30))
def test_the_comparison_is_its_own_mirror(seed: int, calls: int, shift_ms: float) -> None:
    one, other = measured(seed, calls), measured(seed + 1, calls, shift_ms=shift_ms)
    opposite = {"better": "worse", "worse": "better"}
    for there, back in zip(compare(one, other).differences, compare(other, one).differences, strict=True):
        assert back.metric == there.metric
        assert (back.before, back.after) == (there.after, there.before)
        assert back.difference == pytest.approx(-there.difference)
        assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
        assert back.chance == pytest.approx(there.chance)
        assert back.verdict == opposite.get(there.verdict, there.verdict)


# ---- the statistics


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
@settings(deadline=None, max_examples=examples(100))
def test_the_signed_rank_test_counts_all_signs(values: list[int]) -> None:
    kept = [value for value in values if value]
    sizes = sorted(map(abs, kept))
    ranks = [sizes.index(abs(value)) + (sizes.count(abs(value)) + 1) / 2 for value in kept]
    seen = sum(rank for rank, value in zip(ranks, kept, strict=True) if value > 0)
    every = [
        sum(rank for rank, plus in zip(ranks, signs, strict=True) if plus)
        for signs in product((0, 1), repeat=len(kept))
    ]
    expected = sum(one >= seen for one in every) / len(every)
    assert signed_rank(np.array(values, np.float64)) == pytest.approx(expected)


def test_the_signed_rank_test_of_many_values_is_near_the_exact_one() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 61)
    assert signed_rank(values) == pytest.approx(signed_rank(values[:60]), rel=0.5)


def test_holms_correction() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({}) == {}

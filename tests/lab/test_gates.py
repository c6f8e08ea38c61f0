"""Gates: met, missed, not measurable; and clear errors for what does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from voxlane_lab import scenario_library
from voxlane_lab.errors import LabError
from voxlane_lab.gates import DEFAULT_GATES, FEWEST, GateLimit, gate_limits, judge
from voxlane_lab.metrics import METRICS, StepFigures
from voxlane_lab.scenario import read_scenario
from voxlane_lab.summary import Summary, share_of, summarise


def summary(count: int = 1, **values: Any) -> Summary:
    return summarise([StepFigures(0, "a step", "stop", "done", values)] * count)


@pytest.mark.parametrize(("value", "verdict"), [(499.9, "met"), (500.0, "met"), (500.0004, "met"), (500.001, "missed")])
def test_a_limit_is_the_most_that_is_allowed(value: float, verdict: str) -> None:
    (found,) = judge(summary(yield_ms=value), {"yield_ms": {"p95": 500}})
    assert (found.verdict, found.value, found.n, found.limit) == (verdict, value, 1, 500)


@pytest.mark.parametrize("statistic", ["p50", "p95", "max", "min", "mean"])
def test_every_statistic_of_a_number(statistic: str) -> None:
    steps = [StepFigures(0, "", "stop", "done", {"yield_ms": value}) for value in (100.0, 200.0, 600.0)]
    expected = {"p50": 200.0, "p95": 560.0, "max": 600.0, "min": 100.0, "mean": 300.0}[statistic]
    (found,) = judge(summarise(steps), {"yield_ms": {statistic: expected}})
    assert (found.value, found.verdict) == (pytest.approx(expected), "met")


def test_without_a_statistic_p95_and_share_are_meant() -> None:
    assert gate_limits({"yield_ms": 500, "missed": 0.1}) == [
        GateLimit("missed", "share", 0.1),
        GateLimit("yield_ms", "p95", 500.0),
    ]


@pytest.mark.parametrize(("count", "verdict"), [(FEWEST - 1, "not_measurable"), (FEWEST, "missed")])
def test_a_share_of_few_events_is_not_gated(count: int, verdict: str) -> None:
    (found,) = judge(summary(count, missed=True), {"missed": {"share": 0.0}})
    assert (found.verdict, found.value, found.n) == (verdict, 1.0, count)
    assert found.reason == (f"too few to gate: {count} of at least 10" if count < FEWEST else "")


def test_a_share_carries_its_interval() -> None:
    (found,) = judge(summary(20, missed=False), {"missed": {"share": 0.0}})
    expected = share_of(0, 20)
    assert (found.verdict, found.low, found.high) == ("met", expected.low, expected.high)


@pytest.mark.parametrize("gate", ["yield_ms", "missed"])
def test_what_no_step_measures_is_not_measurable(gate: str) -> None:
    (found,) = judge(summary(), {gate: 0})
    assert (found.verdict, found.value, found.reason) == ("not_measurable", None, "no step has measured it")


def test_without_gates_the_default_ones_that_are_measured_are_judged() -> None:
    found = judge(summary(12, yield_ms=1600.0, missed=False), {})
    assert [(gate.metric, gate.verdict) for gate in found] == [("missed", "met"), ("yield_ms", "missed")]


def test_own_gates_replace_the_default_ones() -> None:
    assert [gate.metric for gate in judge(summary(12, yield_ms=1600.0, missed=True), {"yield_ms": 2000})] == [
        "yield_ms"
    ]


def test_the_default_gates_exist() -> None:
    assert {gate.metric for gate in gate_limits(DEFAULT_GATES)} <= METRICS.keys()


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        ({"yeld_ms": 5}, "mhm: there is no metric yeld_ms; metrics are yield_ms, mute_ms"),
        ({"yield_ms": {"p99": 5}}, "mhm: yield_ms has no p99; it has p50, p95, max, min, mean"),
        ({"missed": {"p95": 5}}, "mhm: missed has no p95; it has share"),
        ({"yield_ms": {"share": 0.5}}, "mhm: yield_ms has no share; it has p50"),
        ({"yield_ms": {"p95": -1}}, "mhm: the limit of yield_ms.p95 must be a number of 0 or more"),
        ({"yield_ms": float("nan")}, "mhm: the limit of yield_ms.p95 must be a number of 0 or more"),
        ({"a\nb": 5}, r'mhm: there is no metric "a\nb"'),
    ],
)
def test_a_gate_on_nothing_is_an_error(gates: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError) as error:
        gate_limits(gates, name="mhm")
    assert error.value.args[0].startswith(message)


def test_the_gates_of_all_scenarios_exist() -> None:
    files = sorted((Path(scenario_library.__file__).parent / "scenarios").glob("*.toml"))
    assert files
    for file in files:
        gate_limits(read_scenario(file.read_text(), name=file.name).gates, name=file.name)

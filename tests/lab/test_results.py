"""result.json: the same bytes for the same result, clear errors for other files, and the exit code."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane_lab.errors import LabError
from voxlane_lab.gates import GateVerdict, judge
from voxlane_lab.metrics import METRICS, StepFigures
from voxlane_lab.results import (
    CallResult,
    GateResult,
    RunResult,
    ScenarioResult,
    decode,
    encode,
    exit_code,
    why_not_measurable,
)
from voxlane_lab.summary import Summary, summarise
from voxlane_lab.values import StepResult


def step(result: StepResult = "done", **values: Any) -> StepFigures:
    return StepFigures(1, "2 Stop!", "stop", result, dict.fromkeys(METRICS) | values)


def run(*calls: CallResult, gates: dict[str, Any] | None = None) -> RunResult:
    summary = summarise([one for call in calls for one in call.steps])
    verdicts = judge(summary, gates or {"yield_ms": {"p95": 500}})
    return RunResult(
        scenarios=[ScenarioResult(name="hard_stop", calls=list(calls), summary=summary, gates=verdicts)],
        dialect="native",
        url="ws://127.0.0.1/v1/live",
    )


def call(*steps: StepFigures, repeat: int = 0, failure: str = "") -> CallResult:
    return CallResult(repeat=repeat, steps=list(steps), failure=failure)


def judged(*verdicts: GateVerdict) -> RunResult:
    gates = [GateResult("yield_ms", "p95", 500.0, verdict) for verdict in verdicts]
    scenario = ScenarioResult(name="a", calls=[call(step(yield_ms=1.0))], summary=Summary(), gates=gates)
    return RunResult(scenarios=[scenario])


def test_a_result_is_read_as_it_was_written() -> None:
    result = run(call(step(yield_ms=412.5, missed=False, split_turns=2.0), step("late")))
    found = decode(encode(result))
    assert found.scenarios[0].calls == result.scenarios[0].calls
    assert found.gates == result.gates
    assert found.scenarios[0].summary.numbers == result.scenarios[0].summary.numbers
    assert found.scenarios[0].summary.flags["missed"].high == pytest.approx(0.793, abs=5e-4)


def test_the_bytes_are_sorted_rounded_and_end_with_a_line() -> None:
    data = encode(run(call(step(yield_ms=1 / 3 * 1000, missed=True, talk_over_ms=-0.0))))
    assert data.endswith(b"}\n")
    found = json.loads(data)
    assert list(found) == sorted(found)
    values = found["scenarios"][0]["calls"][0]["steps"][0]["values"]
    assert list(values) == sorted(METRICS)
    assert (values["yield_ms"], values["missed"], values["pause_ms"]) == (333.333, True, None)
    assert b"-0.0" not in data


@given(st.permutations(list(METRICS)), st.floats(0, 1e5))
@settings(deadline=None, max_examples=examples(50))
def test_the_order_of_making_does_not_matter(names: list[str], value: float) -> None:
    one = run(call(StepFigures(0, "", "stop", "done", dict.fromkeys(METRICS, value))))
    other = run(call(StepFigures(0, "", "stop", "done", dict.fromkeys(names, value))))
    assert encode(one) == encode(other)
    assert encode(decode(encode(one))) == encode(one)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "old.json: not JSON, so it is no result of voxlane lab"),
        (b"\xff\xfe", "old.json: not JSON, so it is no result of voxlane lab"),
        (b"[" * 100_000, "old.json: not JSON, so it is no result of voxlane lab"),
        (b"[1]", "old.json: not a result of voxlane lab"),
        (b'{"format": "another tool"}', "old.json: not a result of voxlane lab"),
        (b'{"format": "voxlane lab"}', "old.json: written by another version of voxlane lab: this one reads version 1"),
        (b'{"format": "voxlane lab", "version": 2, "scenarios": 3}', "old.json: written by another version"),
        (b'{"format": "voxlane lab", "version": 1}', "old.json: scenarios must be"),
        (b'{"format": "voxlane lab", "version": 1, "scenarios": [{}]}', "old.json: scenarios[0].name must be"),
    ],
)
def test_another_file_is_a_clear_error(data: bytes, message: str) -> None:
    with pytest.raises(LabError) as error:
        decode(data, name="old.json")
    assert error.value.args[0].startswith(message)
    assert "\n" not in error.value.args[0]


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=examples(200))
def test_garbage_is_always_a_config_error(data: bytes) -> None:
    with pytest.raises(LabError):
        decode(data)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["met"], 0),
        (["met", "not_measurable"], 0),
        (["met", "missed"], 1),
        (["missed", "not_measurable"], 1),
        (["not_measurable"], 2),
        ([], 2),
    ],
)
def test_the_exit_code_of_gates(verdicts: list[GateVerdict], code: int) -> None:
    assert exit_code(judged(*verdicts)) == code


def test_a_call_that_failed_makes_the_run_not_measurable() -> None:
    result = run(call(step(yield_ms=100.0)), call(repeat=1, failure="the server closed the connection (code 1011)"))
    assert exit_code(result) == 2
    assert why_not_measurable(result) == "hard_stop, call 2: the server closed the connection (code 1011)"


@pytest.mark.parametrize(("late", "code"), [(1, 0), (2, 2)])
def test_a_late_tester_makes_the_run_not_measurable(late: int, code: int) -> None:
    steps = [step("late")] * late + [step(yield_ms=100.0)] * (10 - late)
    assert exit_code(run(call(*steps))) == code


def test_a_late_tester_is_not_a_bad_grade() -> None:
    assert exit_code(run(call(*[step("late")] * 5, *[step(yield_ms=9000.0)] * 5))) == 2


def test_a_run_that_measures_says_no_reason() -> None:
    assert why_not_measurable(run(call(step(yield_ms=100.0)))) == ""

"""JUnit: what a CI system reads of a run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as xml

import msgspec
import pytest
from lab_example import run

from voxlane_lab.gates import GateResult
from voxlane_lab.report.junit import gate_words, junit, write_junit
from voxlane_lab.results import RunResult, exit_code


@pytest.fixture(scope="module")
def three() -> RunResult:
    """A good call, one with stale sound, and one false stop."""
    return run()[0]


def changed(result: RunResult, **changes: object) -> RunResult:
    """Return a run whose only scenario is another."""
    return msgspec.structs.replace(result, scenarios=[msgspec.structs.replace(result.scenarios[0], **changes)])


def test_a_suite_for_the_scenario_and_a_case_for_each_gate(three: RunResult, tmp_path: Path) -> None:
    write_junit(three, tmp_path / "junit.xml")
    root = xml.parse(tmp_path / "junit.xml").getroot()
    (suite,) = root.findall("testsuite")
    assert suite.get("name") == "mhm, then stop"
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "0", "skipped": "2"}
    assert {name: root.get(name) for name in counts} == counts
    states = {case.get("name"): [child.tag for child in case] for case in suite.findall("testcase")}
    assert states == {
        "yield_ms.p95": ["system-out"],
        "response_ms.p50": ["system-out"],
        "stale_ms.max": ["failure"],
        "false_stop.share": ["skipped"],
        "memory_wrong.share": ["skipped"],
    }


def test_a_failure_has_the_value_the_limit_and_n(three: RunResult) -> None:
    (failure,) = xml.fromstring(junit(three)).iter("failure")
    assert failure.get("message") == "stale_ms.max is 470 ms, the limit is 0 ms (in the worst case, n = 2)"
    assert "sound of the old response after it had yielded" in str(failure.text)


def test_a_skipped_case_says_why(three: RunResult) -> None:
    reasons = {one.get("message") for one in xml.fromstring(junit(three)).iter("skipped")}
    assert reasons == {"too few to gate: 3 of at least 10", "no step has measured it"}


def test_a_share_has_its_interval() -> None:
    gate = GateResult("false_stop", "share", 0.1, "missed", 0.25, 20, 0.112, 0.469)
    assert gate_words(gate) == (
        "false_stop.share is 25 %, the limit is 10 % (share of cases, n = 20, 95 % interval 11–47 %)"
    )


def test_a_call_that_could_not_be_held_is_an_error(three: RunResult) -> None:
    failed = msgspec.structs.replace(three.scenarios[0].calls[0], failure="no answer at the address")
    root = xml.fromstring(junit(changed(three, calls=[failed])))
    assert [one.get("message") for one in root.iter("error")] == ["no answer at the address"]
    assert root.get("errors") == "1"
    assert root.get("tests") == "6"


def test_a_run_that_measured_nothing_is_no_success(three: RunResult) -> None:
    unmeasured = [
        GateResult(gate.metric, gate.statistic, gate.limit, "not_measurable") for gate in three.scenarios[0].gates
    ]
    result = changed(three, gates=unmeasured)
    assert exit_code(result) == 2
    root = xml.fromstring(junit(result))
    assert [one.get("message") for one in root.iter("error")] == ["no gate could be measured"]


def test_names_from_outside_are_escaped_and_xml_stays_readable(three: RunResult) -> None:
    nasty = 'a<b>&"\x00\x1b]]>\ud800é'
    root = xml.fromstring(junit(changed(three, name=nasty)))
    assert root[0].get("name") == 'a<b>&"\ufffd\ufffd]]>\ufffdé'

"""JUnit XML of a run, as CI systems read it: a suite for each scenario, a case for each gate. Pure but for the file.

A gate that is missed is a failure, one that could not be measured is skipped. A call that could not be held is an error
of its own case: it says nothing about the gates.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

from voxlane_lab.gates import GateResult
from voxlane_lab.report.view import verdict_words
from voxlane_lab.report.words import STATISTICS, interval_words, statistic_amount, words_of
from voxlane_lab.results import RunResult, ScenarioResult, exit_code, why_not_measurable

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow, even escaped."""


def write_junit(result: RunResult, path: Path) -> None:
    """Write the run's gates as JUnit XML."""
    path.write_bytes(junit(result))


def junit(result: RunResult) -> bytes:
    """Return the run's gates as JUnit XML."""
    root = xml.Element("testsuites", name="voxlane lab")
    for scenario in result.scenarios:
        _suite(root, scenario, result.dialect)
    if exit_code(result) == 2 and not any(call.failure for one in result.scenarios for call in one.calls):
        suite = xml.SubElement(root, "testsuite", name="the run", tests="1", failures="0", errors="1", skipped="0")
        case = xml.SubElement(suite, "testcase", name="measurable", classname="voxlane.lab")
        xml.SubElement(case, "error", message=_clean(why_not_measurable(result)))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.append(xml.Comment(f" {_clean(verdict_words(result)[1])} "))
    xml.indent(root, " ")
    body: bytes = xml.tostring(root, encoding="utf-8")
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + body + b"\n"


def _suite(root: xml.Element, scenario: ScenarioResult, dialect: str) -> None:
    failed = [call for call in scenario.calls if call.failure]
    verdicts = [gate.verdict for gate in scenario.gates]
    suite = xml.SubElement(
        root,
        "testsuite",
        name=_clean(scenario.name),
        tests=str(len(verdicts) + len(failed)),
        failures=str(verdicts.count("missed")),
        errors=str(len(failed)),
        skipped=str(verdicts.count("not_measurable")),
    )
    kept = xml.SubElement(suite, "properties")
    for name, value in (("dialect", dialect), ("calls", str(len(scenario.calls))), ("seed", str(scenario.seed))):
        xml.SubElement(kept, "property", name=name, value=_clean(value))
    for call in failed:
        case = _case(suite, scenario.name, f"call {call.repeat + 1} is held")
        xml.SubElement(case, "error", message=_clean(call.failure))
    for gate in scenario.gates:
        _gate(_case(suite, scenario.name, f"{gate.metric}.{gate.statistic}"), gate)


def _case(suite: xml.Element, scenario: str, name: str) -> xml.Element:
    return xml.SubElement(suite, "testcase", name=_clean(name), classname=_clean(f"voxlane.lab.{scenario}"))


def _gate(case: xml.Element, gate: GateResult) -> None:
    words = gate_words(gate)
    if gate.verdict == "missed":
        failure = xml.SubElement(case, "failure", type="gate", message=_clean(words))
        failure.text = _clean(f"{words}\n{words_of(gate.metric).title}: {words_of(gate.metric).meaning}")
    elif gate.verdict == "not_measurable":
        xml.SubElement(case, "skipped", message=_clean(gate.reason or "not measurable"))
    else:
        xml.SubElement(case, "system-out").text = _clean(words)


def gate_words(gate: GateResult) -> str:
    """Return a gate in a line: yield_ms.p95 is 620 ms, the limit is 500 ms (in 95 of 100 cases, n = 20)."""
    found = "not measured" if gate.value is None else statistic_amount(gate.metric, gate.statistic, gate.value)
    limit = statistic_amount(gate.metric, gate.statistic, gate.limit)
    notes = [STATISTICS.get(gate.statistic, gate.statistic), f"n = {gate.n}"]
    if gate.low is not None:
        notes.append(f"95 % interval {interval_words(gate.metric, gate.statistic, gate.low, gate.high)}")
    return f"{gate.metric}.{gate.statistic} is {found}, the limit is {limit} ({', '.join(notes)})"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)

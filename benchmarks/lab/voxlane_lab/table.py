"""The results of the lab as text in a terminal."""

from __future__ import annotations

from voxlane_lab.compare import Comparison
from voxlane_lab.gates import GateResult
from voxlane_lab.report.words import statistic_amount
from voxlane_lab.results import RunResult, ScenarioResult, why_not_measurable

VERDICTS = {"met": "met", "missed": "MISSED", "not_measurable": "not measurable"}


def print_result(result: RunResult) -> None:
    """Print the gates of each scenario and the verdict."""
    for scenario in result.scenarios:
        print(f"\n{scenario.name}: {_calls(scenario)}")
        for row in _aligned([_gate(gate) for gate in scenario.gates]):
            print(f"  {row}")
    print(f"\n{verdict(result)}")


def verdict(result: RunResult) -> str:
    """Return the outcome of a run in one line."""
    if reason := why_not_measurable(result):
        return f"not measurable: {reason}"
    missed = [f"{name}: {gate.metric}.{gate.statistic}" for name, gate in result.gates if gate.verdict == "missed"]
    unknown = sum(gate.verdict == "not_measurable" for _, gate in result.gates)
    if missed:
        return f"{len(missed)} of {len(result.gates)} gates missed: {', '.join(missed)}"
    met = f"{len(result.gates) - unknown} of {len(result.gates)} gates met"
    if unknown:
        return f"{met}, {unknown} not measurable"
    return f"all {len(result.gates)} gates met" if len(result.gates) != 1 else "the only gate is met"


def print_differences(comparison: Comparison) -> None:
    """Print how the second run differs from the first."""
    header = ["metric", "before", "after", "difference", "95 %", "pairs", ""]
    rows = [
        [
            one.metric,
            f"{one.before:.4g}",
            f"{one.after:.4g}",
            f"{one.difference:+.4g}",
            f"{one.low:+.4g} to {one.high:+.4g}",
            str(one.pairs),
            one.verdict,
        ]
        for one in comparison.differences
    ]
    for row in _aligned([header, *rows]):
        print(f"  {row}")
    if any(one.verdict == "too few pairs" for one in comparison.differences):
        print("  too few pairs: no difference could be told from chance; hold more calls with --repeat")
    if comparison.only_first or comparison.only_second:
        print(f"  without a partner: {comparison.only_first} steps before, {comparison.only_second} after")


def _calls(scenario: ScenarioResult) -> str:
    results = [step.result for call in scenario.calls for step in call.steps]
    other = {name: results.count(name) for name in dict.fromkeys(results) if name != "done"}
    told = "".join(f", {count} {name.replace('_', ' ')}" for name, count in other.items())
    calls = "1 call" if len(scenario.calls) == 1 else f"{len(scenario.calls)} calls"
    return f"{calls}, {len(results)} steps{told}"


def _gate(gate: GateResult) -> list[str]:
    limit = statistic_amount(gate.metric, gate.statistic, gate.limit)
    value = "" if gate.value is None else statistic_amount(gate.metric, gate.statistic, gate.value)
    interval = "" if gate.low is None or gate.high is None else f"{gate.low:.0%} to {gate.high:.0%}"
    name = f"{gate.metric}.{gate.statistic}"
    return [name, value, f"at most {limit}", f"n = {gate.n}", interval, VERDICTS[gate.verdict], gate.reason]


def _aligned(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

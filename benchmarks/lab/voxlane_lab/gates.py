"""Gates: the most that a statistic of a metric may be, and whether a run meets it. Pure.

`yield_ms.p95 = 500` in a scenario is met if 95 % of all yields take 500 ms or less. `yield_ms = 500` means the same:
the statistic of a number or a count is p95 where none is named, that of a flag is share. A scenario without gates has
the default ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from voxlane_lab.definitions import METRICS
from voxlane_lab.errors import LabError, quote
from voxlane_lab.scenario import Gates
from voxlane_lab.summary import Summary

FEWEST = 10  # events of a flag that a share is judged by
NUMBER_STATISTICS = ("p50", "p95", "max", "min", "mean")
FLAG_STATISTICS = ("share",)

GateVerdict = Literal["met", "missed", "not_measurable"]

DEFAULT_GATES: Gates = {
    "yield_ms": {"p95": 1000.0},
    "talk_over_ms": {"p95": 1800.0},
    "stale_ms": {"max": 0.0},
    "stale_wire_ms": {"max": 200.0},
    "response_ms": {"p95": 3000.0},
    "skipped_ms": {"p95": 200.0},
    "repeated_ms": {"p95": 1000.0},
    "false_stop": {"share": 0.1},
    "missed": {"share": 0.0},
    "cut_off": {"share": 0.1},
    "answered_twice": {"share": 0.0},
    "unanswered": {"share": 0.0},
    "unasked": {"share": 0.1},
    "memory_wrong": {"share": 0.1},
}
"""The gates of a scenario that has none."""


class GateLimit(Struct, frozen=True):
    """The most that a statistic of a metric may be."""

    metric: str
    statistic: str
    limit: float


class GateResult(Struct, frozen=True):
    """A gate and what became of it."""

    metric: str
    statistic: str
    limit: float
    verdict: GateVerdict
    value: float | None = None  # None: no step measures it
    n: int = 0
    low: float | None = None  # the Wilson interval of a share
    high: float | None = None
    reason: str = ""  # why it is not measurable


def gate_limits(gates: Gates, *, name: str = "gates") -> list[GateLimit]:
    """Return the gates of a scenario, sorted; raise LabError where one names nothing that is measured."""
    found = []
    for metric, limits in sorted(gates.items()):
        if metric not in METRICS:
            raise LabError(f"{name}: there is no metric {quote(metric)}; metrics are {', '.join(METRICS)}")
        known = FLAG_STATISTICS if METRICS[metric].kind == "flag" else NUMBER_STATISTICS
        default = "share" if METRICS[metric].kind == "flag" else "p95"
        by_statistic: Mapping[str, float] = limits if isinstance(limits, dict) else {default: limits}
        for statistic, limit in sorted(by_statistic.items()):
            if statistic not in known:
                raise LabError(f"{name}: {metric} has no {quote(statistic)}; it has {', '.join(known)}")
            if not 0 <= limit < float("inf"):
                raise LabError(f"{name}: the limit of {metric}.{statistic} must be a number of 0 or more")
            found.append(GateLimit(metric, statistic, float(limit)))
    return found


def judge(summary: Summary, gates: Gates, *, name: str = "gates") -> list[GateResult]:
    """Return the verdict of each gate. Without gates, the default ones that the steps measure are judged."""
    if gates:
        return [_judged(summary, gate) for gate in gate_limits(gates, name=name)]
    found = [_judged(summary, gate) for gate in gate_limits(DEFAULT_GATES)]
    return [gate for gate in found if gate.n]


def _judged(summary: Summary, gate: GateLimit) -> GateResult:
    if METRICS[gate.metric].kind == "flag":
        return _judged_flag(summary, gate)
    measured = summary.numbers.get(gate.metric)
    if measured is None:
        return _unmeasured(gate)
    value = float(getattr(measured, gate.statistic))
    return GateResult(gate.metric, gate.statistic, gate.limit, _verdict(value, gate.limit), value, measured.n)


def _judged_flag(summary: Summary, gate: GateLimit) -> GateResult:
    measured = summary.flags.get(gate.metric)
    if measured is None:
        return _unmeasured(gate)
    few = measured.n < FEWEST
    return GateResult(
        gate.metric,
        gate.statistic,
        gate.limit,
        "not_measurable" if few else _verdict(measured.share, gate.limit),
        measured.share,
        measured.n,
        measured.low,
        measured.high,
        f"too few to gate: {measured.n} of at least {FEWEST}" if few else "",
    )


def _unmeasured(gate: GateLimit) -> GateResult:
    return GateResult(gate.metric, gate.statistic, gate.limit, "not_measurable", reason="no step has measured it")


def _verdict(value: float, limit: float) -> GateVerdict:
    # Values are rounded to 3 decimals, and so is what they are compared with.
    return "met" if round(value, 3) <= round(limit, 3) else "missed"

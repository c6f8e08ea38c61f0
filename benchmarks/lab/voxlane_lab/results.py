"""The result of a run as it is in result.json, and the exit code. Pure.

The same result gives the same bytes: keys are sorted, floats have 3 decimals, and there are no times of day and no
paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.errors import LabError
from voxlane_lab.gates import GateResult
from voxlane_lab.metrics import StepFigures
from voxlane_lab.summary import Summary

FORMAT: Literal["voxlane lab"] = "voxlane lab"
VERSION = 1
LATE_SHARE = 0.1  # a run with a larger share of late steps is not measurable
MET, MISSED, NOT_MEASURABLE = 0, 1, 2


class CallResult(Struct, frozen=True, kw_only=True):
    """One call."""

    repeat: int
    steps: list[StepFigures]
    failure: str = ""  # why the call could not be held
    late_ms: float = 0.0  # the tester's worst tick
    sent_sha256: str = ""  # of all that the person says


class ScenarioResult(Struct, frozen=True, kw_only=True):
    """All calls of a scenario."""

    name: str
    calls: list[CallResult]
    summary: Summary
    gates: list[GateResult]
    description: str = ""
    seed: int = 0
    answer_s: float = 10.0  # an answer that takes longer counts as none


class RunResult(Struct, frozen=True, kw_only=True):
    """A whole run."""

    scenarios: list[ScenarioResult]
    dialect: str = ""
    url: str = ""  # without its secrets
    virtual: bool = False  # held on the virtual clock
    format: Literal["voxlane lab"] = FORMAT
    version: int = VERSION

    @property
    def gates(self) -> list[tuple[str, GateResult]]:
        """All gates, with their scenarios' names."""
        return [(scenario.name, gate) for scenario in self.scenarios for gate in scenario.gates]


def encode(result: RunResult) -> bytes:
    """Return the bytes of result.json."""
    plain = msgspec.json.encode(_rounded(msgspec.to_builtins(result)), order="sorted")
    return msgspec.json.format(plain, indent=1) + b"\n"


def decode(data: bytes, *, name: str = "result.json") -> RunResult:
    """Return the result of a file; raise LabError with one line that says why it cannot be read."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise LabError(f"{name}: not JSON, so it is no result of voxlane lab") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise LabError(f"{name}: not a result of voxlane lab")
    version = found.get("version")
    if not isinstance(version, int) or version != VERSION:
        raise LabError(f"{name}: written by another version of voxlane lab: this one reads version {VERSION}")
    try:
        return checked(RunResult, found)
    except WrongShape as error:
        raise LabError(f"{name}: {error}") from None


def why_not_measurable(result: RunResult) -> str:
    """Return in one sentence why a run says nothing about the server; "": it does."""
    for scenario in result.scenarios:
        for call in scenario.calls:
            if call.failure:
                return f"{scenario.name}, call {call.repeat + 1}: {call.failure}"
    steps = [step for scenario in result.scenarios for call in scenario.calls for step in call.steps]
    late = sum(step.result == "late" for step in steps)
    if late > LATE_SHARE * len(steps):
        return f"the tester was late in {late} of {len(steps)} steps: this machine has too much to do"
    if all(gate.verdict == "not_measurable" for _, gate in result.gates):
        return "no gate could be measured"
    return ""


def exit_code(result: RunResult) -> int:
    """Return 2 if the run could not measure, else 1 if a gate was missed, else 0."""
    if why_not_measurable(result):
        return NOT_MEASURABLE
    return MISSED if any(gate.verdict == "missed" for _, gate in result.gates) else MET


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) + 0.0  # no negative zero
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


__all__ = [
    "MET",
    "MISSED",
    "NOT_MEASURABLE",
    "CallResult",
    "GateResult",
    "RunResult",
    "ScenarioResult",
    "StepFigures",
    "Summary",
    "decode",
    "encode",
    "exit_code",
    "why_not_measurable",
]

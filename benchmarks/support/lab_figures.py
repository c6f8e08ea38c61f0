"""The lab's figures of runs as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from voxlane_lab.results import RunResult, StepFigures
from voxlane_lab.summary import Summary, summarise

DIALECTS = {"native": "/v1/voice", "realtime": "/v1/realtime"}
NUMBERS = (
    "duck_ms", "mute_ms", "yield_ms", "talk_over_ms", "response_ms", "stale_ms", "pause_ms",
    "skipped_ms", "repeated_ms",
)  # fmt: skip
FLAGS = ("missed", "false_stop", "cut_off", "answered_twice", "unanswered", "memory_wrong")
HEADER = ("steps, not measured", *NUMBERS, *FLAGS)


def address(url: str, dialect: str) -> str:
    """Return where a dialect of a server is."""
    return url.replace("http", "ws", 1) + DIALECTS[dialect]


def steps_of(results: Sequence[RunResult]) -> list[StepFigures]:
    """Return the steps of all calls of runs."""
    return [step for run in results for one in run.scenarios for call in one.calls for step in call.steps]


def summary_of(results: Sequence[RunResult]) -> Summary:
    """Return the figures of all steps that were measured."""
    return summarise(step for step in steps_of(results) if step.result == "done")


def row(name: str, results: Sequence[RunResult]) -> list[str]:
    """Return the figures of runs: p50 (p95) and n of numbers, hits of flags."""
    steps, summary = steps_of(results), summary_of(results)
    cells = [name, f"{len(steps)}, {sum(step.result != 'done' for step in steps)}"]
    for metric in NUMBERS:
        found = summary.numbers.get(metric)
        cells.append(f"{found.p50:.0f} ({found.p95:.0f}), {found.n}" if found else "")
    for metric in FLAGS:
        flag = summary.flags.get(metric)
        cells.append(f"{flag.hits} of {flag.n}" if flag else "")
    return cells

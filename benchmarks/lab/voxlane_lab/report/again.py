"""A run's folder, read again: write its report anew, or judge its saved calls anew."""

from __future__ import annotations

from pathlib import Path

from voxlane_lab.errors import LabError
from voxlane_lab.judge import judged_again
from voxlane_lab.recording_file import load
from voxlane_lab.report.html import write_report
from voxlane_lab.report.junit import write_junit
from voxlane_lab.results import RunResult, decode
from voxlane_lab.values import Recording

RESULT, CALLS, REPORT, JUNIT = "result.json", "calls", "report.html", "junit.xml"


def report_again(run_dir: Path) -> Path:
    """Write the page and the JUnit file of a run anew; return the page's path. Calls that are gone are not drawn."""
    result = read_result(run_dir)
    write_report(result, load_calls(run_dir), run_dir / REPORT)
    write_junit(result, run_dir / JUNIT)
    return run_dir / REPORT


def replay(run_dir: Path) -> RunResult:
    """Return the result of a run whose saved calls are judged anew. Nothing is written."""
    before, calls = read_result(run_dir), load_calls(run_dir)
    for scenario in before.scenarios:
        for call in scenario.calls:
            if (scenario.name, call.repeat) not in calls:
                raise LabError(f"call {call.repeat + 1} of a scenario is in {RESULT} and not in {CALLS}/")
    return judged_again(before, calls)


def read_result(run_dir: Path) -> RunResult:
    """Return the result of a run's folder; raise LabError with one line."""
    path = run_dir / RESULT
    if not path.is_file():
        raise LabError(f"{run_dir.name or '.'} has no {RESULT}: it is not the folder of a run")
    return decode(path.read_bytes(), name=RESULT)


def load_calls(run_dir: Path) -> dict[tuple[str, int], Recording]:
    """Return the saved calls of a run, by scenario and repeat."""
    folders = sorted(path for path in (run_dir / CALLS).glob("*") if path.is_dir())
    recordings = [load(folder) for folder in folders]
    return {(one.scenario, one.repeat): one for one in recordings}

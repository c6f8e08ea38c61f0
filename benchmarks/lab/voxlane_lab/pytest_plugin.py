"""A pytest plugin: the marker `lab` and the fixture `lab` hold scenarios against a voice server in a test suite.

A suite asks for it with `pytest_plugins = ["voxlane_lab.pytest_plugin"]` in its conftest.py. It imports nothing
but pytest until a test uses the lab, and a marker of the same name that names no scenario is none of its business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from voxlane_lab.gates import GateResult
    from voxlane_lab.results import RunResult

NAME = "lab"
"""Of the marker and of the fixture."""

MARKER_HELP = (
    "lab(scenario, url, dialect, repeat): hold a scenario of voxlane-lab against a voice server before the test, "
    "which fails when a gate is missed; a test with the fixture `lab` holds it itself"
)
NO_URL = "no voice server is named: give --lab-url, or url= in the marker or the call"


@dataclass(frozen=True, slots=True)
class LabSettings:
    """What a test wants; None: not said."""

    scenario: str | Sequence[str] | None = None  # a name, a group or a path, or several
    url: str | None = None
    dialect: str | None = None
    repeat: int | None = None

    def over(self, other: LabSettings) -> LabSettings:
        """Return these settings, and the other's where these say nothing."""
        pairs = {one.name: (getattr(self, one.name), getattr(other, one.name)) for one in fields(self)}
        return LabSettings(**{name: theirs if mine is None else mine for name, (mine, theirs) in pairs.items()})


@dataclass(frozen=True, slots=True)
class LabResult:
    """What came of scenarios that were held."""

    run: RunResult

    @property
    def gates(self) -> list[tuple[str, GateResult]]:
        """All gates, with their scenarios' names."""
        return self.run.gates

    def value(self, statistic: str, scenario: str | None = None) -> float | None:
        """Return a statistic such as "yield_ms.p95", of a scenario or the first one; None: no step has measured it."""
        metric, _, name = statistic.partition(".")
        found = [one for one in self.run.scenarios if scenario in (None, one.name)]
        if not found:
            raise ValueError(f"there is no scenario {scenario} in this run")
        measured = found[0].summary.flags.get(metric) or found[0].summary.numbers.get(metric)
        return None if measured is None else float(getattr(measured, name))

    def assert_gates(self) -> None:
        """Raise AssertionError if a gate is missed, or if the run could not be measured."""
        __tracebackhide__ = True
        from voxlane_lab.results import why_not_measurable

        reason = why_not_measurable(self.run)
        if reason:
            raise AssertionError(f"not measurable: {reason}")
        missed = [f"{scenario}: {_shown(gate)}" for scenario, gate in self.gates if gate.verdict == "missed"]
        if missed:
            raise AssertionError("\n".join(["gates are missed", *missed]))


class LabFixture:
    """Holds scenarios for one test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._runs = 0

    @property
    def settings(self) -> LabSettings:
        """What markers say, the nearest first, and the command line where they say nothing."""
        found = LabSettings()
        for marker in self._item.iter_markers(NAME):
            found = found.over(_marked(marker))
        option = self._item.config.getoption
        return found.over(LabSettings(url=option("lab_url"), dialect=option("lab_dialect")))

    def run(
        self,
        *scenarios: str,
        url: str | None = None,
        dialect: str | None = None,
        repeat: int | None = None,
    ) -> LabResult:
        """Hold scenarios (names, groups, paths) or the marker's; skip the test if no server is named."""
        wanted = LabSettings(scenarios or None, url, dialect, repeat).over(self.settings)
        if wanted.scenario is None:
            raise ValueError("which scenario? Name it in lab.run or in the marker")
        if wanted.url is None:
            pytest.skip(NO_URL)
        from voxlane_lab.runner import RunOptions, run_scenarios
        from voxlane_lab.scenario_library import load

        names = [wanted.scenario] if isinstance(wanted.scenario, str) else wanted.scenario
        options = RunOptions(repeat=wanted.repeat)
        self._runs += 1
        result = run_scenarios(load(names), url=wanted.url, dialect=wanted.dialect, options=options, out=self._folder())
        self._note(result)
        return LabResult(result)

    def _folder(self) -> Path | None:
        """Return the folder of this run: one for each run of each test."""
        out = self._item.config.getoption("lab_out")
        if out is None:
            return None
        name = re.sub(r"[^A-Za-z0-9]+", "-", self._item.nodeid).strip("-")
        return Path(out) / (name if self._runs == 1 else f"{name}-{self._runs}")

    def _note(self, result: RunResult) -> None:
        """Put each gate's value into the test's properties: JUnit files of pytest show them."""
        for scenario, gate in result.gates:
            self._item.user_properties.append((f"{scenario} {gate.metric}.{gate.statistic}", gate.value))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("voxlane lab")
    group.addoption("--lab-url", metavar="URL", help="voice server that tests with the marker or fixture lab call")
    group.addoption("--lab-dialect", metavar="NAME", help="its protocol; default: guessed from the address")
    group.addoption("--lab-out", metavar="DIR", help="folder for the reports, one folder for each test")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER_HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Hold the scenario of a marked test that does not hold it itself."""
    markers = list(item.iter_markers(NAME))
    if NAME in getattr(item, "fixturenames", ()) or not any("scenario" in marker.kwargs for marker in markers):
        return
    result = LabFixture(item).run()
    try:
        result.assert_gates()
    except AssertionError as error:
        pytest.fail(str(error), pytrace=False)  # there is no line of the test to show


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> LabFixture:
    """Hold scenarios of voxlane-lab: lab.run("hard_stop", url=…).assert_gates()."""
    return LabFixture(request.node)


def _marked(marker: pytest.Mark) -> LabSettings:
    try:
        return LabSettings(**marker.kwargs)
    except TypeError:
        known = ", ".join(one.name for one in fields(LabSettings))
        raise ValueError(f"the marker {NAME} takes {known}") from None


def _shown(gate: GateResult) -> str:
    value = "nothing" if gate.value is None else f"{gate.value:g}"
    return f"{gate.metric}.{gate.statistic} is {value}, the limit is {gate.limit:g} (n = {gate.n})"

"""The pytest plugin: options, markers and fixture lead to a run; projects that do not use it do not notice it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab_voices import hums

from voxlane_lab.gates import judge
from voxlane_lab.person import plan
from voxlane_lab.pytest_plugin import NO_URL
from voxlane_lab.results import CallResult, RunResult, ScenarioResult
from voxlane_lab.scenario import Scenario
from voxlane_lab.scenario_library import load
from voxlane_lab.sounds.corpus import CACHE_VARIABLE, Corpus
from voxlane_lab.summary import Distribution, FlagShare, Summary

pytest_plugins = ["pytester"]

PLUGIN = "voxlane_lab.pytest_plugin"
URL = "ws://127.0.0.1:1/v1/voice"


@dataclass(frozen=True)
class Options:
    repeat: int | None = None


@dataclass
class Stub:
    """Stands in for the runner: notes how it was called, and returns a run with one gate."""

    yield_ms: float = 300.0
    failure: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def run_scenarios(self, scenarios: Sequence[Scenario], **wanted: Any) -> RunResult:
        self.calls.append({"names": [one.name for one in scenarios], **wanted})
        return RunResult(scenarios=[self._result(one) for one in scenarios])

    def _result(self, scenario: Scenario) -> ScenarioResult:
        numbers = {"yield_ms": Distribution(12, *[self.yield_ms] * 5)}
        summary = Summary(numbers, {"missed": FlagShare(12, 3, 0.25, 0.1, 0.5)})
        return ScenarioResult(
            name=scenario.name,
            calls=[CallResult(repeat=0, steps=[], failure=self.failure)],
            summary=summary,
            gates=judge(summary, {"yield_ms": {"p95": 500.0}}),
        )


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub()
    module: Any = types.ModuleType("voxlane_lab.runner")
    module.run_scenarios, module.RunOptions = made.run_scenarios, Options
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else, whose pytest loads our plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\naddopts = ["--strict-markers", "--strict-config"]\n')
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", *arguments)


def test_a_marked_test_passes_when_its_gates_are_met(project: pytest.Pytester, stub: Stub, tmp_path: Path) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.lab(scenario="hard_stop", repeat=3)
        def test_it_stops() -> None:
            pass
        """
    )
    run(project, "--lab-url", URL, "--lab-dialect", "native", "--lab-out", str(tmp_path)).assert_outcomes(passed=1)
    (call,) = stub.calls
    assert (call["names"], call["url"], call["dialect"]) == (["hard_stop"], URL, "native")
    assert call["options"].repeat == 3
    assert call["out"].parent == tmp_path
    assert "test_it_stops" in call["out"].name.replace("-", "_")


def test_a_missed_gate_fails_and_says_which(project: pytest.Pytester, stub: Stub) -> None:
    stub.yield_ms = 1600.0
    project.makepyfile(
        """
        import pytest

        @pytest.mark.lab(scenario="hard_stop", url="ws://127.0.0.1:2/v1/voice")
        def test_it_stops() -> None:
            print("the body ran")
        """
    )
    done = run(project)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*hard_stop: yield_ms.p95 is 1600, the limit is 500 (n = 12)*"])
    assert "the body ran" not in str(done.stdout)


def test_a_run_that_could_not_be_measured_fails(project: pytest.Pytester, stub: Stub) -> None:
    stub.failure = "the server cannot be reached"
    project.makepyfile("def test_it_stops(lab): lab.run('hard_stop').assert_gates()")
    done = run(project, "--lab-url", URL)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*not measurable: hard_stop, call 1: the server cannot be reached*"])


def test_the_fixture_holds_what_the_test_asks_for(project: pytest.Pytester, stub: Stub, tmp_path: Path) -> None:
    project.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.lab(dialect="realtime", repeat=4)

        @pytest.mark.lab(scenario="mhm", repeat=5)
        def test_both(lab) -> None:
            first = lab.run()
            second = lab.run("memory", "cough", url="ws://127.0.0.1:3/v1/realtime", repeat=6)
            assert [(name, gate.verdict) for name, gate in first.gates] == [("mhm", "met")]
            assert first.value("yield_ms.p95") == 300
            assert second.value("missed.share", "cough") == 0.25
            assert second.value("pause_ms.max") is None
            second.assert_gates()
            with pytest.raises(ValueError):
                second.value("yield_ms.p95", "mhm")
        """
    )
    run(project, "--lab-url", URL, "--lab-out", str(tmp_path)).assert_outcomes(passed=1)
    first, second = stub.calls
    assert (first["names"], first["url"], first["dialect"], first["options"].repeat) == (["mhm"], URL, "realtime", 5)
    assert second["names"] == ["counting", "counting_after_mhm", "cough"]
    assert (second["url"], second["options"].repeat) == ("ws://127.0.0.1:3/v1/realtime", 6)
    assert first["out"] != second["out"]


def test_values_of_gates_are_in_pytests_own_junit_file(project: pytest.Pytester, stub: Stub) -> None:
    project.makepyfile("def test_it_stops(lab): lab.run('hard_stop')")
    run(project, "--lab-url", URL, "--junit-xml", "out.xml").assert_outcomes(passed=1)
    assert 'name="hard_stop yield_ms.p95" value="300.0"' in (project.path / "out.xml").read_text()


def test_without_a_server_tests_are_skipped(project: pytest.Pytester, stub: Stub) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.mark.lab(scenario="hard_stop")
        def test_marked() -> None:
            pass

        def test_fixture(lab) -> None:
            lab.run("mhm")
        """
    )
    done = run(project, "-rs")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines([f"*{NO_URL}*"])
    assert stub.calls == []


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("def test_it(lab): lab.run()", "which scenario?"),
        ("def test_it(lab): lab.run('hard_stp')", "did you mean hard_stop?"),
        (
            "import pytest\n@pytest.mark.lab(scenario='mhm', speed=3)\ndef test_it(): pass",
            "the marker lab takes scenario, url, dialect, repeat",
        ),
    ],
)
def test_mistakes_are_named(project: pytest.Pytester, stub: Stub, test: str, words: str) -> None:
    project.makepyfile(test)
    done = run(project, "--lab-url", URL)
    done.assert_outcomes(failed=1)
    assert words in str(done.stdout)


def test_a_project_may_have_a_marker_and_a_fixture_of_this_name(project: pytest.Pytester, stub: Stub) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.fixture
        def lab():
            return "a room with test tubes"

        @pytest.mark.lab(rack=3)
        def test_marked() -> None:
            pass

        def test_fixture(lab) -> None:
            assert "tubes" in lab
        """
    )
    run(project, "--lab-url", URL).assert_outcomes(passed=2)
    assert stub.calls == []


def test_loading_it_costs_nothing() -> None:
    """Others load it in every run: no library may come with it."""
    code = f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["voxlane_lab", PLUGIN]


def test_the_marker_and_the_options_are_explained(project: pytest.Pytester) -> None:
    run(project, "--markers").stdout.fnmatch_lines(["@pytest.mark.lab(scenario, url, dialect, repeat): *"])
    run(project, "--help").stdout.fnmatch_lines(["voxlane lab:", "*--lab-url*", "*--lab-dialect*", "*--lab-out*"])


@pytest.fixture
def hummed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the corpus hold what one call of hard_stop needs, so that no model is loaded."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (scenario,) = load(["hard_stop"])
    said = [step.wanted for step in plan(scenario, 0) if step.wanted]
    asyncio.run(Corpus(open_voices=hums).prepare(said))


@pytest.mark.usefixtures("hummed")
def test_a_planted_agent_is_judged(project: pytest.Pytester) -> None:
    """The whole way, with the true runner: the good agent passes, the slow one misses the gate of its fault."""
    project.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("fault", [
            pytest.param(fault, marks=pytest.mark.lab(scenario="hard_stop", url=f"planted:{fault}", repeat=1))
            for fault in ("none", "slow_yield")
        ])
        def test_it_stops(fault) -> None:
            pass
        """
    )
    done = run(project, "--lab-out", "reports")
    done.assert_outcomes(passed=1, failed=1)
    found = re.search(r"hard_stop: yield_ms.p95 is ([\d.]+), the limit is 900", str(done.stdout))
    assert found
    assert abs(float(found[1]) - 1600) <= 20
    assert [report.stat().st_size > 10_000 for report in project.path.glob("reports/*/report.html")] == [True, True]

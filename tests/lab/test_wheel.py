"""The lab's wheel in an empty environment: installed in seconds, without torch and without voxlane, and it catches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

from voxlane_lab.results import RunResult, decode

LAB = Path(__file__).parents[2] / "benchmarks" / "lab"
FIRST_CALL_S = 5.0
MOST_WHEEL_BYTES = 8_000_000

CAUGHT = (
    ("talks_over", "stop_and_ask", ("talk_over_ms",)),
    ("stops_for_mhm", "mhm", ("false_stop",)),
    ("slow_yield", "hard_stop", ("yield_ms",)),
    ("stale", "stop_and_ask", ("stale_ms",)),
    ("answers_twice", "stop_and_ask", ("answered_twice",)),
    ("never_answers", "stop_and_ask", ("unanswered",)),
    ("cuts_off", "pause_900_ms", ("cut_off", "split_turns")),
)
"""A planted fault, the scenario that finds it, and the metrics whose gates are missed."""

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy: setuptools leaves its folders beside the source."""
    source, target = tmp_path_factory.mktemp("source") / "lab", tmp_path_factory.mktemp("wheel")
    shutil.copytree(LAB, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and what it needs into a new environment; return the folder of its programs."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    start = time.monotonic()
    venv.create(place, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "bin" / "python"),
        "install",
        "--quiet",
        "--no-cache-dir",
    ]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    took_s = time.monotonic() - start
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"installed in {took_s:.1f} s: {size / 1e6:.0f} MB; the wheel alone: {wheel.stat().st_size / 1e6:.1f} MB")
    return place / "bin"


def run(programs: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a home of its own: nothing that lies in the user's cache helps."""
    home = {"HOME": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [programs / "voxlane-lab", *arguments], capture_output=True, text=True, cwd=folder, env=home, check=False
    )


def processor_s(pid: int) -> float:
    """Return how long processors have worked for a process: unlike the clock, a busy machine hardly changes that."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def result_of(folder: Path) -> RunResult:
    return decode((folder / "lab-results" / "result.json").read_bytes())


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    files = [path for path in (LAB / "voxlane_lab").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert [path.name for path in files if path.relative_to(LAB).as_posix() not in held] == []
    assert wheel.stat().st_size < MOST_WHEEL_BYTES


def test_neither_torch_nor_voxlane_comes_with_it(programs: Path) -> None:
    query = "import importlib.util as find; print([name for name in ('torch', 'voxlane') if find.find_spec(name)])"
    done = subprocess.run([programs / "python", "-I", "-c", query], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_call_begins_soon(programs: Path, tmp_path: Path) -> None:
    command = [programs / "voxlane-lab", "run", "mhm", "--url", "planted:stops_for_mhm"]
    start = time.monotonic()
    home = {"HOME": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as lab:
        assert lab.stderr is not None
        assert lab.stderr.readline() == "mhm: call 1 of 12\n"
        took_s, worked_s = time.monotonic() - start, processor_s(lab.pid)
        lab.stderr.read()
    print(f"the first call began after {took_s:.1f} s, of which a processor worked {worked_s:.1f} s")
    assert lab.returncode == 1
    assert worked_s < FIRST_CALL_S


@pytest.mark.parametrize(("fault", "scenario", "metrics"), CAUGHT, ids=[one[0] for one in CAUGHT])
def test_a_planted_fault_is_caught(
    programs: Path, tmp_path: Path, fault: str, scenario: str, metrics: tuple[str, ...]
) -> None:
    done = run(programs, tmp_path, "run", scenario, "--url", f"planted:{fault}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert {gate.metric for _, gate in result_of(tmp_path).gates if gate.verdict == "missed"} == set(metrics)


def test_the_good_agent_passes(programs: Path, tmp_path: Path) -> None:
    """All but the memory of `counting`, which needs the recogniser."""
    done = run(programs, tmp_path, "run", "mhm", "counting", "--url", "planted:none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"memory is not measured: .*pip install 'voxlane-lab\[speech\]'", done.stderr)
    unknown = {gate.metric for _, gate in result_of(tmp_path).gates if gate.verdict == "not_measurable"}
    assert unknown == {"memory_wrong"}


def test_other_speech_says_what_to_install(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('name = "own"\n[[step]]\nsay = "This is in no package."\n')
    done = run(programs, tmp_path, "run", "own.toml", "--url", "planted:none")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    assert "pip install 'voxlane-lab[speech]'" in done.stderr

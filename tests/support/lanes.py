"""Run the long tests lane by lane: `python tests/support/lanes.py [LANE ...]`, all lanes without a name.

`--due MINUTES` chooses instead: the lanes whose folders differ from those that last passed, then one more by
rotation, as long as their budgets fit into so many minutes. It names the lanes that it leaves out. A lane that takes
too long is only named then: how fast the machine of a check is, the change cannot tell.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = ROOT / "tests/passed.toml"
PARALLEL = ("-n", "4", "--dist", "loadscope", "--no-loadscope-reorder")
SLACK, HOPELESS = 1.5, 3.0
"""How many times its budget a lane may take before it fails, and before it is ended."""
ALONE = (
    "browser", "clients", "faults",
    "e2e/test_conversation.py", "e2e/test_lab_foreign_servers.py", "e2e/test_lab_peers.py", "e2e/test_partner.py",
    "e2e/test_realtime_clients.py", "e2e/test_talker.py",
    "e2e/test_true_call.py", "e2e/test_voice.py",
)  # fmt: skip
"""Tests that depend on the clock, most of them because a person speaks: one at a time, after all others."""
NO_TESTS = 5
"""The exit status of pytest where no test was chosen."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Tests that run together."""

    name: str
    minutes: float
    covers: tuple[str, ...]
    tests: tuple[str, ...]
    long: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def read_lanes(path: Path = ROOT / "tests/lanes.toml") -> dict[str, Lane]:
    """Return the lanes by their names."""
    return {
        name: Lane(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def lane_of(path: str, lanes: Iterable[Lane]) -> str:
    """Return the lane of a test file, given relative to tests/, or an empty string."""
    found = [(len(part), lane.name) for lane in lanes for part in lane.tests if f"{path}/".startswith(f"{part}/")]
    return max(found, default=(0, ""))[1]


def digest(lane: Lane, listing: str) -> str:
    """Return a hash of the lane's product folders and tests, from the text of `git ls-files --stage`."""
    parts = tuple(f"{part}/" for part in (*lane.covers, *(f"tests/{part}" for part in lane.tests)))
    rows = (row for row in listing.splitlines() if f"{row.partition('	')[2]}/".startswith(parts))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def choose(lanes: dict[str, Lane], changed: Sequence[str], turn: int, minutes: float) -> list[str]:
    """Return the lanes to run: the changed ones first, then one more, chosen by `turn`, as far as the minutes go.

    Where they do not go far enough for all that changed, the first is another one each turn.
    """
    first = [name for name in lanes if name in changed]
    rest = [name for name in lanes if name not in changed]
    order = _rotated(first, turn) + _rotated(rest, turn)[:1]
    chosen = []
    for name in order:
        if lanes[name].minutes <= minutes:
            chosen.append(name)
            minutes -= lanes[name].minutes
    return chosen


def _rotated(names: list[str], turn: int) -> list[str]:
    start = turn % len(names) if names else 0
    return names[start:] + names[:start]


def run(lane: Lane, *, strict: bool) -> int:
    """Run a lane; return 0 if all of it passed, and within its budget where that is `strict`."""
    if lane.needs:
        subprocess.run(["make", "--no-print-directory", *lane.needs], cwd=ROOT, check=True)
    began = time.monotonic()
    print(f"\n══ {lane.name} (budget {lane.minutes:g} min)", flush=True)
    passes = [("not alone", PARALLEL), ("alone", ())]
    for only, parallel in passes if any(test.startswith(ALONE) for test in lane.long) else passes[:1]:
        left_s = lane.minutes * 60 * HOPELESS - (time.monotonic() - began)
        status = _pytest(lane, only, parallel, left_s)
        if status not in (0, NO_TESTS):
            return status
    took = (time.monotonic() - began) / 60
    print(f"══ {lane.name}: {took:.1f} min of {lane.minutes:g}", flush=True)
    if took > lane.minutes * SLACK:
        print(f"{lane.name} takes too long. Its slowest files stand above: shorten or move them.", file=sys.stderr)
        return int(strict)
    return 0


def _pytest(lane: Lane, only: str, parallel: Sequence[str], seconds: float) -> int:
    marks = f"{only} and (soak or property)"
    command = [sys.executable, "-m", "pytest", "-q", *parallel, "-m", marks, f"--lane={lane.name}"]
    environment = {**os.environ, "VOXLANE_SOAK": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            return process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            print(f"{lane.name} is ended: it takes more than {HOPELESS:g} times its budget.", file=sys.stderr)
        except KeyboardInterrupt:
            pass
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return 1


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _note(name: str, state: str) -> None:
    known = {**_passed(), name: state}
    rows = "".join(f'{one} = "{known[one]}"\n' for one in sorted(known))
    PASSED.write_text(f"# What each lane covered when it last passed: a hash of these files.\n{rows}", encoding="utf-8")


def _passed() -> dict[str, str]:
    return tomllib.loads(PASSED.read_text(encoding="utf-8")) if PASSED.exists() else {}


def main() -> int:
    """Run the lanes that were asked for."""
    lanes = read_lanes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=", ".join(lanes))
    parser.add_argument("--due", type=float, metavar="MINUTES", help="run the changed lanes, and one more by rotation")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.lanes) - set(lanes)):
        parser.error(f"there is no lane {', '.join(unknown)}. There are: {', '.join(lanes)}")
    states = {name: digest(lane, _git("ls-files", "--stage")) for name, lane in lanes.items()}
    names = asked.lanes or list(lanes)
    if asked.due is not None:
        changed = [name for name, state in states.items() if _passed().get(name) != state]
        names = choose(lanes, changed, int(_git("rev-list", "--count", "HEAD")), asked.due)
        print(f"changed: {', '.join(changed) or 'none'}; to run: {', '.join(names) or 'none'}")
    failed = []
    for name in names:
        if run(lanes[name], strict=asked.due is None):
            failed.append(name)
        elif not _git("status", "--porcelain", "--", ".", ":!tests/passed.toml"):
            _note(name, states[name])
    if left := [name for name in lanes if name not in names]:
        print(f"not run: {', '.join(left)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

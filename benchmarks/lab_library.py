"""Every scenario of voxlane-lab against our own server, many times, over both of its dialects.

A server is started, and each scenario is a command of its own, `voxlane-lab run SCENARIO --repeat N --at-once K`; some
commands run side by side. The results are kept in `build/lab_library`, a folder for each dialect and scenario. The
figures are the lab's own (docs/lab-metrics.md). There is no peer here; the same command measures other servers.

    python benchmarks/lab_library.py                                     one call at a time, two repeats
    python benchmarks/lab_library.py --repeat 20 --processes 8 --at-once 5     a machine with a GPU and many cores

Time: a repeat of the library is about a quarter of an hour in real time for each dialect, divided by the calls at once.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from support.command_line import REPOSITORY, command_line
from support.common import machine, table
from support.conversation import server
from support.lab_figures import DIALECTS, HEADER, address, row

from voxlane_lab import results
from voxlane_lab.results import RunResult, why_not_measurable
from voxlane_lab.scenario_library import load

OUT = REPOSITORY / "build" / "lab_library"
REPEAT = 2


def held(name: str, *, url: str, out: Path, options: Sequence[str]) -> RunResult | None:
    """Run a scenario; return its result, or None if there is none."""
    command = [sys.executable, "-m", "voxlane_lab.cli", "run", name, "--url", url, *options]
    ended = subprocess.run([*command, "--out", str(out / name)], capture_output=True, text=True, check=False)
    path = out / name / "result.json"
    if not path.is_file():
        print(f"  {name}: no result: {ended.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    result = results.decode(path.read_bytes())
    print(f"  {name}: {why_not_measurable(result) or 'measured'}", flush=True)
    return result


def missed_gates(run: RunResult) -> str:
    """Return the gates that a run missed, with what was measured."""
    return "; ".join(
        f"{gate.metric} {gate.value or 0.0:g} (limit {gate.limit:g})"
        for _, gate in run.gates
        if gate.verdict == "missed"
    )


def report(dialect: str, runs: Sequence[RunResult]) -> None:
    """Print the table of a dialect."""
    rows = [row(run.scenarios[0].name, [run]) for run in runs]
    rows.append(row("all", runs))
    table(f"the library by the lab, {dialect}, {machine()}: ms, p50 (p95), n", ["scenario", *HEADER], rows)
    gates = [gate for run in runs for _, gate in run.gates]
    verdicts = {
        verdict: sum(gate.verdict == verdict for gate in gates) for verdict in ("met", "missed", "not_measurable")
    }
    print(f"  gates: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}")
    for run in runs:
        if missed := missed_gates(run):
            print(f"  {run.scenarios[0].name}: {missed}")


def main() -> None:
    """Hold all calls and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--scenarios", nargs="+", default=["all"], help="scenarios of the lab (all)")
    parser.add_argument("--dialects", nargs="+", default=list(DIALECTS), choices=list(DIALECTS))
    parser.add_argument("--repeat", type=int, default=REPEAT, help="calls of each scenario (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="scenarios at once (%(default)s)")
    parser.add_argument("--at-once", type=int, default=1, help="calls of a scenario at once (%(default)s)")
    parser.add_argument("--serve", default="", help="options of `voxlane serve`, such as --serve=--adapter= (none)")
    parser.add_argument("--turn-detection", default="", help="over Realtime, such as semantic_vad (server_vad)")
    arguments = parser.parse_args()
    names = [one.name for one in load(arguments.scenarios)]
    options = ["--repeat", str(arguments.repeat), "--at-once", str(arguments.at_once)]
    for dialect in arguments.dialects:
        with server(*shlex.split(arguments.serve)) as url, ThreadPoolExecutor(arguments.processes) as pool:
            detection = arguments.turn_detection if dialect == "realtime" else ""
            chosen = [*options, *(["--turn-detection", detection] if detection else [])]
            one = partial(held, url=address(url, dialect), out=OUT / (detection or dialect), options=chosen)
            runs = [run for run in pool.map(one, names) if run is not None]
        report(dialect, runs)


if __name__ == "__main__":
    main()

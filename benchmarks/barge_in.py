"""Interruptions through a real server in real time, as voxlane-lab hears them at the person's loudspeaker.

The lab calls the server with the default models over both of its dialects: people stop it, cut into a word, interrupt
twice, say "mhm", cough and type. One call at a time first; then four and eight callers who stop it at once. The figures
are the lab's own (docs/lab-metrics.md), and the calls and a report page are kept in `build/barge_in`. There is no peer
here, but there are bars; other servers are measured with `voxlane-lab run`.

A last conversation is traced: what the engine still did for a held reply, and docs/img/barge-in.svg.

Time: half an hour with five repeats, most of it in real time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.command_line import REPOSITORY, command_line
from support.common import machine, table
from support.conversation import Person, person, server, spoken
from support.lab_figures import DIALECTS, HEADER, address, row, summary_of
from support.pictures.barge_in import draw
from support.pictures.lane import Lane, read

from voxlane_lab.results import RunResult, why_not_measurable
from voxlane_lab.runner import LabRunner, RunOptions, run_scenarios
from voxlane_lab.scenario_library import load
from voxlane_lab.summary import FlagShare

Sound = NDArray[np.int16]

SCENARIOS = ("hard_stop", "stop_in_mid_word", "two_quick_interruptions", "mhm", "short_words", "cough", "typing")
AT_ONCE = (4, 8)
MISSED_BAR, FALSE_BAR, STALE_BAR_MS = 0.02, 0.10, 0.0
INTERRUPTIONS = ("Stop, that is enough.", "No, I meant something else.", "Wait a moment, please.")
PROMPT = "Tell me a long story about a ship that sails around the world."
OUT = REPOSITORY / "build" / "barge_in"
PICTURE = Path(__file__).parent.parent / "docs" / "img" / "barge-in.svg"


def tell(text: str) -> None:
    """Show what is going on."""
    print(f"\r  {text:<90}", end="", file=sys.stderr, flush=True)


def one_at_a_time(url: str, repeat: int, names: Sequence[str]) -> Iterator[tuple[str, RunResult]]:
    """Yield the run of each dialect."""
    for dialect in DIALECTS:
        options = RunOptions(repeat=repeat)
        out = OUT / dialect
        yield dialect, run_scenarios(load(names), url=address(url, dialect), options=options, out=out, progress=tell)


async def at_once(url: str, callers: int, repeat: int) -> list[RunResult]:
    """Return the runs of people who all stop the server in the same minute."""
    scenarios = load(["hard_stop"])
    runners = [
        LabRunner(scenarios, address(url, "native"), "native", RunOptions(repeat=repeat, seed=seed), tell)
        for seed in range(1, callers + 1)
    ]
    for runner in runners:
        await runner.prepare()
    return await asyncio.gather(*(runner.run(None) for runner in runners))


def report_bars(results: Sequence[RunResult]) -> None:
    """Print whether each bar is met."""
    summary = summary_of(results)
    stale = summary.numbers["stale_ms"].max if "stale_ms" in summary.numbers else 0.0

    def share(metric: str) -> float:
        found: FlagShare | None = summary.flags.get(metric)
        return found.share if found else 0.0

    bars = {
        f"missed ≤ {MISSED_BAR:.0%}": share("missed") <= MISSED_BAR,
        f"false stops ≤ {FALSE_BAR:.0%}": share("false_stop") <= FALSE_BAR,
        "no stale sound": stale <= STALE_BAR_MS,
    }
    print("  bars: " + "; ".join(f"{bar}: {'met' if met else 'missed'}" for bar, met in bars.items()))
    for run in results:
        if reason := why_not_measurable(run):
            print(f"  not measurable ({run.dialect}): {reason}")


async def interrupt(somebody: Person, sound: Sound, delay_s: float) -> None:
    """Let the assistant talk, and interrupt it."""
    since = len(somebody.events)
    await somebody.client.say(PROMPT)
    assert await somebody.wait("audio", since, 60.0) is not None, "no reply"
    await asyncio.sleep(delay_s)
    since = len(somebody.events)
    somebody.speak(sound)
    await somebody.wait("interrupted", since, 4.0)
    await asyncio.sleep(0.4)


async def traced(url: str, sounds: Sequence[Sound]) -> list[Person]:
    """Return people who interrupt the server once each."""
    chance, people = random.Random(1), []
    for sound in sounds:
        async with person(url, max_tokens=200, temperature=0.0) as somebody:
            await interrupt(somebody, sound, chance.uniform(0.3, 1.5))
        people.append(somebody)
    return people


def late_work(somebody: Person, lanes: list[Lane]) -> list[tuple[int, float]]:
    """Return, for every hold, how many steps of the reply began after it, and how much later the last of them ended."""
    found = []
    for at, event in somebody.events:
        if event.name == "hold":
            ends = [t for t, e in somebody.events if e.name in ("interrupted", "release") and t > at]
            hold_ms, over_ms = at * 1e3, min(ends, default=at) * 1e3  # both processes' clocks are the machine's
            spans = {
                (start, stop)
                for lane in lanes
                for what, start, stop in lane.spans
                if lane.name.startswith("high") and what in ("prefill", "decode", "say") and hold_ms < start < over_ms
            }
            found.append((len(spans), max((stop - hold_ms for _, stop in spans), default=0.0)))
    return found


def report_late(late: list[tuple[int, float]]) -> None:
    """Print how much the engine worked for replies on hold."""
    if not late:
        print("  engine: no reply was held")
        return
    steps, longest = max(count for count, _ in late), max(ms for _, ms in late)
    print(
        f"  engine, {len(late)} holds: at most {steps} steps of the held reply began after the client was told, "
        f"the last of them ended {longest:.0f} ms later"
    )


def report_trace() -> None:
    """Draw the picture, and print what the engine did for held replies."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with server("--trace", str(trace)) as url:
            people = asyncio.run(traced(url, [spoken(url, text) for text in INTERRUPTIONS]))
        lanes = read(trace)
    last = people[-1]
    PICTURE.write_text(draw(last.events, last.input, last.output, lanes, machine()), encoding="utf-8")
    report_late([work for somebody in people for work in late_work(somebody, lanes)])


def main() -> None:
    """Measure, print the tables, write the files."""
    parser = command_line(__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="calls of each scenario (%(default)s)")
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, help="scenarios of the lab, or `all`")
    parser.add_argument("--at-once", nargs="*", type=int, default=AT_ONCE, help="how many callers (%(default)s)")
    arguments = parser.parse_args()
    rows, results = [], []
    with server("--adapter=") as url:  # with its adapter the default model tells stories of one sentence
        for dialect, result in one_at_a_time(url, arguments.repeat, arguments.scenarios):
            rows.append(row(dialect, [result]))
            results.append(result)
        for callers in arguments.at_once:
            found = asyncio.run(at_once(url, callers, arguments.repeat))
            rows.append(row(f"native, {callers} at once, hard_stop", found))
            results += found
    print(file=sys.stderr)
    table(f"barge-in by the lab, {machine()}: ms, p50 (p95), n", ["calls", *HEADER], rows)
    report_bars(results)
    report_trace()


if __name__ == "__main__":
    main()

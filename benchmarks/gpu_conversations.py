"""The whole service under many conversations at once: people who ask, listen and interrupt, over WebSockets.

    python benchmarks/gpu_conversations.py --people 128,256,512 --processes 8 --talkers 6     # on a machine with a GPU
    python benchmarks/gpu_conversations.py --people 2 --seconds 20                            # two cores
    python benchmarks/gpu_conversations.py --people 512 --serve=--model=PATH                  # another chat model

(support/talking_model.py writes a chat model of any shape that has something to say.)

One `voxlane serve` for all rows. The people are in processes of their own (support/crowd/talkers.py), and on a
machine of many cores they have cores of their own (--talkers of them). They say how late they were: a row whose people
were late by more than a frame says nothing about the server. "voice to voice" runs
from the last sound of a question to the first sound of the answer; "dry" is a loudspeaker without sound in the middle
of a reply; an interruption is in force when the reply is lowered, and when it is silent. The processor time is a share
of a core: of the engine's busiest thread, of the engine, of the busiest server process and of all of them.

Targets: first sound p95 at most 450 ms, no reply dry, no stale sound, nobody unanswered.

Time: the server's start, and for each row --seconds, an eighth of a second for each person, and ten.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from support.command_line import command_line, module_environment
from support.common import machine, table
from support.conversation import server_process, spoken
from support.crowd.talkers import OPENS_PER_S, Diary
from support.figures import percentile
from support.process_times import command, family, processor_s, thread_times_s
from voice_to_voice import QUESTIONS

INTERRUPTION = "Wait, stop. That is not what I meant."
SETTLE_S = 8.0  # from the last connection to the first figure
FIRST_SOUND_MS, FRAME_MS = 450.0, 20.0
CONFIG = """
[room]
measured = false
[voice]
sessions = 4096
[limits]
connections = 8192
"""
HEADER = (
    "people", "turns", "p50", "p95", "p99", "dry replies", "lowered p50", "p95", "silent p50", "p95", "missed",
    "stale", "unanswered", "loop lag p99", "step thread", "engine", "busiest server", "servers", "people late p99",
    "targets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """Processor time at one moment, in seconds."""

    engine: dict[int, float]  # by process
    threads: dict[int, float]  # of the engine
    servers: dict[int, float]


def times(root: int) -> Times:
    """Return the processor time of a running server, by its parts."""
    members = family(root)
    engines = [one for one in members if "voxlane.engine" in command(one)]
    servers = [one for one in members if one not in engines]
    threads = {thread: spent for one in engines for thread, spent in thread_times_s(one).items()}
    return Times({one: processor_s(one) for one in engines}, threads, {one: processor_s(one) for one in servers})


def lags(url: str) -> dict[float, float]:
    """Return how often the event loops' lag was at most so many seconds."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    found: dict[float, float] = {}
    for group in text_string_to_metric_families(text):
        for sample in group.samples:
            if sample.name == "voxlane_loop_lag_seconds_bucket":
                limit = float(sample.labels["le"])
                found[limit] = found.get(limit, 0.0) + sample.value
    return found


def lag_p99_ms(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the limit of the histogram's class in which the 99th percentile lies."""
    counts = {limit: after[limit] - before.get(limit, 0.0) for limit in sorted(after)}
    total = max(counts.values(), default=0.0)
    return next((limit * 1e3 for limit, count in counts.items() if total and count >= 0.99 * total), float("nan"))


def busiest(before: dict[int, float], after: dict[int, float], seconds: float) -> float:
    """Return the share of a core of the busiest process or thread that was there all the time."""
    return max((after[one] - before[one] for one in before.keys() & after.keys()), default=0.0) / seconds


def part_cores(talkers: int) -> tuple[set[int], set[int]]:
    """Return the cores of the server and those of the people; on a machine of few cores they share all."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 3 * talkers:
        return set(cores), set(cores)
    return set(cores[:-talkers]), set(cores[-talkers:])


def measure(url: str, root: int, people: int, clips: Path, options: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    port = urlsplit(url).port
    shares = [people // options.talkers + (number < people % options.talkers) for number in range(options.talkers)]
    crowd = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "support.crowd.talkers", "--port", str(port), "--people", str(share)),
                *("--seconds", str(options.seconds), "--number", str(number), "--clips", str(clips)),
                *("--diary", str(clips.with_name(f"diary-{number}.json"))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=module_environment(),
        )
        for number, share in enumerate(shares)
        if share
    ]
    for one in crowd:
        assert one.stdout is not None
        one.stdout.readline()  # ready
    time.sleep(SETTLE_S)
    before, lag, began = times(root), lags(url), time.perf_counter()
    for one in crowd:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    time.sleep(options.seconds)
    after, later, took = times(root), lags(url), time.perf_counter() - began
    for one in crowd:
        one.communicate(timeout=120)
    diaries = [clips.with_name(f"diary-{number}.json") for number, share in enumerate(shares) if share]
    diary = together([json.loads(one.read_text("utf-8")) for one in diaries])
    cells = [
        f"{lag_p99_ms(lag, later):.0f}",
        f"{busiest(before.threads, after.threads, took):.0%}",
        f"{busiest(before.engine, after.engine, took):.0%}",
        f"{busiest(before.servers, after.servers, took):.0%}",
        f"{sum(after.servers.values()) / took - sum(before.servers.values()) / took:.0%}",
    ]
    return row(people, diary, cells)


def together(parts: list[dict[str, object]]) -> Diary:
    """Return the diaries of all processes as one."""
    whole = Diary()
    for part in parts:
        for name, value in part.items():
            setattr(whole, name, getattr(whole, name) + value)
    return whole


def row(people: int, diary: Diary, cells: list[str]) -> list[str]:
    """Return the cells of a row."""
    waits = [_at(diary.voice_to_voice, share) for share in (0.5, 0.95, 0.99)]
    acted = [_at(values, share) for values in (diary.lowered, diary.silent) for share in (0.5, 0.95)]
    late = percentile(diary.late, 0.99) if diary.late else float("nan")
    return [
        f"{people}{f' ({diary.refused} refused)' if diary.refused else ''}",
        str(len(diary.voice_to_voice)),
        *waits,
        f"{diary.dry_replies} of {diary.replies}",
        *acted,
        f"{diary.missed} of {diary.missed + len(diary.ended)}, {diary.too_late} too late",
        str(diary.stale),
        str(diary.unanswered + diary.closed),
        *cells,
        f"{late:.1f}",
        verdict(diary, late),
    ]


def verdict(diary: Diary, late: float) -> str:
    """Return whether the targets are met."""
    if late > FRAME_MS or not diary.voice_to_voice:
        return "not measurable"
    wrong = diary.dry_replies or diary.stale or diary.unanswered or diary.closed or diary.refused or diary.missed
    fast = percentile(diary.voice_to_voice, 0.95) <= FIRST_SOUND_MS
    return "met" if fast and not wrong else "missed"


def _at(values: list[float], share: float) -> str:
    return f"{percentile(values, share):.0f}" if values else "–"


def main() -> None:
    """Start the server, measure row by row, print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--people", default="1,4", help="conversations at once, a row each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="that count, a row (%(default)g)")
    parser.add_argument("--talkers", type=int, default=1, help="processes of people (%(default)d)")
    parser.add_argument("--processes", type=int, default=0, help="of the server; 0: its own choice")
    parser.add_argument("--serve", action="append", default=[], metavar="=OPTION", help="more for `voxlane serve`")
    parser.add_argument("--log", type=Path, help="where the server's log goes; default: nowhere")
    options = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, (options.log or Path("/dev/null")).open("w") as log:
        config = Path(folder) / "voxlane.toml"
        config.write_text(CONFIG)
        more = [*options.serve, *(["--processes", str(options.processes)] if options.processes else [])]
        served, shared = part_cores(options.talkers)
        os.sched_setaffinity(0, served)
        with server_process("--config", str(config), *more, log=log) as (url, process):
            os.sched_setaffinity(0, shared)
            sounds = [spoken(url, text) / np.float32(32768) for text in (*QUESTIONS, INTERRUPTION)]
            clips = Path(folder) / "clips.npz"
            np.savez(clips, *sounds)
            for people in map(int, options.people.split(",")):
                rows.append(measure(url, process, people, clips, options))
                print(f"{people} people: {', '.join(f'{a} {b}' for a, b in zip(HEADER, rows[-1], strict=True))}")
                sys.stdout.flush()
    table(f"conversations, {machine()}: milliseconds, shares of a core", HEADER, rows)
    print(
        f"  {len(served)} cores for the server, {len(shared)} for the people{' (the same)' if served == shared else ''}"
    )
    print(f"  {1 / OPENS_PER_S:.3f} s between two people who come, in each of {options.talkers} processes")


if __name__ == "__main__":
    main()

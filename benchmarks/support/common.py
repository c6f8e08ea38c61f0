"""An engine in this process, a table, and medians of interleaved runs, for the benchmarks on a CPU."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from voxlane.engine.api import EngineConfig, SamplingParams, Submit
from voxlane.engine.build.assemble import Assembly, assemble
from voxlane.engine.loop.core import Core

THREADS = len(os.sched_getaffinity(0))

MODEL = "smollm2-135m-instruct"
"""The chat model for benchmarks of the scheduler and the cache: small, so that its matrix products do not dominate."""


def engine(**changes: object) -> Assembly:
    """Return a new engine with MODEL and these settings."""
    config = EngineConfig(MODEL, threads=THREADS, asr_model="", tts_model="")
    return assemble(replace(config, **changes))  # type: ignore[arg-type]


def request(name: str, text: str, tokens: int, **settings: object) -> Submit:
    """Return a greedy request for exactly `tokens` tokens."""
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, "complete", text=text, sampling=sampling, **settings)  # type: ignore[arg-type]


def finish(core: Core) -> None:
    """Step until the engine is idle."""
    while core.busy:
        core.step()


def seconds(action: Callable[[], object]) -> float:
    """Return the seconds that `action` takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def interleaved(repeats: int, *actions: Callable[[], float]) -> list[list[float]]:
    """Run the actions in turn, so that a slow minute affects all; return each action's results."""
    results: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for index, action in enumerate(actions):
            results[index].append(action())
    return results


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median and the range as text."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with its title."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    print(f"\n{title}")
    for row in [header, ["-" * width for width in widths], *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def machine() -> str:
    """Return the machine's architecture and the number of threads."""
    return f"{platform.machine()}, {THREADS} threads"

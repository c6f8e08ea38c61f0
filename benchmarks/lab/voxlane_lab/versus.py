"""Hold every call with two servers, one right after the other, and compare them.

Two runs one after the other meet a machine and a network in two moods, and a comparison then shows the moods. Here both
servers meet the same ones: the two calls of a pair are held within a minute, every second pair in the other order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from voxlane_lab.results import RunResult
from voxlane_lab.runner import HeldCall, LabRunner, PlannedCall, Progress, RunOptions, make_run_folder
from voxlane_lab.scenario import Scenario

FOLDERS = ("first", "second")


def run_versus(
    scenarios: Sequence[Scenario],
    *,
    urls: tuple[str, str],
    dialect: str | None = None,
    options: RunOptions | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> tuple[RunResult, RunResult]:
    """Hold all calls with both servers; return the results; with `out`, write the folders `first` and `second`."""
    tell = progress or (lambda text: None)
    options = options or RunOptions()
    pair = [
        LabRunner(scenarios, url, dialect, options, _naming(name, tell))
        for name, url in zip(FOLDERS, urls, strict=True)
    ]
    return asyncio.run(_Versus((pair[0], pair[1]), options.at_once).run(out))


def _naming(name: str, tell: Progress) -> Progress:
    return lambda text: tell(f"{name} server: {text}")


class _Versus:
    """One run against two servers."""

    def __init__(self, runners: tuple[LabRunner, LabRunner], at_once: int) -> None:
        self._runners = runners
        self._at_once = at_once
        self._held: tuple[dict[tuple[int, int], HeldCall], ...] = ({}, {})  # by scenario and repeat

    async def run(self, out: Path | None) -> tuple[RunResult, RunResult]:
        folders = [None if out is None else out / name for name in FOLDERS]
        for folder in folders:
            if folder is not None:
                make_run_folder(folder)
        for runner in self._runners:
            await runner.prepare()
        try:
            pairs = self._pairs()
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._hold_some(pairs))
        finally:  # a run that is stopped keeps the calls that were held
            results = [
                await runner.conclude([held[place] for place in sorted(held)], folder)
                for runner, held, folder in zip(self._runners, self._held, folders, strict=True)
                if held
            ]
        return results[0], results[1]

    def _pairs(self) -> Iterator[tuple[int, tuple[PlannedCall, PlannedCall]]]:
        """Yield the two calls of each pair, with the number of their scenario; their sounds are made just before."""
        first, second = self._runners
        for number, (one, other) in enumerate(zip(first.scenarios, second.scenarios, strict=True)):
            for repeat in range(one.repeat):
                yield number, (first.make_call(one, repeat), second.make_call(other, repeat))

    async def _hold_some(self, pairs: Iterator[tuple[int, tuple[PlannedCall, PlannedCall]]]) -> None:
        for number, calls in pairs:
            repeat = calls[0].repeat
            for side in (0, 1) if repeat % 2 == 0 else (1, 0):
                held = await self._runners[side].hold(calls[side])
                self._held[side][number, repeat] = held
                if held.recording.failure:
                    for _ in pairs:  # the next call would fail in the same way
                        pass

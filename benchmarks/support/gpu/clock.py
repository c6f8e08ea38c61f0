"""Time work by a device's own events, measure its bandwidth, and name the exceptions that a device may raise."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch
from triton.errors import TritonError

FAILURES = (RuntimeError, AssertionError, ImportError, OSError, TritonError)
"""The exceptions of a device, a compiler, a missing peer or an impossible figure. Any other is a bug of ours."""
WARM_SECONDS = 0.01
"""Seconds of work before timing: an idle device has lowered its clocks."""


def time_device(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the median seconds of `work` on the device; on a CPU, which has no events, those of one run.

    There is no wait between the runs: on an idle device the host's launch time would count.
    """
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    work()
    for mark in marks[:-1]:
        mark.record()
        work()
    marks[-1].record()
    torch.cuda.synchronize()
    spans: list[float] = sorted(a.elapsed_time(b) for a, b in itertools.pairwise(marks))
    return spans[len(spans) // 2] / 1e3


def time_in_turns(works: Sequence[Callable[[], object]], rounds: int, device: torch.device) -> list[list[float]]:
    """Return the seconds of each work in every round, shortest first; all run in one loop on a warm device.

    A round runs each work once and begins with another work every time, so that the order favours none.
    """
    if device.type != "cuda":
        return [[time_device(work, 1, device)] for work in works]
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_SECONDS:
        for work in works:
            work()
        torch.cuda.synchronize()
    turns = [(round_ + place) % len(works) for round_ in range(rounds) for place in range(len(works))]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(turns) + 1)]  # type: ignore[no-untyped-call]
    works[0]()  # the first mark too is recorded on a busy device
    for mark, turn in zip(marks, turns, strict=False):
        mark.record()
        works[turn]()
    marks[-1].record()
    torch.cuda.synchronize()
    spans: list[list[float]] = [[] for _ in works]
    for turn, (before, after) in zip(turns, itertools.pairwise(marks), strict=True):
        spans[turn].append(before.elapsed_time(after) / 1e3)
    return [sorted(each) for each in spans]


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes a second, read and written, of a large copy on the device.

    It is launched, not captured: the same copy as a node of a CUDA graph reached 2.8 TB/s, this one 4.3.
    """
    size = (4 << 30) if device.type == "cuda" else (1 << 20)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * size / time_device(lambda: target.copy_(source), 10, device)

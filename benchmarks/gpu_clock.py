"""Times on a device by its own events, the bandwidth that figures are measured against, and what may fail there."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from triton.errors import TritonError

FAILURES = (RuntimeError, AssertionError, ImportError, OSError, TritonError)
"""What a device, a compiler, a peer that is not there or a figure that cannot be may raise. All else is our mistake."""


def time_device(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the median seconds of `work` on the device; without events, on a CPU, those of one run.

    Nothing waits between the runs: a device that stands idle would count the host's time to launch.
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


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes a second, read and written, of a large copy on the device.

    Launched, not captured: the same copy as a node of a CUDA graph was seen at 2.8 TB/s, this at 4.3.
    """
    size = (4 << 30) if device.type == "cuda" else (1 << 20)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * size / time_device(lambda: target.copy_(source), 10, device)

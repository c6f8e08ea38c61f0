"""What every engine on a device needs: how long its step took there, and whether the device still answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

OUT_OF_MEMORY = "the device's memory is full: set engine.gpu_memory_share or engine.max_step_tokens lower"


class DeviceLost(Exception):
    """The device answers every call with an error; only a new process has a sound one."""


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Raise DeviceLost instead of a fault that will be the answer to every later call, such as an illegal address."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()  # what lies kept in pieces may do together
        raise RuntimeError(OUT_OF_MEMORY) from error
    except RuntimeError as error:
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
            except RuntimeError as still:
                raise DeviceLost(str(still).partition("\n")[0]) from error
        raise


class Stopwatch:
    """Times what is queued between `start` and `stop` on the current stream; on the CPU, where nothing is queued, now.

    One for each step in flight: a step may be queued before the one before it was asked for its time.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._times = [0.0, 0.0]

    def start(self) -> None:
        """Begin here in the stream."""
        self._mark(0)

    def stop(self) -> None:
        """End here in the stream."""
        self._mark(1)

    def done(self) -> bool:
        """Return whether the end was reached."""
        return self._events is None or bool(self._events[1].query())  # type: ignore[no-untyped-call]

    def join(self) -> None:
        """Wait for the end."""
        if self._events is not None:
            self._events[1].synchronize()

    def wait(self) -> tuple[float, float]:
        """Wait for the end; return from when to when it was, by the host's clock, if it ended just now."""
        if self._events is None:
            return self._times[0], self._times[1]
        first, last = self._events
        last.synchronize()
        end = time.monotonic()
        return end - first.elapsed_time(last) / 1e3, end

    def _mark(self, which: int) -> None:
        if self._events is None:
            self._times[which] = time.monotonic()
        else:
            self._events[which].record()

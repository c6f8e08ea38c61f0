"""What every runner on a device needs: how long its step took there, and whether the device still answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

OUT_OF_MEMORY = "the device's memory is full: set engine.gpu_memory_share or engine.max_step_tokens lower"

HUNG_S = 60.0
"""How long queued work may take before the device is taken for lost. A step takes tens of milliseconds, and no person
waits a minute for a word; but a GPU that is shared may be slow for a while."""


class DeviceLost(Exception):
    """The device answers every call with an error, or no longer answers; only a new process can use it again."""


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Raise DeviceLost for a fault that every later call would raise again, such as an illegal address."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()  # the cached pieces may suffice together
        raise RuntimeError(OUT_OF_MEMORY) from error
    except RuntimeError as error:
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
            except RuntimeError as still:
                raise DeviceLost(str(still).partition("\n")[0]) from error
        raise


class Stopwatch:
    """Times the work queued between `start` and `stop` on the current stream; on the CPU, the calls themselves.

    One for each step in flight: a step may be queued before the time of the step before was read.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events = None
        if device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._times = [0.0, 0.0]  # the host's clock at start and stop

    def start(self) -> None:
        """Mark the start in the stream."""
        self._mark(0)

    def stop(self) -> None:
        """Mark the end in the stream."""
        self._mark(1)

    def done(self) -> bool:
        """Return whether the end was reached; raise DeviceLost if it should have been long ago.

        A caller that polls here still answers the server, so nothing else would notice a lost device.
        """
        if self._events is None or self._events[1].query():  # type: ignore[no-untyped-call]
            return True
        if self._clock() - self._times[1] > HUNG_S:
            raise DeviceLost(f"what was queued {HUNG_S:g} s ago has not ended")
        return False

    def join(self) -> None:
        """Wait for the end."""
        if self._events is not None:
            self._events[1].synchronize()

    def wait(self) -> tuple[float, float]:
        """Wait for the end; return start and end by the host's clock, as if the work had ended just now."""
        if self._events is None:
            return self._times[0], self._times[1]
        first, last = self._events
        last.synchronize()
        end = self._clock()
        return end - first.elapsed_time(last) / 1e3, end

    def _mark(self, which: int) -> None:
        self._times[which] = self._clock()
        if self._events is not None:
            self._events[which].record()

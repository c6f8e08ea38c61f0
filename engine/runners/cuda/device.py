"""What every engine on a device needs: how long its step took there, and whether the device still answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

OUT_OF_MEMORY = "the device's memory is full: set engine.gpu_memory_share or engine.max_step_tokens lower"

HUNG_S = 60.0
"""How long what was queued may take before the device is taken for lost. A step takes tens of milliseconds there, and
who waits a minute for a word has hung up; but a GPU that others use too may be slow for a while."""


class DeviceLost(Exception):
    """The device answers every call with an error, or none any more; only a new process has a sound one."""


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

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events = None
        if device.type == "cuda":
            self._events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._times = [0.0, 0.0]  # when the host was there

    def start(self) -> None:
        """Begin here in the stream."""
        self._mark(0)

    def stop(self) -> None:
        """End here in the stream."""
        self._mark(1)

    def done(self) -> bool:
        """Return whether the end was reached; raise DeviceLost if it should have been long ago.

        Who asks again and again answers the server meanwhile, so that nobody else notices.
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
        """Wait for the end; return from when to when it was, by the host's clock, if it ended just now."""
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

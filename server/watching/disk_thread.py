"""A thread for work on the disk: a slow disk delays no conversation, and one that hangs does not hold up the end."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from voxlane.server import limits
from voxlane.server.log import line

logger = logging.getLogger(__name__)

CLOSE_SECONDS = limits.ENGINE_STOP_SECONDS
"""Time at shutdown for work that waits, beside the engine's end."""


class DiskThread:
    """Runs jobs one after the other, in the order in which they were given."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a hanging disk must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="recordings", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], None]) -> None:
        """Run a job later."""
        self._jobs.put(job)

    async def finished(self) -> None:
        """Wait until all jobs that were given so far are done."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.do(lambda: _tell(loop, done))
        await done.wait()

    async def aclose(self) -> None:
        """Finish the jobs that wait, for at most CLOSE_SECONDS, and end the thread."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.finished()
                self._jobs.put(None)
                self._thread.join(CLOSE_SECONDS)
                return
        self._jobs.put(None)
        logger.warning(line("recordings lost", reason="the disk does not answer"))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # a bug ends one job, not the thread
                logger.exception(line("bug", error=type(error).__name__))


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(done.set)

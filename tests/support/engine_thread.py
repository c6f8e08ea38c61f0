"""The scripted engine in a thread of this process, behind a real socket pair: it starts in a millisecond.

It does what the child process does, but for what only a process can: stop, fork, count its steps, die of a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from scripted_engine import Crash, ScriptedEngine

from voxlane.engine.api import ProgressPage
from voxlane.engine.links import Gone
from voxlane.server.engine_client.child import EngineChild
from voxlane.server.engine_client.step_watch import ThreadFacts

IN_THREAD = ("a thread",)
"""Stands where the command line of a child stands."""

NEEDS_A_PROCESS = ("stop-at-start", "counting", "forking")
"""Names of models that make the scripted engine do what only a process can."""

_numbers = itertools.count(1 << 40)


class EngineThread(EngineChild):
    """Has the face of the child process that it replaces."""

    def __init__(self, link: socket.socket) -> None:
        self.page = ProgressPage()
        self._number = next(_numbers)  # no process has such a number: a signal to it fails
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._lost = lambda _: None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="scripted engine", daemon=True)
        self._thread.start()

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> tuple[Self, socket.socket]:
        """Start a thread; return it, and our end of the engine's link."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(its), ours

    @property
    def pid(self) -> int | None:
        """A number that no other engine has, as long as this one runs."""
        return None if self._ended.is_set() else self._number

    @property
    def can_fork(self) -> bool:
        """Whether there is a template."""
        return False

    @property
    def ending(self) -> str:
        """How it has ended, for the log."""
        return ""

    def on_exit(self, lost: Callable[[str], None]) -> None:
        """Call `lost` when the thread has ended."""
        self._lost = lost

    def facts(self) -> ThreadFacts | None:
        """Return what the kernel tells about the step thread: here nothing."""
        return None

    def read_control(self) -> None:
        """There is no template to read from."""

    def kill(self) -> None:
        """End the thread at its next read or write."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    terminate = kill

    async def end_engine(self) -> None:
        """Wait for the end of an engine that was told to end."""
        await self._ended.wait()

    async def close(self, *, at_once: bool = False) -> None:
        """End everything."""
        self.kill()
        await self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        with self._link, contextlib.suppress(Crash, Gone, SystemExit, OSError):
            ScriptedEngine(self._link, in_thread=True).run()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_end)

    def _on_end(self) -> None:
        self._ended.set()
        self._lost("exited")

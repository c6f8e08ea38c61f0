"""The processes of an engine: the one that was started, and the one that serves.

They are the same process, unless the started one has become a template (engine/template.py). Then the engine that
serves is the template's fork, and another one is forked when it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from voxlane.engine.api import FORK, PAGE_BYTES, ProgressPage, UndecodableMessage, decode_forked
from voxlane.server import limits
from voxlane.server.engine_client.step_watch import ThreadFacts
from voxlane.server.log import line

logger = logging.getLogger(__name__)

_SECRET = re.compile(r"VOXLANE_\w*(KEY|TOKEN|SECRET|PASSWORD)")
"""The server's secrets by their names in the environment: an engine, which computes what strangers send, gets none."""

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class EngineChild:
    """A started process and its forks, one of which serves."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, page: ProgressPage) -> None:
        control.setblocking(False)
        self.page = page
        self._spare = SpareDescriptor()
        self._process = process
        self._control: socket.socket | None = control
        self._loop = asyncio.get_running_loop()
        self._fork: _Fork | None = None
        self._lost: Callable[[str], None] = lambda _: None
        self._closing = False
        self._changed = asyncio.Event()  # a fork has come up, or the template is gone
        self._exited = asyncio.create_task(process.wait(), name="engine exit")
        self._exited.add_done_callback(lambda _: self._on_exit())
        self._loop.add_reader(control.fileno(), self.read_control)

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> tuple[Self, socket.socket]:
        """Start a process in our environment without secrets, with additions; return it and our end of its link."""
        known = {name: value for name, value in os.environ.items() if not _SECRET.fullmatch(name)}
        with contextlib.ExitStack() as opened:
            link, its_link = _pair(opened)
            control, its_control = _pair(opened)
            descriptor = os.memfd_create("voxlane-progress")
            opened.callback(os.close, descriptor)
            os.ftruncate(descriptor, PAGE_BYTES)
            page = ProgressPage(descriptor)
            opened.callback(page.close)
            given = (its_link.fileno(), descriptor, its_control.fileno())
            # A new process session: Ctrl-C in the terminal reaches only the server, which drains, then stops the child.
            # stdout belongs to the command (`voxlane chat` prints the reply there), so the child's goes to stderr.
            process = await asyncio.create_subprocess_exec(
                *command,
                *map(str, given),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                pass_fds=given,
                start_new_session=True,
                env={**known, **(environment or {})},
            )
            try:
                child = cls(process, control, page)
            except BaseException:
                _signal_group(process, signal.SIGKILL)
                await process.wait()
                raise
            opened.pop_all()
            for end in (its_link, its_control):
                end.close()
            os.close(descriptor)
        return child, link

    @property
    def pid(self) -> int | None:
        """The process number of the engine that serves or loads; None if it has ended."""
        if self._fork is not None:
            return self._fork.pid
        return self._process.pid if self._process.returncode is None else None

    @property
    def can_fork(self) -> bool:
        """Whether there is a template that can be asked for another engine."""
        return self._fork is not None and self._control is not None and self._process.returncode is None

    @property
    def ending(self) -> str:
        """How the started process has ended, for the log."""
        return "" if self._process.returncode is None else f", exit status {self._process.returncode}"

    def on_exit(self, lost: Callable[[str], None]) -> None:
        """Call `lost` when the engine that serves has ended."""
        self._lost = lost

    async def fork(self) -> socket.socket:
        """Ask the template for another engine; return our end of its link, or raise OSError."""
        assert self._control is not None
        with contextlib.ExitStack() as opened:
            link, its_link = _pair(opened)
            self._drop_fork()
            self.page.clear()
            self._changed.clear()
            socket.send_fds(self._control, [FORK], [its_link.fileno()])
            its_link.close()
            async with asyncio.timeout(limits.FORK_SECONDS):
                await self._changed.wait()
            if self._fork is None:
                raise OSError("the template is gone")
            opened.pop_all()
        return link

    def facts(self) -> ThreadFacts | None:
        """Return what the kernel tells about the step thread, which is the first of its process."""
        pid = self.pid
        try:
            fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="ascii", errors="replace")
            state, *rest = fields.rpartition(")")[2].split()
            return ThreadFacts(state, (int(rest[10]) + int(rest[11])) / _CLOCK_TICKS)
        except (OSError, ValueError, IndexError):
            return None

    def read_control(self) -> None:
        """Read what the template has sent; an engine sends its number there before it is ready."""
        while self._control is not None:
            try:
                packet = self._control.recv(256)
                if not packet:
                    raise ConnectionResetError
                self._drop_fork()
                self._fork = _Fork(decode_forked(packet).pid, self._on_fork_exit, self._spare)
            except BlockingIOError:
                return
            except (OSError, UndecodableMessage):
                self._leave_template()
            self._changed.set()

    def kill(self) -> None:
        """Kill the engine that serves or loads."""
        if self._fork is not None:
            self._fork.kill()
        else:
            _signal_group(self._process, signal.SIGKILL)

    async def end_engine(self) -> None:
        """Wait for the end of an engine that was told to end; kill it if it takes too long."""
        if self._fork is not None:
            await self._fork.end()
        else:
            await self._end_process()

    async def close(self, *, at_once: bool = False) -> None:
        """End everything; `at_once` kills what does not end by itself."""
        self._closing = True
        if at_once:
            _signal_group(self._process, signal.SIGKILL)
        if self._fork is not None:
            await self._fork.end()
        self._leave_template()
        await self._end_process()
        await asyncio.wait({self._exited})
        self._drop_fork()
        self._spare.close()
        self.page.close()

    def terminate(self) -> None:
        """Ask a loading process to end: it does not read its socket, and may run a download in a process of its own."""
        _signal_group(self._process, signal.SIGTERM)

    async def _end_process(self) -> None:
        try:
            async with asyncio.timeout(limits.ENGINE_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            logger.warning(line("engine killed", pid=self._process.pid, waited_s=limits.ENGINE_STOP_SECONDS))
            _signal_group(self._process, signal.SIGKILL)
            await self._process.wait()

    def _on_exit(self) -> None:
        if self._fork is None:
            self._lost("exited")
        elif not self._closing:
            logger.warning(line("template lost", status=self._process.returncode))  # the engine goes on without it
        self._leave_template()

    def _on_fork_exit(self) -> None:
        self._lost("exited")

    def _leave_template(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
            self._changed.set()

    def _drop_fork(self) -> None:
        if self._fork is not None:
            self._fork.close()
            self._fork = None


class SpareDescriptor:
    """A descriptor that is kept for the moment in which this process has no other left."""

    def __init__(self) -> None:
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def open_process(self, pid: int) -> int:
        """Return a descriptor of a process, even if there is no other left: else a sound engine would seem lost."""
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if error.errno != errno.EMFILE or self._spare < 0:
                raise
            self.close()
            return os.pidfd_open(pid)
        finally:
            self._refill()

    def close(self) -> None:
        """Give it up."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _refill(self) -> None:
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)


class _Fork:
    """An engine that is not our child: it is known by a descriptor, which no other process can get."""

    def __init__(self, pid: int, exited: Callable[[], None], spare: SpareDescriptor) -> None:
        self.pid: int | None = pid
        self._exited = asyncio.Event()
        self._notify = exited
        self._loop = asyncio.get_running_loop()
        self._descriptor = -1
        try:
            self._descriptor = spare.open_process(pid)
        except ProcessLookupError:
            self._loop.call_soon(self._on_exit)
        else:
            self._loop.add_reader(self._descriptor, self._on_exit)

    def kill(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    async def end(self) -> None:
        try:
            async with asyncio.timeout(limits.ENGINE_STOP_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            logger.warning(line("engine killed", pid=self.pid, waited_s=limits.ENGINE_STOP_SECONDS))
            self.kill()
            await self._exited.wait()

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_exit(self) -> None:
        self.close()
        if not self._exited.is_set():
            self.pid = None
            self._exited.set()
            self._notify()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, number)


def _pair(opened: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened.callback(ours.close)
    opened.callback(theirs.close)
    return ours, theirs

"""The engine child process: start, socket, restart, stop.

engine_client.py has the requests. When the child dies, running requests end with errors and a new child starts.

    starting ──Ready──▶ ready ──engine lost──▶ restarting ──Ready──▶ ready
        └──StartFailed──▶ failed ◀──too many restarts──┘                            stop(): stopped, from anywhere

An engine is lost when its process ends, or when its step thread hangs (step_watch.py). After many restarts in a row
that fail at loading, `given_up` is set: only a person can help.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from voxlane.engine.api import (
    AUTO_MODEL,
    Configure,
    EngineConfig,
    FromEngine,
    Loading,
    Ready,
    Shutdown,
    StartFailed,
)
from voxlane.server import limits
from voxlane.server.engine_client.child import EngineChild
from voxlane.server.engine_client.engine_client import EngineClient, LossCause, Observer
from voxlane.server.engine_client.packets import PacketPipe
from voxlane.server.engine_client.step_watch import LOOK_S, StepWatch
from voxlane.server.errors import EngineLost
from voxlane.server.log import line

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-m", "voxlane.engine.process")
"""The child's command line; the numbers of its descriptors are appended: engine/process.py has their order."""

StartChild = Callable[[Sequence[str], Mapping[str, str] | None], Awaitable[tuple[EngineChild, socket.socket]]]
"""Starts an engine with this command and these additions to its environment; returns it and our end of its link."""


class RestartBudget:
    """Decides how long to wait before a restart, and when the engine is reported as failed."""

    def __init__(self, most: int = limits.RESTARTS, window_s: float = limits.RESTART_WINDOW_SECONDS) -> None:
        self._most = most
        self._window_s = window_s
        self._times: deque[float] = deque()

    def next_delay(self, now: float) -> float | None:
        """Return the seconds to wait before a restart asked for at `now`, None if there were too many."""
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        self._times.append(now)
        doubled: float = limits.RESTART_DELAY_SECONDS * 2 ** (len(self._times) - 1)
        return min(doubled, limits.RESTART_DELAY_MOST_SECONDS)


class StartFailures:
    """Counts restarts in a row that fail because the engine cannot load."""

    def __init__(self, most: int, window_s: float) -> None:
        """Take `most` of them within `window_s` for a fault that stays; 0: none."""
        self._most = most
        self._window_s = window_s
        self._times: deque[float] = deque()

    def too_many(self, now: float, cause: LossCause) -> bool:
        """Count a loss; return whether another start makes no sense.

        That no process could be started says nothing about the engine: it neither counts nor ends the row.
        """
        if cause in ("died", "hung"):
            self._times.clear()
        elif cause == "failed_start":
            self._times.append(now)
        while self._times and now - self._times[0] > self._window_s:
            self._times.popleft()
        return 0 < self._most <= len(self._times)


class EngineProcess(EngineClient):
    """Runs the engine child and gives each request its stream."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        observers: Sequence[Observer] = (),
        restarts: RestartBudget | None = None,
        standby: bool = False,
        environment: Mapping[str, str] | None = None,
        start_child: StartChild = EngineChild.start,
    ) -> None:
        """Run an engine with this configuration; without `standby` its own is ignored: a short command needs none.

        `environment` is added to that of the engine's processes.
        """
        super().__init__(observers)
        self._start_failure = ""  # what the last child has said about its start
        self._served = False  # the present engine was ready
        self._hung = False  # it was given up because its steps hung
        self._failures = StartFailures(config.start_failures, config.start_failures_s)
        self._fresh = True  # it has loaded by itself, and is no fork of a template
        self._lost_forks = 0  # forks in a row that were lost before they were ready
        self._began_s = self._lost_s = 0.0  # start and loss, on the loop's clock
        self._load_s, self._fork_s = limits.LOAD_SECONDS, limits.FORKED_SECONDS  # how long the last ones took
        self._config = config if standby else replace(config, standby=False)
        self._command = tuple(command)
        self._start_child = start_child
        self._environment = dict(environment or {})
        self._restarts = restarts or RestartBudget()
        self._child: EngineChild | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process number of the engine, if there is one."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Begin to start the child; `wait_ready` waits for it."""
        self._expected_s = self._loop_time() + self._load_s
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def stop(self) -> None:
        """Fail the running requests, ask the child to exit, and kill it if it does not."""
        was_ready = self.state == "ready"
        self._set_state("stopped")
        self.abandon(lambda: EngineLost(detail="stopped"))
        if was_ready and self._pipe is not None:
            self._pipe.send(Shutdown())
        elif self._child is not None:
            self._child.terminate()
        if self._child is not None:
            await self._child.end_engine()
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._child is not None:
            await self._child.close()
            self._child = None

    def attach(self, link: socket.socket) -> None:
        """Give the engine the link of another server process; it is closed here once it is sent."""
        if self._pipe is not None:
            self._pipe.attach(link)
        else:
            link.close()

    async def _supervise(self) -> None:
        """Run one engine after another, until a person is needed: the first start or many restarts in a row fail."""
        while True:
            self._start_failure, self._served, self._hung = "", False, False
            ran = False
            try:
                link = await self._next_link()
                ran = True
                reason = await self._run_engine(link)
            except Exception as error:  # noqa: BLE001
                # Descriptors, memory or processes are used up: that may pass, and nothing else starts an engine.
                why = error.strerror if isinstance(error, OSError) else type(error).__name__
                reason = f"cannot run {self._command[0]}: {why}"
                ran = False
            if self.state == "stopped":
                return
            if self.ready is None:
                self._fail(self._start_failure or (reason if not ran else f"it died while starting ({reason})"))
                return
            if not await self._prepare_restart(self._cause(ran=ran), self._start_failure or reason):
                return

    def _cause(self, *, ran: bool) -> LossCause:
        if self._hung:
            return "hung"
        if not ran:
            return "no_process"
        return "died" if self._served else "failed_start"

    async def _prepare_restart(self, cause: LossCause, reason: str) -> bool:
        """Wait before the next start; return False if there is to be none."""
        now = self._loop_time()
        self._lost_s = self._lost_s or now
        for observer in self._observers:
            observer.lost(cause)
        if self._failures.too_many(now, cause):
            self._give_up(reason)
            return False
        delay = self._restarts.next_delay(now)
        if delay is None:
            delay = limits.RESTART_DELAY_MOST_SECONDS
            self._fail(f"it keeps dying ({reason})")
        logger.error(line("engine lost", cause=cause, reason=reason, restart_in_s=delay))
        forks = self._child is not None and self._child.can_fork
        self._expected_s = now + delay + (self._fork_s if forks else self._load_s)
        await asyncio.sleep(delay)
        return True

    async def _next_link(self) -> socket.socket:
        """Return a link to another engine: a fork, or a fresh process, which has to load."""
        self._began_s = self._loop_time()
        if self._child is not None and self._child.can_fork and self._lost_forks < limits.LOST_FORKS:
            try:
                self._fresh = False
                return await self._child.fork()
            except OSError as error:
                logger.warning(line("no fork", reason=error.strerror or type(error).__name__))
        await self._discard_child()
        self._lost_forks, self._fresh = 0, True
        self._child, link = await self._start_child(self._command, self._environment)
        return link

    async def _discard_child(self) -> None:
        if self._child is not None:
            await self._child.close(at_once=True)
            self._child = None

    async def _run_engine(self, link: socket.socket) -> str:
        """Serve with one engine until its end; return why it ended."""
        child = self._child
        assert child is not None
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lost(reason: str) -> None:
            if not gone.done():
                gone.set_result(reason)

        child.on_exit(lost)
        watch = asyncio.create_task(self._watch(child, lost), name="engine watch")
        with link:
            try:
                self._pipe = PacketPipe(link, self._receive, lost)
                if self._fresh:
                    self._pipe.send(Configure(self._config, logger.getEffectiveLevel()))
                reason = await gone
            finally:
                watch.cancel()
                try:
                    self._leave_engine()
                finally:
                    link.close()  # the engine sees its end
                    await self._end_engine(child)
                    await asyncio.wait({watch})
        return f"{reason}{child.ending}"

    async def _end_engine(self, child: EngineChild) -> None:
        """End an engine whose link is closed; keep its template, if it has one that is of use."""
        if self._hung:
            child.kill()
        if not self._fresh:
            self._lost_forks = 0 if self._served else self._lost_forks + 1
        if child.can_fork:
            await child.end_engine()
        else:
            await child.close()
            self._child = None

    async def _watch(self, child: EngineChild, lost: Callable[[str], None]) -> None:
        """Give up an engine whose steps hang."""
        watch = StepWatch(self._config.hang_s)
        while True:
            await asyncio.sleep(LOOK_S)
            count = child.page.count  # 0: this engine does not count, and only a stop is noticed here
            reason = watch.check(count, child.page.allowed_s, child.facts(), loading=not self._served or not count)
            if not self._fresh and not self._served and self._loop_time() - self._began_s > limits.FORK_READY_SECONDS:
                reason = "it did not become ready"
            if reason:
                self._hung = True
                lost(reason)
                return

    def _leave_engine(self) -> None:
        """Close the socket and tell every stream and channel."""
        self._lost_s = self._lost_s or self._loop_time()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self.state == "ready":
            forks = self._child is not None and self._child.can_fork
            self._expected_s = self._lost_s + (self._fork_s if forks else self._load_s)
            self._set_state("restarting")
        self.abandon(lambda: EngineLost(f"Try again in {self.back_in_s} s.", retry_after_s=self.back_in_s))
        if self._served:  # else what was said since the last engine waits for the next one
            for channel in list(self._channels.values()):
                channel.lost()

    def _give_up(self, reason: str) -> None:
        """Report that no engine can be started."""
        self._fail(f"it cannot start ({reason})")
        self.given_up.set()

    def _fail(self, reason: str) -> None:
        """Report that there is no engine; the next one that starts makes the state `ready` again."""
        self.failure = reason
        if self.ready is not None:  # `wait_ready` reports a failed first start
            logger.error(line("engine failed", reason=reason))
        self._set_state("failed")
        for channel in list(self._channels.values()):
            channel.give_up()

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Loading():
                for observer in self._observers:
                    observer.loading(message)
            case Ready():
                self._ready = message
                if self._config.model == AUTO_MODEL:  # a restarted engine loads the same model: clients know its name
                    self._config = replace(self._config, model=message.model)
                if self._config.asr_model == AUTO_MODEL:
                    self._config = replace(self._config, asr_model=message.asr_model)
                if self._pipe is not None:
                    self._pipe.watch()  # not before: a loading engine does not read
                for voice in self.voices.commands():  # before the first request
                    self.send(voice)
                self.failure = ""
                self._note_ready()
                self._set_state("ready")
                for channel in list(self._channels.values()):
                    channel.back()
            case StartFailed():
                self._start_failure = message.reason
                if self._pipe is not None:
                    self._pipe.fail("start failed")
            case _:
                self._deliver(message)

    def _note_ready(self) -> None:
        """Note that the engine serves, and how long that took."""
        assert self._child is not None
        self._child.read_control()  # a fork has sent its process number before
        self._served = True
        now = self._loop_time()
        if self._fresh:
            self._load_s = now - self._began_s
        else:
            self._fork_s = now - self._began_s
        if self._lost_s:
            for observer in self._observers:
                observer.back(now - self._lost_s)
        self._lost_s = 0.0

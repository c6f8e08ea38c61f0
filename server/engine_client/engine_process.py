"""The engine child process: start, socket, restart, stop.

It turns a Submit into a RequestStream. When the child dies, running requests end with errors and a new child starts.

    starting ──Ready──▶ ready ──child lost──▶ restarting ──Ready──▶ ready
        └──StartFailed──▶ failed ◀──StartFailed, or too many restarts──┘            stop(): stopped, from anywhere
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self

from voxlane.engine.api import (
    AUTO_MODEL,
    Cancel,
    Configure,
    EngineConfig,
    Finished,
    FromEngine,
    Loading,
    Probability,
    Ready,
    RefusalCode,
    Refused,
    Samples,
    Shutdown,
    Started,
    StartFailed,
    StepStats,
    Submit,
    Text,
    ToEngine,
    ToolCall,
    UndecodableMessage,
    VoiceMade,
    Words,
)
from voxlane.server import limits
from voxlane.server.engine_client.channel import Channel, Receive
from voxlane.server.engine_client.kept_voices import KeptVoice, KeptVoices
from voxlane.server.engine_client.packets import PacketPipe
from voxlane.server.engine_client.stream import Output, ReceivedMessages, RequestStream
from voxlane.server.errors import (
    ContextTooLong,
    EngineLost,
    EngineNotReady,
    EngineStartFailed,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    VoxlaneError,
)
from voxlane.server.log import line

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-m", "voxlane.engine.process")
"""The child's command line; the number of its socket's file descriptor is appended."""

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

_REFUSALS: dict[RefusalCode, type[VoxlaneError]] = {
    "too_long": ContextTooLong,
    "overloaded": Overloaded,
    "bad_request": InvalidRequest,
    "duplicate_id": InternalError,
    "no_model": ModelNotFound,
}


class Observer:
    """Receives news of the engine. The base class ignores it; metrics and progress bars override methods."""

    def loading(self, message: Loading) -> None:
        """The engine reports a step of its start-up."""

    def state_changed(self, state: State) -> None:
        """The engine process has a new state."""

    def stepped(self, message: StepStats) -> None:
        """The engine reports its steps of the last second."""

    def finished(self, message: Finished) -> None:
        """A request has ended; its stream may be closed already."""


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


class EngineProcess:
    """Runs the engine child and gives each request its stream."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        observers: Sequence[Observer] = (),
        restarts: RestartBudget | None = None,
    ) -> None:
        self.state: State = "starting"
        self.failure = ""  # why there is no engine, while the state is `failed`
        self._start_failure = ""  # what the last child has said about its start
        self.voices = KeptVoices()
        self._ready: Ready | None = None
        self._config = config
        self._command = tuple(command)
        self._observers = tuple(observers)
        self._restarts = restarts or RestartBudget()
        self._inboxes: dict[str, ReceivedMessages] = {}
        self._channels: dict[str, Channel] = {}
        self._pipe: PacketPipe | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Return the child's process number, if there is a child."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and running else None

    @property
    def ready(self) -> Ready | None:
        """Return the engine's last description, with the kept voices; None before the first one."""
        return None if self._ready is None else self.voices.offered(self._ready)

    @property
    def open_streams(self) -> int:
        """Return how many requests are in progress."""
        return len(self._inboxes)

    def start(self) -> None:
        """Begin to start the child; `wait_ready` waits for it."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def wait_ready(self) -> Ready:
        """Wait until the engine is ready; raise EngineStartFailed if it cannot start."""
        while self.state != "ready":
            if self.state in ("failed", "stopped"):
                raise EngineStartFailed(self.failure)
            self._changed.clear()
            await self._changed.wait()
        assert self.ready is not None
        return self.ready

    async def stop(self) -> None:
        """Fail the running requests, ask the child to exit, and kill it if it does not."""
        was_ready = self.state == "ready"
        self._set_state("stopped")
        self.abandon(lambda: EngineLost(detail="stopped"))
        if was_ready and self._pipe is not None:
            self._pipe.send(Shutdown())
        elif self._process is not None:
            # A loading child does not read its socket, and may run a download in a process of its own.
            _signal_group(self._process, signal.SIGTERM)
        if self._process is not None:
            await _end(self._process)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def submit(self, submit: Submit) -> RequestStream:
        """Start a request and return its stream; raise EngineNotReady or Overloaded if it cannot start."""
        if self.state != "ready" or self._pipe is None:
            raise EngineNotReady(detail=self.state)
        if submit.request_id in self._inboxes:
            raise InternalError(detail="request id used twice")
        inbox = self._inboxes[submit.request_id] = ReceivedMessages()
        try:
            self._pipe.send(submit)
        except (VoxlaneError, UndecodableMessage) as error:
            del self._inboxes[submit.request_id]
            if isinstance(error, UndecodableMessage):
                raise ContextTooLong(detail=str(error)) from error
            raise
        return RequestStream(submit.request_id, inbox, self._from_stream)

    def channel(self, name: str, receive: Receive) -> Channel:
        """Open a channel for all requests whose ids begin with `name` and a slash; it survives restarts."""
        assert name not in self._channels
        channel = self._channels[name] = Channel(name, self, receive, lambda: self._drop_channel(name))
        return channel

    def _drop_channel(self, name: str) -> None:
        self._channels.pop(name, None)

    @property
    def connected(self) -> bool:
        """Whether the engine takes requests."""
        return self.state == "ready" and self._pipe is not None

    @property
    def starting(self) -> bool:
        """Whether an engine is being started."""
        return self.state in ("starting", "restarting")

    def abandon(self, make_error: Callable[[], VoxlaneError]) -> int:
        """End every stream with an error and cancel its request; return how many there were."""
        inboxes, self._inboxes = self._inboxes, {}
        running = {request_id: inbox for request_id, inbox in inboxes.items() if not inbox.ended}
        for request_id, inbox in running.items():
            inbox.put(make_error())
            self.send(Cancel(request_id))
        return len(running)

    def send(self, message: ToEngine) -> None:
        """Send a command that has no answer of its own (Pause, Resume); dropped while there is no engine."""
        if self._pipe is not None:
            self._pipe.send(message)

    def keep_voice(self, voice: KeptVoice) -> None:
        """Keep a voice under its name, in this engine and in restarted ones."""
        self.send(self.voices.keep(voice))

    def forget_voice(self, name: str) -> None:
        """Forget the voice of a name."""
        self.send(self.voices.forget(name))

    def _from_stream(self, message: ToEngine) -> None:
        """Send a stream's message; a Cancel closes the stream and is sent only if the request has not ended."""
        if isinstance(message, Cancel):
            inbox = self._inboxes.pop(message.request_id, None)
            if inbox is None or inbox.ended:
                return
        self.send(message)

    async def _supervise(self) -> None:
        """Run one child after another; only a failed first start ends this, since it needs a person."""
        while True:
            self._start_failure, refusal = "", ""
            try:
                reason = await self._run_child()
            except Exception as error:  # noqa: BLE001
                # Descriptors, memory or processes are used up: that may pass, and nothing else starts an engine.
                why = error.strerror if isinstance(error, OSError) else type(error).__name__
                reason = refusal = f"cannot run {self._command[0]}: {why}"
            if self.state == "stopped":
                return
            if self.ready is None:
                self._fail(self._start_failure or refusal or f"it died while starting ({reason})")
                return
            reason = self._start_failure or reason
            delay = self._restarts.next_delay(asyncio.get_running_loop().time())
            if delay is None:
                delay = limits.RESTART_DELAY_MOST_SECONDS
                self._fail(f"it keeps dying ({reason})")
            logger.error(line("engine lost", reason=reason, restart_in_s=delay))
            await asyncio.sleep(delay)

    async def _run_child(self) -> str:
        """Run one child from start to exit; return why it ended."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def lost(reason: str) -> None:
            if not gone.done():
                gone.set_result(reason)

        with ours, theirs:
            # A new process session: Ctrl-C in the terminal reaches only the server, which drains, then stops the child.
            # stdout belongs to the command (`voxlane chat` prints the reply there), so the child's goes to stderr.
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            theirs.close()
            exited = asyncio.create_task(process.wait(), name="engine exit")
            exited.add_done_callback(lambda _: lost("exited"))
            try:
                self._pipe = PacketPipe(ours, self._receive, lost)
                self._pipe.send(Configure(self._config, logger.getEffectiveLevel()))
                reason = await gone
            finally:
                try:
                    self._leave_child()
                finally:
                    ours.close()  # the child sees its end
                    await _end(process)
                    await exited
        return f"{reason}, exit status {process.returncode}"

    def _leave_child(self) -> None:
        """Close the socket and tell every stream and channel."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self.state == "ready":
            self._set_state("restarting")
        self.abandon(EngineLost)
        for channel in list(self._channels.values()):
            channel.lost()

    def _fail(self, reason: str) -> None:
        """Report that there is no engine; the next one that starts makes the state `ready` again."""
        self.failure = reason
        if self.ready is not None:  # `wait_ready` reports a failed first start
            logger.error(line("engine failed", reason=reason))
        self._set_state("failed")
        for channel in list(self._channels.values()):
            channel.give_up()

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()
        for observer in self._observers:
            observer.state_changed(state)

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Started() | Text() | Words() | Samples() | ToolCall() | Probability() | VoiceMade() | Finished():
                inbox = self._inboxes.get(message.request_id)
                if isinstance(message, Finished):
                    for observer in self._observers:
                        observer.finished(message)
                self._pass_on(message)
                # No inbox: the stream was closed. Messages in flight are dropped here and nowhere else.
                if inbox is not None and not inbox.ended:
                    inbox.put(message)
            case Refused():
                inbox = self._inboxes.get(message.request_id)
                if inbox is not None and not inbox.ended:
                    inbox.put(_REFUSALS[message.code](message.detail, detail=message.code))
                self._pass_on(message)
            case StepStats():
                for observer in self._observers:
                    observer.stepped(message)
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
                self._set_state("ready")
                for channel in list(self._channels.values()):
                    channel.back()
            case StartFailed():
                self._start_failure = message.reason
                if self._pipe is not None:
                    self._pipe.fail("start failed")

    def _pass_on(self, message: Output | Refused) -> None:
        """Give a message to the channel of its conversation, if it is still open."""
        channel = self._channels.get(message.request_id.partition("/")[0])
        if channel is not None:
            channel.deliver(message)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for a child that was told to exit; kill it if it does not."""
    try:
        async with asyncio.timeout(limits.ENGINE_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        logger.warning(line("engine killed", pid=process.pid, waited_s=limits.ENGINE_STOP_SECONDS))
        _signal_group(process, signal.SIGKILL)
        await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            os.killpg(process.pid, number)

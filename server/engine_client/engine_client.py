"""Requests over a link to an engine: what every server process has, in whatever process the engine runs.

It turns a Submit into a RequestStream and gives each conversation its channel. engine_process.py runs an engine of its
own; linked_engine.py uses one that the supervisor of several server processes runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, Self

from voxlane.engine.api import (
    Append,
    Cancel,
    Finished,
    FromEngine,
    Loading,
    Pieces,
    Probability,
    Ready,
    RefusalCode,
    Refused,
    Samples,
    Started,
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
    EngineNotReady,
    EngineStartFailed,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    VoxlaneError,
)

State = Literal["starting", "ready", "restarting", "failed", "stopped"]

LossCause = Literal["died", "hung", "failed_start", "no_process"]
"""Why there is no engine: it died, its steps hung, it could not load, or no process could be started."""

_WAITING: dict[State, str] = {
    "starting": "It is starting",
    "restarting": "It was lost and is starting again",
    "failed": "It could not be started so far and is tried again",
    "stopped": "The server is stopping",
}

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

    def lost(self, cause: LossCause) -> None:
        """There is no engine any more, or another start has failed."""

    def back(self, seconds: float) -> None:
        """An engine is ready again, so long after the last one was lost."""

    def stepped(self, message: StepStats) -> None:
        """The engine reports its steps of the last second."""

    def finished(self, message: Finished) -> None:
        """A request has ended; its stream may be closed already."""


class EngineClient:
    """An engine as the rest of a server process sees it."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.state: State = "starting"
        self.failure = ""  # why there is no engine, while the state is `failed`
        self.given_up = asyncio.Event()  # no engine can be started, and none is tried any more
        self.voices = KeptVoices()
        self.room_ranks: Callable[[], Sequence[int]] = lambda: ()  # the room at each engine of a cell; set by room/
        self._expected_s = 0.0  # when an engine is expected to be ready, on the loop's clock
        self._ready: Ready | None = None
        self._observers = tuple(observers)
        self._inboxes: dict[str, ReceivedMessages] = {}
        self._channels: dict[str, Channel] = {}
        self._pipe: PacketPipe | None = None
        self._changed = asyncio.Event()

    def observe(self, observer: Observer) -> None:
        """Tell one more observer what happens from now on."""
        self._observers = (*self._observers, observer)

    # ---- its state

    @property
    def pid(self) -> int | None:
        """Return the process number of the engine, if it is known."""
        return None

    @property
    def back_in_s(self) -> int:
        """Return in how many whole seconds an engine is expected to be ready; 0 if one is."""
        if self.state == "ready":
            return 0
        left_s = self._expected_s - self._loop_time()
        return math.ceil(left_s) if left_s > 0 else limits.OVERDUE_SECONDS

    def not_ready(self) -> EngineNotReady:
        """Return the error that tells the truth about an engine that is not there."""
        seconds = self.back_in_s
        hint = f"{_WAITING.get(self.state, 'It is starting')}; try again in {seconds} s."
        return EngineNotReady(hint, detail=self.state, retry_after_s=seconds)

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

    @property
    def ready(self) -> Ready | None:
        """Return the engine's last description, with the kept voices; None before the first one."""
        return None if self._ready is None else self.voices.offered(self._ready)

    @property
    def described(self) -> Ready | None:
        """Return the engine's last description, with its own voices alone; None before the first one."""
        return self._ready

    @property
    def open_streams(self) -> int:
        """Return how many requests are in progress."""
        return len(self._inboxes)

    async def wait_ready(self) -> Ready:
        """Wait until the engine is ready; raise EngineStartFailed if it cannot start."""
        while self.state != "ready":
            if self.state in ("failed", "stopped"):
                raise EngineStartFailed(self.failure)
            self._changed.clear()
            await self._changed.wait()
        assert self.ready is not None
        return self.ready

    def start(self) -> None:
        """Begin; `wait_ready` waits for the engine."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End all requests, and leave the engine."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- requests

    def submit(self, submit: Submit) -> RequestStream:
        """Start a request and return its stream; raise EngineNotReady or Overloaded if it cannot start."""
        if self.state != "ready" or self._pipe is None:
            raise self.not_ready()
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

    @property
    def members(self) -> Sequence[EngineClient]:
        """The engines that this one consists of: itself, or those of a cell."""
        return (self,)

    @property
    def conversations(self) -> int:
        """How many conversations there are at this engine, with those that wait for their client."""
        return len(self._channels)

    def has_conversation(self, name: str) -> bool:
        """Return whether this process has a conversation at this engine."""
        return name in self._channels

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

    def send_soon(self, message: Append) -> None:
        """Send sound of a voice that goes on, together with that of others; dropped while there is no engine."""
        if self._pipe is not None:
            self._pipe.send_soon(message)

    async def keep_voice(self, voice: KeptVoice) -> None:
        """Keep a voice under its name, in this engine and in restarted ones."""
        self.send(self.voices.keep(voice))

    async def forget_voice(self, name: str) -> None:
        """Forget the voice of a name."""
        self.send(self.voices.forget(name))

    def _from_stream(self, message: ToEngine) -> None:
        """Send a stream's message; a Cancel closes the stream and is sent only if the request has not ended."""
        if isinstance(message, Cancel):
            inbox = self._inboxes.pop(message.request_id, None)
            if inbox is None or inbox.ended:
                return
        self.send(message)

    # ---- news

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()
        for observer in self._observers:
            observer.state_changed(state)

    def _deliver(self, message: FromEngine) -> None:
        """Give a message to its request, or to all that observe."""
        match message:
            case (
                Started()
                | Text()
                | Words()
                | Samples()
                | Pieces()
                | ToolCall()
                | Probability()
                | VoiceMade()
                | Finished()
            ):
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
            case _:
                pass

    def _pass_on(self, message: Output | Refused) -> None:
        """Give a message to the channel of its conversation, if it is still open."""
        channel = self._channels.get(message.request_id.partition("/")[0])
        if channel is not None:
            channel.deliver(message)

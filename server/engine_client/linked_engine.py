"""An engine that another process runs: the supervisor of a cell, which gives each server process a link to it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from msgspec import structs

from voxlane.engine.api import Append, Cancel, FromEngine, Pause, Submit, ToEngine
from voxlane.server.cell.counts import CellCounts
from voxlane.server.cell.messages import EngineNews
from voxlane.server.engine_client.channel import Channel, Receive
from voxlane.server.engine_client.engine_client import EngineClient, Observer, State
from voxlane.server.engine_client.packets import PacketPipe
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import EngineLost, VoxlaneError
from voxlane.server.log import line

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 0.1
"""Wait before another link is asked for: the supervisor may not have seen yet that the engine is gone."""


AnyToEngine = TypeVar("AnyToEngine", bound=ToEngine)


class LabelledPipe(PacketPipe):
    """A link on which the ids of requests carry this process's label: those of two processes never collide."""

    def __init__(
        self, sock: socket.socket, label: str, receive: Callable[[FromEngine], None], lost: Callable[[str], None]
    ) -> None:
        super().__init__(sock, lambda message: receive(_without(message, start)), lost)
        self._start = f"{label}:"
        start = len(self._start)

    def send(self, message: ToEngine) -> None:
        """Send a message about this process's requests."""
        if isinstance(message, Pause):
            message = Pause(tuple(self._start + one for one in message.request_ids))
        super().send(self._labelled(message))

    def _labelled(self, message: AnyToEngine) -> AnyToEngine:
        """Return a message with the request's id as the engine knows it. All ways to send must use it."""
        request_id: str | None = getattr(message, "request_id", None)
        return message if request_id is None else structs.replace(message, request_id=self._start + request_id)

    def send_soon(self, message: Append) -> None:
        """Send sound of one of this process's requests, together with that of others."""
        super().send_soon(self._labelled(message))


def _without(message: FromEngine, start: int) -> FromEngine:
    """Return a message with the request's id as this process knows it."""
    request_id: str | None = getattr(message, "request_id", None)
    return message if request_id is None else structs.replace(message, request_id=request_id[start:])


class LinkedEngine(EngineClient):
    """One engine of a cell."""

    def __init__(
        self,
        label: str,
        *,
        number: int = 0,
        counts: CellCounts | None = None,
        observers: Sequence[Observer] = (),
        ask_link: Callable[[], None] = lambda: None,
    ) -> None:
        """Use an engine; `ask_link` asks the supervisor for another link."""
        super().__init__(observers)
        self.number = number
        self._label = label
        self._counts = counts or CellCounts()
        self._ask_link = ask_link
        self._asking: asyncio.TimerHandle | None = None
        self._known: State = "starting"  # what the supervisor has said last

    def start(self) -> None:
        """Do nothing: news come from the supervisor."""

    async def stop(self) -> None:
        """End all requests, and leave the engine."""
        self._set_state("stopped")
        self.abandon(lambda: EngineLost(detail="stopped"))
        self._leave_link()

    def news(self, news: EngineNews) -> None:
        """Take what the supervisor says about the engine."""
        if self.state == "stopped":
            return
        self._known = cast(State, news.state)
        self.failure = news.failure
        self._expected_s = self._loop_time() + news.expected_in_s
        if news.ready is not None:
            self._ready = news.ready
        if news.given_up:
            self.given_up.set()
        if self._known != "ready":  # `connect` makes it ready
            if self._pipe is not None:
                self._lose("the supervisor has lost it")
            self._set_state(self._known)
        if self._known == "failed":
            for channel in list(self._channels.values()):
                channel.give_up()

    def connect(self, link: socket.socket) -> None:
        """Serve over a new link."""
        if self.state == "stopped":
            link.close()
            return
        if self._pipe is not None:
            self._lose("another link has come")
        self._pipe = pipe = LabelledPipe(link, self._label, self._deliver, self._lose)
        pipe.watch()
        self._set_state("ready")
        for channel in list(self._channels.values()):
            channel.back()

    @property
    def expected_s(self) -> float:
        """When the engine is expected to be ready, on the loop's clock."""
        return self._expected_s

    # ---- what this process has there

    @property
    def load(self) -> float:
        """How many requests and conversations all processes have at this engine.

        A request is one that a stream reads, until the stream is closed. Those that a conversation makes count with it.
        """
        return self.open_streams + sum(self._counts.engine_elsewhere(self.number, "requests")) + self.conversations

    @property
    def conversations(self) -> int:
        """How many conversations all processes have at this engine, with those that wait for their client."""
        return len(self._channels) + int(sum(self._counts.engine_elsewhere(self.number, "conversations")))

    def channel(self, name: str, receive: Receive) -> Channel:
        """Open a channel; the whole cell counts it."""
        channel = super().channel(name, receive)
        self._tell_counts()
        return channel

    def _drop_channel(self, name: str) -> None:
        super()._drop_channel(name)
        self._tell_counts()

    def submit(self, submit: Submit) -> RequestStream:
        """Start a request; the whole cell counts it."""
        stream = super().submit(submit)
        self._tell_counts()
        return stream

    def _from_stream(self, message: ToEngine) -> None:
        super()._from_stream(message)
        if isinstance(message, Cancel):  # its stream is closed
            self._tell_counts()

    def abandon(self, make_error: Callable[[], VoxlaneError]) -> int:
        """End every stream with an error and cancel its request; return how many there were."""
        ended = super().abandon(make_error)
        self._tell_counts()
        return ended

    def _tell_counts(self) -> None:
        """Let the other processes know what this one has here; the supervisor clears the counts of one that ends."""
        if self.state == "stopped":
            return
        self._counts.put_engine(self.number, "requests", self.open_streams)
        self._counts.put_engine(self.number, "conversations", len(self._channels))

    # ---- losing it

    def _lose(self, reason: str) -> None:
        """Note that the link has ended, and ask for another one."""
        if self._pipe is None:
            return
        self._leave_link()
        if self.state == "stopped":
            return
        logger.warning(line("engine link lost", engine=self.number, reason=reason))
        self._set_state("restarting")
        self.abandon(lambda: EngineLost(f"Try again in {self.back_in_s} s.", retry_after_s=self.back_in_s))
        for channel in list(self._channels.values()):
            channel.lost()
        self._asking = asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_again)

    def _ask_again(self) -> None:
        if self._pipe is None and self._known == "ready":
            self._ask_link()

    def _leave_link(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            pipe.close()

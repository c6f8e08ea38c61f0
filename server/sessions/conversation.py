"""A session with a body: its clock, its line to the engine, its dialect, and somebody who writes what it says.

It outlives sockets. While nobody is connected its clock stands still, so that a broken line is not taken for silence,
nor what was sent for played. It applies effects in order and decides nothing about the conversation itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from voxlane.engine.api import FromEngine, ToEngine
from voxlane.server.conversation.client_events import ClientEvent, Played
from voxlane.server.conversation.effects import RequestsLost, Send, Tell, Tick
from voxlane.server.conversation.server_events import (
    Configured,
    FloorState,
    Hold,
    Interrupted,
    ReplyDone,
    ReplyStarted,
    ServerEvent,
    SpeechDone,
)
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.values import StateName
from voxlane.server.errors import InternalError, SlowReader, VoxlaneError
from voxlane.server.log import line
from voxlane.server.metrics import Metrics
from voxlane.server.protocols.dialect import Codec, Outgoing
from voxlane.server.sessions.outbound import Outbound, TooSlow

logger = logging.getLogger(__name__)


class ConversationWriter(Protocol):
    """Who writes what a conversation says."""

    def news(self) -> None:
        """Take it that something waits in the mailbox."""

    def end(self, error: VoxlaneError) -> None:
        """Take it that the conversation is over."""


class EngineCommands(Protocol):
    """Who does what a conversation wants done: the engine, or others in its place."""

    def tell(self, message: ToEngine) -> FromEngine | None:
        """Pass a message on; return the answer where it can be known at once."""

    def close(self) -> None:
        """Cancel all that is under way."""


class Conversation:
    """One person's conversation."""

    def __init__(self, session: Session, codec: Codec, address: str, metrics: Metrics) -> None:
        self.name = session.name
        self.session = session
        self.codec = codec
        self.address = address
        self.voice = session.config.voice  # as the client named it, be it gone since
        self.mailbox = Outbound(session.config.buffer_s)
        self.state: StateName = "listening"
        self.listener: ConversationWriter | None = None
        self.acked: Played | None = None  # in the client's samples
        self.over = False
        self.channel: EngineCommands | None = None  # whoever makes the conversation gives it one
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self.began_s = self._loop.time()
        self._behind_s = 0.0  # of the session's clock
        self._stopped_s: float | None = self.began_s  # when that was stopped
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when that is due,
        self._wake_s = 0.0  # and when the session is to be woken: not earlier
        self._complete = 0  # the last epoch all sound of which was told

    # ---- who listens

    def attach(self, listener: ConversationWriter) -> None:
        """Let the clock go on; what is said from now on is for this listener."""
        assert self.listener is None
        self.listener = listener
        if self._stopped_s is not None:
            self._behind_s += self._loop.time() - self._stopped_s
            self._stopped_s = None
        self._set_timer()

    def detach(self) -> None:
        """Stop the clock; nobody listens."""
        self.listener = None
        if self._stopped_s is None:
            self._stopped_s = self._loop.time()
        self._set_timer()

    def close(self) -> None:
        """End it: cancel its work in the engine."""
        self.over = True
        self.detach()
        if self.channel is not None:
            self.channel.close()

    def resume(self, last_sequence: int | None, played: Played | None) -> None:
        """Bring a client that comes back to where its player stands, or to where it last said that it stood."""
        played = played or self.acked
        if played is not None:
            self.played(played)
        self.mailbox.rewind(last_sequence)

    # ---- events in

    def open(self) -> None:
        """Begin."""
        self._apply(None)

    def feed(self, event: ClientEvent | FromEngine | RequestsLost | Tick) -> None:
        """Take what happened."""
        self._apply(event)

    def played(self, played: Played) -> None:
        """Take what the client says it has played, in its samples."""
        self.acked = played
        self.mailbox.played(played.epoch, played.samples)
        self.feed(self.codec.session_samples(played))

    def starved(self, epoch: int) -> None:
        """Take it that the client's player has run dry."""
        if epoch > self._complete:
            self._metrics.audio_underruns.inc()

    def _apply(self, event: ClientEvent | FromEngine | RequestsLost | Tick | None) -> None:
        if self.over:
            return
        now = self._now()
        try:
            for effect in self.session.open(now) if event is None else self.session.feed(event, now):
                match effect:
                    case Send(event=told):
                        self._observe(told)
                        self.tell(told)
                    case Tell(message=message):
                        self._tell_engine(message)
        except Exception as error:
            # The boundary of this conversation: whatever it was, it is not the others' and not the engine's.
            logger.exception(line("bug", session=self.name, error=type(error).__name__))
            self._fail(InternalError())
        self._set_timer()

    def _tell_engine(self, message: ToEngine) -> None:
        if self.over or self.channel is None:
            return
        answer = self.channel.tell(message)
        if answer is not None:  # later, as if it came from the engine: nobody answers within a breath
            self._loop.call_soon(self.feed, answer)

    # ---- events out

    def tell(self, event: Outgoing) -> None:
        """Put an event into the mailbox; a client that lets too much pile up there loses the conversation."""
        if self.over:
            return
        try:
            self._post(event)
        except TooSlow:
            self._fail(SlowReader())
        if self.listener is not None:
            self.listener.news()

    def _post(self, event: Outgoing) -> None:
        packets = self.codec.encode(event)
        match event:
            case Hold(epoch):
                for packet in packets:  # who must be quiet now need not first be sent more to say
                    self.mailbox.put_before_sound(packet, epoch)
            case Interrupted(epoch):
                self.mailbox.drop_sound(epoch)
                for packet in packets:
                    self.mailbox.put(packet)
            case _:
                for packet in packets:
                    self.mailbox.put(packet)

    def _observe(self, event: ServerEvent) -> None:
        self._metrics.told(event)
        match event:
            case FloorState(name):
                self.state = name
            case SpeechDone(epoch) | Interrupted(epoch):
                self._complete = max(self._complete, epoch)
            case ReplyDone(epoch) if self.acked is None or self.acked.epoch != epoch:
                # This client does not say what it has played: the session's clock must do.
                self.mailbox.played(epoch + 1, 0)
            case Configured() | ReplyStarted():  # each reply under way has a buffer of its own
                self.mailbox.ahead_s = self.session.config.buffer_s * (1 + len(self.session.answers.asides))
            case _:
                pass

    def _fail(self, error: VoxlaneError) -> None:
        listener = self.listener
        self.close()
        if listener is not None:
            listener.end(error)

    # ---- the clock

    def _now(self) -> float:
        return (self._loop.time() if self._stopped_s is None else self._stopped_s) - self._behind_s

    def _set_timer(self) -> None:
        at = None if self.over or self._stopped_s is not None else self.session.wake_at(self._now())
        if at is not None:
            self._wake_s = at + self._behind_s
            # While somebody speaks, every frame puts the moment off; the timer looks again when it is due.
            if self._timer is not None and self._timer_s <= self._wake_s:
                return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer_s = self._wake_s
        self._timer = self._loop.call_at(self._wake_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._loop.time() < self._wake_s:
            self._start_timer()
        else:
            self.feed(Tick())

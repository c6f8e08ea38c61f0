"""Runs one session: gives it a clock, a channel to the engine, a codec and a queue of outbound messages.

It outlives sockets, and with a journal it outlives the process: journal.py writes its record before the client is told
of a turn, a reply or words. While no client is connected its clock stands still, so that a broken line does not count
as silence, nor unheard sound as played. It applies effects in order; the session decides everything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import msgpack

from voxlane.engine.api import LISTEN_RATE, FromEngine, ToEngine
from voxlane.server.conversation.client_events import Audio, ClientEvent, Played
from voxlane.server.conversation.effects import Effect, RequestsLost, Send, SendToEngine, Tick
from voxlane.server.conversation.replies.saved import OpenReply, SavedHistory, endings
from voxlane.server.conversation.server_events import (
    Configured,
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    ReplyDone,
    ReplyStarted,
    ReplyText,
    ServerEvent,
    Speech,
    SpeechDone,
    SpeechStarted,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.values import StateName
from voxlane.server.errors import InternalError, ResumedElsewhere, SlowReader, VoxlaneError
from voxlane.server.log import line
from voxlane.server.protocols.dialect import Codec, Hello, Outgoing, Packet, SessionResumable
from voxlane.server.sessions.journal import Journal, SavedConversation, SavedRecent, SavedSettings, ToldMessage
from voxlane.server.sessions.outbound import JournalMark, Outbound, TooSlow
from voxlane.server.tenants.accounts import Account
from voxlane.server.watching.conversation_watch import ConversationWatch
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)


class ConversationWriter(Protocol):
    """The connection that writes a conversation's messages."""

    leaves_by_itself: bool  # told that the server goes down, it ends the conversation itself

    def notify(self) -> None:
        """Note that a message waits."""

    def end(self, error: VoxlaneError) -> None:
        """Note that the conversation is over, with an error."""


class EngineCommands(Protocol):
    """Takes a conversation's commands: the engine, or a remote chat server together with it."""

    def tell(self, message: ToEngine) -> FromEngine | None:
        """Send a command; return the answer if it is known at once."""

    def close(self) -> None:
        """Cancel all running requests."""


class Conversation:
    """One person's conversation."""

    def __init__(self, session: Session, codec: Codec, hello: Hello, address: str, metrics: Metrics) -> None:
        self.name = session.name
        self.session = session
        self.codec = codec
        self.address = self.first_address = address
        self.voice = session.config.voice  # as the client named it, even if it was deleted since
        self.outbound = Outbound(session.config.buffer_s)
        self.state: StateName = "listening"
        self.writer: ConversationWriter | None = None
        self.acked: Played | None = None  # playback position, in the client's samples
        self.over = False
        self.channel: EngineCommands | None = None  # set by the registry
        self.account = Account()  # the tenant; set by the registry
        self.watch: ConversationWatch | None = None  # set by the registry
        self.journal: Journal | None = None  # set by Moving; None: it ends with this process
        self.version = 0  # it rises with every change that the journal must hold before the client is told
        self._formats = hello.input, hello.output
        self._words = 0  # words of the current reply that the journal knows of
        self._metrics = metrics
        self._counted_for: Account | None = None  # the tenant that `_audio_s` belongs to
        self._audio_s = metrics.tenant_audio  # the seconds of sound of that tenant
        self._loop = asyncio.get_running_loop()
        self.began_s = self._loop.time()
        self._began_unix_s = time.time()
        self._behind_s = 0.0  # seconds by which the session's clock is behind the loop's
        self._stopped_s: float | None = self.began_s  # when the session's clock was stopped; None: it runs
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when the timer is due
        self._wake_s = 0.0  # when the session is to be woken; never before `_timer_s`
        self._complete = 0  # the last epoch whose sound was sent to its end

    # ---- the connection

    def attach(self, writer: ConversationWriter) -> None:
        """Start the clock, and send messages to this connection from now on."""
        assert self.writer is None
        self.writer = writer
        if self._stopped_s is not None:
            self._behind_s += self._loop.time() - self._stopped_s
            self._stopped_s = None
        self._set_timer()

    def detach(self) -> None:
        """Stop the clock: no client is connected."""
        self.writer = None
        if self._stopped_s is None:
            self._stopped_s = self._loop.time()
        self._set_timer()

    def close(self) -> None:
        """End the conversation and cancel its requests in the engine."""
        self.over = True
        self.detach()
        if self.channel is not None:
            self.channel.close()

    def resume(self, last_sequence: int | None, played: Played | None) -> None:
        """Resume for a client that is back, at its player's position or the last one that it reported."""
        played = played or self.acked
        if played is not None:
            self.played(played)
        self.outbound.rewind(last_sequence)

    # ---- the record

    def restore(self, saved: SavedConversation, last_sequence: int | None, played: Played | None) -> list[ServerEvent]:
        """Go on with a conversation of another process; return the events that end what was open there.

        `played` is its client's position, in the client's samples.
        """
        recent, progress = saved.recent, saved.recent.progress
        age_s = max(0.0, time.time() - recent.began_unix_s)
        self.began_s, self._began_unix_s = self._loop.time() - age_s, recent.began_unix_s
        self.voice, self.acked = saved.settings.voice, played or recent.acked
        told = ((one.sequence, Packet(tuple(msgpack.decode(one.fields)))) for one in recent.told)
        sequence = max(recent.sequence, last_sequence or 0)
        self.outbound.restore(sequence, told, recent.open_turns, recent.open_reply)
        epoch = 0 if recent.open_reply is None else recent.open_reply.epoch
        position = 0 if progress.reply is None else progress.reply.position
        if self.acked is not None and self.acked.epoch == epoch:
            position = self.acked.samples * recent.speak_rate // self._formats[1].rate
        self.session.restore(saved.history, progress, position, recent.heard_s)
        item = self.session.history.get(self.session.answers.item_of(epoch))
        ends = endings(recent.open_turns, recent.open_reply, progress.reply, item, position)
        for end in ends:
            if isinstance(end, TurnDone) and end.how == "failed":
                self.session.forget_failed(end.turn)
        return ends

    def saved_settings(self) -> SavedSettings:
        """Return the part `config` of its record."""
        return SavedSettings(*self._formats, self.session.config, self.voice, self.account.salt)

    def saved_history(self) -> tuple[int, Callable[[], SavedHistory]]:
        """Return how often the history has changed, and how to get the part `history` of its record."""
        return self.session.history.changes, self.session.history.saved

    def saved_recent(self) -> SavedRecent:
        """Return the part `recent` of its record."""
        outbound = self.outbound
        return SavedRecent(
            self.session.saved(self._now()),
            self._began_unix_s,
            outbound.sequence,
            self.codec.heard_s(),
            self.session.answers.speak_rate,
            tuple(ToldMessage(one.sequence, msgpack.encode(one.packet.fields)) for one in outbound.told),
            tuple(outbound.open_turns),
            outbound.open_reply,
            self.acked,
        )

    def tell_resumable(self, resumable: bool) -> None:
        """Tell the client whether another server could go on with the conversation."""
        self.send(SessionResumable(resumable))

    def lose(self) -> None:
        """End here: the conversation goes on at another server."""
        self._fail(ResumedElsewhere())

    @property
    def outlives(self) -> bool:
        """Whether it has a record that outlives this process, even if the store fails just now."""
        journal = self.journal
        return journal is not None and journal.movable and not journal.over

    @property
    def movable(self) -> bool:
        """Whether another process could go on with it now: the store has everything that the client was told."""
        return self.outlives and self.journal is not None and self.journal.resumable

    def end_turns(self) -> None:
        """End every open turn and the reply, and tell the client: the server goes down."""
        now = self._now()
        self._apply_effects(lambda: self.session.end(now), now)

    # ---- events in

    def open(self) -> None:
        """Begin the conversation."""
        self._apply(None)

    def feed(self, event: ClientEvent | FromEngine | RequestsLost | Tick) -> None:
        """Process an event; a microphone's sound counts for its tenant, and ends the conversation over its limit."""
        if type(event) is Audio and not event.made_up and not self.over:
            seconds = len(event.pcm) / 2 / LISTEN_RATE
            account = self.account
            if self._counted_for is not account:
                self._counted_for, self._audio_s = account, self._metrics.tenant_audio.labels(account.name)
            self._audio_s.inc(seconds)
            try:
                self._metrics.tenant_limited(account.name, account.check_audio)
            except VoxlaneError as error:
                self._fail(error)
                return
            account.count_audio(seconds)
        self._apply(event)

    def played(self, played: Played) -> None:
        """Note how much the client has played, in its samples."""
        self.acked = played
        self.outbound.played(played.epoch, played.samples)
        self.feed(self.codec.session_samples(played))

    def starved(self, epoch: int) -> None:
        """Count an underrun of the client's player, unless the reply's sound is complete."""
        if epoch > self._complete:
            self._metrics.audio_underruns.inc()

    def _apply(self, event: ClientEvent | FromEngine | RequestsLost | Tick | None) -> None:
        now = self._now()
        if self.watch is not None and not self.over:
            self.watch.observe(self.session.answers.reply, now)
            if isinstance(event, Audio):
                self.watch.heard(event.pcm, now)
        self._apply_effects(lambda: self.session.open(now) if event is None else self.session.feed(event, now), now)

    def _apply_effects(self, act: Callable[[], list[Effect]], now: float) -> None:
        """Let the session act, and do what it wants."""
        if self.over:
            return
        try:
            for effect in act():
                match effect:
                    case Send(event=sent):
                        self._observe(sent, now)
                        self.send(sent)
                    case SendToEngine(message=message):
                        self._tell_engine(message)
        except Exception as error:  # a bug: it ends this conversation; the others and the engine go on
            logger.exception(line("bug", session=self.name, error=type(error).__name__))
            self._metrics.caught("conversation")
            self._fail(InternalError())
        self._set_timer()

    def _tell_engine(self, message: ToEngine) -> None:
        if self.over or self.channel is None:
            return
        answer = self.channel.tell(message)
        if answer is not None:  # fed later, like a message from the engine
            self._loop.call_soon(self.feed, answer)

    # ---- events out

    def send(self, event: Outgoing) -> None:
        """Queue an event for the client; end the conversation if too much waits there."""
        if self.over:
            return
        try:
            self._post(event)
        except TooSlow:
            self._fail(SlowReader())
        if self.writer is not None:
            self.writer.notify()

    def _post(self, event: Outgoing) -> None:
        packets = self.codec.encode(event)
        mark = self._mark(event) if self.journal is not None else None
        match event:
            case Duck(epoch) | Hold(epoch) | Release(epoch):
                for packet in packets:  # it overtakes the sound that it is about
                    self.outbound.put_before_sound(packet, epoch)
            case Interrupted(epoch):
                self.outbound.drop_sound(epoch)
                for packet in packets:
                    self.outbound.put(packet, mark)
            case _:
                for packet in packets:
                    self.outbound.put(packet, mark)

    def _mark(self, event: Outgoing) -> JournalMark | None:
        """Return what an event means to the record, None if it means nothing."""
        match event:
            case Speech(words=words) if words:
                return self._mark_words()
            case SpeechStarted() | UserTurn() | ReplyStarted() | ReplyText() | Interrupted() | ReplyDone() | TurnDone():
                self.version += 1
            case ToolCalled() | Configured():
                self.version += 1
                return JournalMark(self.version, repeated=True)
            case _:
                return None
        match event:
            case SpeechStarted(turn) | UserTurn(turn):
                return JournalMark(self.version, repeated=True, opens_turn=turn)
            case ReplyStarted(epoch, turn):
                self._words = 0
                opens = OpenReply(epoch, turn)
                return JournalMark(self.version, repeated=True, opens_turn=turn, opens_reply=opens)
            case Interrupted(epoch) | ReplyDone(epoch):
                return JournalMark(self.version, repeated=True, ends_reply=epoch)
            case TurnDone(turn):
                return JournalMark(self.version, repeated=True, ends_turn=turn)
            case _:  # ReplyText
                return JournalMark(self.version)

    def _mark_words(self) -> JournalMark:
        """Return the mark of sound with words: the record holds the places of all words that are known."""
        reply = self.session.answers.reply
        known = reply.ledger.words if reply is not None else self._words
        if known != self._words:
            self._words = known
            self.version += 1
        return JournalMark(self.version)

    def _observe(self, event: ServerEvent, now: float) -> None:
        self._metrics.count(event, self.name)
        if self.watch is not None:
            self.watch.follow(event, now)
        match event:
            case FloorState(name):
                self.state = name
            case SpeechDone(epoch) | Interrupted(epoch):
                self._complete = max(self._complete, epoch)
            case ReplyDone(epoch) if self.acked is None or self.acked.epoch != epoch:
                # This client does not report what it has played: the session's clock decides.
                self.outbound.played(epoch + 1, 0)
            case Configured() | ReplyStarted():  # each running reply has its own buffer
                self.outbound.ahead_s = self.session.config.buffer_s * (1 + len(self.session.answers.asides))
            case _:
                pass

    def _fail(self, error: VoxlaneError) -> None:
        writer = self.writer
        self.close()
        if writer is not None:
            writer.end(error)

    # ---- the clock

    def _now(self) -> float:
        return (self._loop.time() if self._stopped_s is None else self._stopped_s) - self._behind_s

    def _set_timer(self) -> None:
        at = None if self.over or self._stopped_s is not None else self.session.wake_at(self._now())
        if at is not None:
            self._wake_s = at + self._behind_s
            # While a person speaks, every frame postpones the moment; the timer checks again when it is due.
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

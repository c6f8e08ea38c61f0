"""The assistant's side of a conversation: one reply at a time, the tools it calls, and the history it leaves.

A reply may be prepared before the person is done, taken back without a trace, held, let go on, and cut to what was
heard. When to do which is session.py's decision; this is what it takes. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import replace

from voxlane.engine.api import Finished, Refused, Samples, Text, ToolCall, ToolUse
from voxlane.server.events import (
    Effect,
    Fault,
    Latency,
    ReplyDone,
    Send,
    SessionConfig,
    ToolCalled,
    TurnDone,
)
from voxlane.server.history import History
from voxlane.server.reply import Reply
from voxlane.server.user_turn import UserSpeech

ReplyMessage = Text | Samples | Finished | Refused | ToolCall


class Answers:
    """What the assistant says and has said."""

    def __init__(self, session: str, speak_rate: int) -> None:
        self.history = History()
        self.reply: Reply | None = None
        self._session = session
        self._speak_rate = speak_rate
        self._epoch = 0
        self._expected = ""  # the words a prepared reply answers
        self._vain = ""  # words for which one could not be prepared
        self._answered: UserSpeech | None = None  # the turn the reply is about, for its latencies
        self._broken = False  # the engine will bring no more of the reply
        self.open_calls: set[str] = set()  # asked of the client, not yet answered
        self._early: dict[str, str] = {}  # results that came before their calls were put down
        self._awaiting: Reply | None = None  # heard to its end; its answer goes on when its results are here

    @property
    def talking(self) -> bool:
        """Whether the person hears a reply, or would but for the hold."""
        return self.reply is not None and self.reply.stage in ("live", "held") and not self.reply.silent

    @property
    def thinking(self) -> bool:
        """Whether an answer is on its way of which nothing was heard."""
        return self._awaiting is not None or (
            self.reply is not None and self.reply.stage == "live" and self.reply.silent
        )

    @property
    def busy(self) -> bool:
        """Whether a turn is being answered: another one has to wait for its end."""
        return self._awaiting is not None or (self.reply is not None and self.reply.stage != "tentative")

    # ---- beginning

    def greet(self, text: str, turn: int, config: SessionConfig, now: float) -> list[Effect]:
        """Say something without being asked."""
        return self._new(turn, config).begin_with(text, now)

    def prepare(self, turn: UserSpeech, config: SessionConfig) -> list[Effect]:
        """Begin a reply that nobody knows of, in case the turn is over."""
        if self.reply is not None or self._awaiting is not None or turn.text == self._vain:
            return []
        self._expected = turn.text
        reply = self._new(turn.number, config, tentative=True)
        return reply.begin(self.history.prompt(config.instructions, turn.text))

    def withdraw(self, unless: str = "") -> list[Effect]:
        """Take a prepared reply back without a trace, unless it answers these words."""
        reply = self.reply
        if reply is None or reply.stage != "tentative" or (unless and unless == self._expected):
            return []
        self.reply = None
        return reply.withdraw()

    def answer(self, turn: UserSpeech, config: SessionConfig) -> list[Effect]:
        """Answer a turn that is in the history, with what was prepared if it fits."""
        self._answered, self._vain = turn, ""
        reply = self.reply
        if reply is not None and reply.stage == "tentative" and self._expected == turn.text:
            effects = reply.go_live()
            for call in reply.calls:
                effects += self._called(reply, call)
            return effects
        return [*self.withdraw(), *self._new(turn.number, config).begin(self.history.prompt(config.instructions))]

    def _new(self, turn: int, config: SessionConfig, *, tentative: bool = False) -> Reply:
        assert self.reply is None, "one reply at a time"
        self._epoch += 1
        self.reply = Reply(self._epoch, turn, self._session, config, self._speak_rate, tentative=tentative)
        self._broken = False
        return self.reply

    # ---- ending

    def cut(self, now: float) -> list[Effect]:
        """End the reply where the listener is; the history keeps what was heard of it."""
        reply = self.reply
        if self._awaiting is not None:  # results that come now are remembered, but no longer answered
            waiting, self._awaiting = self._awaiting, None
            return [Send(TurnDone(waiting.turn, "interrupted"))]
        if reply is None or reply.stage == "tentative":
            return self.withdraw()
        self.reply = None
        heard = reply.heard(reply.position(now))
        effects = reply.interrupt(now)
        self._put_down(reply, heard)
        return [*effects, *self._latency(reply), Send(TurnDone(reply.turn, "interrupted"))]

    def settle(self, config: SessionConfig, now: float) -> list[Effect]:
        """Send what may be sent, and close a reply that was heard to its end."""
        reply = self.reply
        if reply is None:
            return []
        effects = reply.pump(now)
        return effects + self._complete(reply, config) if reply.finished(now) else effects

    def lose_engine(self) -> None:
        """Take it that nothing more comes of the reply: what is here of it is said, and no more."""
        if self.reply is not None and self.reply.stage == "tentative":
            self.reply = None
        elif self.reply is not None:
            self._broken = True
            self.reply.break_off()

    def _complete(self, reply: Reply, config: SessionConfig) -> list[Effect]:
        self.reply = None
        heard = reply.heard(reply.ledger.sent_samples) if self._broken else reply.text
        self._put_down(reply, heard)
        effects: list[Effect] = [Send(ReplyDone(reply.epoch, heard)), *self._latency(reply)]
        if reply.calls and not self._broken:
            self._awaiting = reply
            return effects + self._go_on(config)
        return [*effects, Send(TurnDone(reply.turn, "failed" if self._broken else "done"))]

    def _put_down(self, reply: Reply, heard: str) -> None:
        """Write a reply into the history as it was heard, with the calls it made and their results so far."""
        self.history.assistant(heard, tuple(reply.calls))
        for call in reply.calls:
            if call.call_id in self._early:
                self.history.tool(call.call_id, self._early.pop(call.call_id))

    def _latency(self, reply: Reply) -> list[Effect]:
        turn, self._answered = self._answered, None
        if turn is None or turn.number != reply.turn:
            return []
        times = (turn.ended_s, turn.words_s, reply.first_token_s, reply.first_sample_s, reply.first_frame_s)
        parts = [-1.0 if at is None else max(0.0, at - turn.stopped_s) * 1e3 for at in times]
        return [Send(Latency(turn.number, *parts))]

    # ---- what the engine brings

    def take(self, message: ReplyMessage, now: float) -> list[Effect]:
        """Take what the engine brings for the reply; for any other request it is too late."""
        name, reply = message.request_id, self.reply
        if reply is None or name not in (reply.chat_id, reply.tts_id):
            return []
        if self._broken:  # what is here of it is all there is; this was on its way, or says that we cancelled it
            return []
        match message:
            case Text(text=text):
                return reply.add_text(text, now) if text else []
            case ToolCall():
                call = ToolUse(message.call_id, message.name, message.arguments)
                reply.calls.append(call)
                return [] if reply.stage == "tentative" else self._called(reply, call)
            case Samples():
                reply.add_samples(message, now)
            case Finished(reason="failed" | "cancelled") | Refused():
                return self._fail(reply, message)
            case Finished() if name == reply.chat_id:
                return reply.end_text()
            case Finished():
                reply.end_samples()
        return []

    def _fail(self, reply: Reply, message: Finished | Refused) -> list[Effect]:
        """End a reply that the engine could not finish with what is there of it."""
        if reply.stage == "tentative":
            self._vain = self._expected
            return self.withdraw()
        self._broken = True
        if isinstance(message, Refused) and message.code == "too_long":
            self.history.shorten()
        return [Send(fault_of(message)), *reply.break_off()]

    # ---- tools

    def _called(self, reply: Reply, call: ToolUse) -> list[Effect]:
        self.open_calls.add(call.call_id)
        return [Send(ToolCalled(reply.epoch, call.call_id, call.name, call.arguments))]

    def tool_result(self, call_id: str, output: str, config: SessionConfig) -> list[Effect]:
        """Take a result, once, and answer it if its reply was heard to the end."""
        if call_id not in self.open_calls:
            return [Send(Fault("unknown_call", "there is no open tool call with this id", retryable=False))]
        self.open_calls.discard(call_id)
        if self.reply is not None and any(call.call_id == call_id for call in self.reply.calls):
            self._early[call_id] = output
            return []
        self.history.tool(call_id, output)
        return self._go_on(config)

    def _go_on(self, config: SessionConfig) -> list[Effect]:
        """Answer the results of a reply's calls when they are all here."""
        waiting = self._awaiting
        if waiting is None or any(call.call_id in self.open_calls for call in waiting.calls):
            return []
        self._awaiting = None
        # Required was the call, and it was made: required again, nothing would ever be said.
        config = replace(config, tool_choice="auto") if config.tool_choice != "none" else config
        return self._new(waiting.turn, config).begin(self.history.prompt(config.instructions))


def fault_of(message: Finished | Refused) -> Fault:
    """Return what a client is told of a request that did not work."""
    if isinstance(message, Refused):
        return Fault(message.code, message.detail, retryable=message.code == "overloaded")
    return Fault("engine_failed", "the engine could not finish this; please repeat", retryable=True)

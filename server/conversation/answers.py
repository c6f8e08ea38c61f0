"""The assistant's side of a conversation: one reply at a time, the tools it calls, and the history it leaves.

A reply may be prepared before the person is done, taken back without a trace, held, let go on, and cut to what was
heard. When to do which is session.py's decision; this is what it takes. Beside it there may be asides, which are no
part of the conversation. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from voxlane.engine.api import ChatMessage, Finished, Refused, Samples, Started, Text, ToolCall, ToolUse
from voxlane.server.conversation.client_events import Respond
from voxlane.server.conversation.effects import Effect, Send
from voxlane.server.conversation.history import History, characters_of, prompt_of, reply_item
from voxlane.server.conversation.ledger import Ledger
from voxlane.server.conversation.reply import Reply
from voxlane.server.conversation.server_events import Fault, Latency, ReplyDone, ToolCalled, TurnDone
from voxlane.server.conversation.user_turn import UserSpeech
from voxlane.server.conversation.values import Item, SessionConfig

ReplyMessage = Started | Text | Samples | Finished | Refused | ToolCall

MOST_ASIDES = 8
"""Asides that may be under way: beyond what any client does, and a bound on what one can ask of the engine at once."""

REPLY_TOKENS = 256
"""Room that is left for a reply beside the history; one that may be longer is seldom so."""

KEPT_REPLIES = 64
"""Replies of which is known which word lies where, for clients that say late how much they have played."""


@dataclass(frozen=True, slots=True)
class SpokenReply:
    """What a reply said, and when."""

    text: str
    ledger: Ledger


class Answers:
    """What the assistant says and has said."""

    def __init__(
        self, session: str, speak_rate: int, *, reads_words: bool = False, history: History | None = None
    ) -> None:
        self.history = history or History()
        self.reply: Reply | None = None
        self._session = session
        self._speak_rate = speak_rate
        self._reads_words = reads_words  # the voice takes text word by word
        self._epoch = 0
        self._expected = ""  # the words a prepared reply answers
        self._vain = ""  # words for which one could not be prepared
        self._answered: UserSpeech | None = None  # the turn the reply is about, for its latencies
        self._broken = False  # the engine will bring no more of the reply
        self.asides: dict[int, Reply] = {}
        self.rested_s: float | None = None  # when the last reply was over; None: there was none, or it was seen to
        self.open_calls: set[str] = set()  # asked of the client, not yet answered
        self._results = 0
        self._spoken: dict[str, SpokenReply] = {}  # by item, oldest first
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
        reply = self._new(turn, config)
        self._remember(reply)
        return reply.begin_with(text, now)

    def prepare(self, turn: UserSpeech, config: SessionConfig) -> list[Effect]:
        """Begin a reply that nobody knows of, in case the turn is over."""
        if self.reply is not None or self._awaiting is not None or turn.text == self._vain:
            return []
        self._expected = turn.text
        reply = self._new(turn.number, config, tentative=True)
        return reply.begin(self._prompt(config, turn.text))

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
            self._remember(reply)
            effects = reply.go_live()
            for place in range(len(reply.calls)):
                effects += self._called(reply, place)
            return effects
        return [*self.withdraw(), *self._reply_to(self._prompt(config), turn.number, config)]

    def respond(self, asked: Respond, turn: int, now: float) -> list[Effect]:
        """Reply because the client wants it; where that cannot be, say so."""
        config, items = asked.config, self._input(asked, now)
        if items is None:
            return [Send(Fault("invalid_item_id", "input: there is no such item", retryable=False, ref=asked.ref))]
        known = asked.input is None  # else the client says what counts
        messages = prompt_of(items, self.history.told(config.instructions) if known else config.instructions)
        if asked.aside:
            if len(self.asides) >= MOST_ASIDES:
                told = f"at most {MOST_ASIDES} responses may be under way outside the conversation"
                return [Send(Fault("too_many_responses", told, retryable=True, ref=asked.ref))]
            self._epoch += 1
            aside = Reply(
                *(self._epoch, 0, self._session, config, self._speak_rate), tag=asked.tag, reads_words=self._reads_words
            )
            self.asides[aside.epoch] = aside
            return aside.begin(messages)
        effects, begins_s = self.withdraw(), None
        if self._awaiting is not None:  # the client goes on by itself
            effects += [Send(TurnDone(self._awaiting.turn, "done"))]
            self._awaiting = None
        if (reply := self.reply) is not None:
            if not reply.told or reply.stage == "held":
                told = "a response is under way: cancel it, or wait for its end"
                return [Send(Fault("conversation_already_has_active_response", told, retryable=False, ref=asked.ref))]
            begins_s = reply.over_at(now)  # it is still being played, and the next is played after it
            effects += self._complete(reply, replace(config, chains_tools=False), now)
        return [*effects, *self._reply_to(messages, turn, config, tag=asked.tag, begins_s=begins_s)]

    def _input(self, asked: Respond, now: float) -> list[Item] | None:
        given = self.history.shown if asked.input is None else asked.input
        items = [self.history.get(one) if isinstance(one, str) else one for one in given]
        found = [self.as_told(item, now) for item in items if item is not None]
        return found if len(found) == len(items) else None

    def as_told(self, item: Item, now: float) -> Item:
        """Return an item with the words of a reply that is still being heard: all of them once all of it was sent."""
        reply = self.reply
        if reply is None or reply.item != item.id:
            return item
        if reply.told and not self._broken:
            return replace(item, text=reply.text.strip(), whole=True)
        return replace(item, text=reply.heard(reply.position(now)))

    def _prompt(self, config: SessionConfig, saying: str = "") -> tuple[ChatMessage, ...]:
        """Return what the model is asked, as much of the conversation as it can hold."""
        told = len(config.instructions) + len(saying) + characters_of((), config.tools)
        self.history.make_room(told, min(config.max_tokens, REPLY_TOKENS))
        return self.history.prompt(config.instructions, saying)

    def _reply_to(
        self,
        messages: tuple[ChatMessage, ...],
        turn: int,
        config: SessionConfig,
        *,
        tag: str = "",
        begins_s: float | None = None,
    ) -> list[Effect]:
        reply = self._new(turn, config, tag=tag, begins_s=begins_s)
        self._remember(reply)
        return reply.begin(messages)

    def _new(
        self,
        turn: int,
        config: SessionConfig,
        *,
        tentative: bool = False,
        tag: str = "",
        begins_s: float | None = None,
    ) -> Reply:
        assert self.reply is None, "one reply at a time"
        self._epoch += 1
        item = reply_item(self._session, self._epoch)
        self.reply = Reply(
            self._epoch,
            turn,
            self._session,
            config,
            self._speak_rate,
            tentative=tentative,
            item=item,
            tag=tag,
            begins_s=begins_s,
            reads_words=self._reads_words,
        )
        self._broken = False
        return self.reply

    def _remember(self, reply: Reply) -> None:
        """Give a reply that begins its place; its words are filled in when it is over."""
        self.rested_s = None
        self.history.place(Item(reply.item, "assistant", spoken=reply.speaks, whole=False))

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
        self._put_down(reply, heard, now, whole=False)
        return [*effects, *self._latency(reply), Send(TurnDone(reply.turn, "interrupted"))]

    def cut_at(self, item: str, seconds: float, now: float) -> tuple[str, float] | None:
        """Cut a reply to so many seconds of its sound; return what the history keeps of it, and up to which second.

        None if it never spoke. Of the reply that is being heard, only note how far: whoever calls this ends it.
        """
        sample, reply = int(seconds * self._speak_rate), self.reply
        if reply is not None and reply.item == item and reply.stage in ("live", "held"):
            reply.played_to(sample)
            position = reply.position(now)
            return reply.heard(position), position / self._speak_rate
        spoken = self._spoken.get(item)
        if spoken is None:
            return None
        end = spoken.ledger.heard_chars(sample)
        if not any(letter.isalnum() for letter in spoken.text[end:]):  # a closing quote is never heard
            end = len(spoken.text)
        heard = spoken.text[:end].strip()
        self.history.fill(item, heard, whole=heard == spoken.text.strip())
        return heard, min(seconds, spoken.ledger.sent_samples / self._speak_rate)

    def cancel_aside(self, epoch: int, now: float) -> list[Effect] | None:
        """End an aside; return None if there is none of this epoch."""
        aside = self.asides.pop(epoch, None)
        return None if aside is None else aside.interrupt(now)

    def settle(self, config: SessionConfig, now: float) -> list[Effect]:
        """Send what may be sent, and close a reply that was heard to its end."""
        effects: list[Effect] = []
        for aside in list(self.asides.values()):
            effects += aside.pump(now)
            if aside.told:
                del self.asides[aside.epoch]
                effects.append(Send(ReplyDone(aside.epoch, aside.text)))
        reply = self.reply
        if reply is None:
            return effects
        effects += reply.pump(now)
        return effects + self._complete(reply, config, now) if reply.finished(now) else effects

    def wake_at(self, now: float) -> float | None:
        """Return when something can be sent or is over, None if nothing but the engine can bring that about."""
        times = [reply.wake_at(now) for reply in self._replies()]
        return min((at for at in times if at is not None), default=None)

    def _replies(self) -> Iterator[Reply]:
        if self.reply is not None:
            yield self.reply
        yield from self.asides.values()

    def lose_engine(self) -> None:
        """Take it that nothing more comes of the reply: what is here of it is said, and no more."""
        if self.reply is not None and self.reply.stage == "tentative":
            self.reply = None
        elif self.reply is not None:
            self._broken = True
            self.reply.break_off()
        for aside in self.asides.values():
            aside.break_off()

    def _complete(self, reply: Reply, config: SessionConfig, now: float) -> list[Effect]:
        self.reply = None
        heard = reply.heard(reply.ledger.sent_samples) if self._broken else reply.text
        self._put_down(reply, heard, now, whole=not self._broken)
        effects: list[Effect] = [Send(ReplyDone(reply.epoch, heard)), *self._latency(reply)]
        if reply.calls and config.chains_tools and not self._broken:
            self._awaiting = reply
            return effects + self._go_on(config)
        return [*effects, Send(TurnDone(reply.turn, "failed" if self._broken else "done"))]

    def _put_down(self, reply: Reply, heard: str, now: float, *, whole: bool) -> None:
        """Write a reply into the history as it was heard."""
        self.rested_s = now
        self.history.fill(reply.item, heard.strip(), whole=whole)
        if reply.speaks:
            self._spoken[reply.item] = SpokenReply(reply.text, reply.ledger)
            if len(self._spoken) > KEPT_REPLIES:
                del self._spoken[next(iter(self._spoken))]

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
        name = message.request_id
        reply = next((one for one in self._replies() if name in (one.chat_id, one.tts_id)), None)
        if reply is None:
            return []
        if (
            self._broken and reply is self.reply
        ):  # what is here of it is all there is; this was on its way, or says that we cancelled it
            return []
        if name == reply.chat_id and reply.thought is not None:  # it was ended early: what comes now is not the reply's
            return []
        match message:
            case Started() if name == reply.chat_id:
                reply.prompt_read(message.prompt_tokens, message.cached_tokens)
                self.history.learn(reply.prompt_characters, message.prompt_tokens)
            case Text(text=text, tokens=tokens):
                return reply.add_text(text, now, tokens) if text else []
            case ToolCall():
                call = ToolUse(message.call_id, message.name, message.arguments)
                reply.calls.append(call)
                return [] if reply.stage == "tentative" else self._called(reply, len(reply.calls) - 1)
            case Samples():
                reply.add_samples(message, now)
            case Finished(reason="failed" | "cancelled") | Refused():
                return self._fail(reply, message)
            case Finished(reason=reason, stats=stats) if name == reply.chat_id:
                return reply.end_thought(reason, stats)
            case Finished(reason="length"):  # some of the text will never be said
                return self._fail(reply, message)
            case Finished():
                reply.end_samples()
        return []

    def _fail(self, reply: Reply, message: Finished | Refused) -> list[Effect]:
        """End a reply that the engine could not finish with what is there of it."""
        if reply.stage == "tentative":
            self._vain = self._expected
            return self.withdraw()
        if reply is self.reply:
            self._broken = True
            if isinstance(message, Refused) and message.code == "too_long" and message.request_id == reply.chat_id:
                self.history.shorten()
        return [Send(fault_of(message, reply.epoch)), *reply.break_off()]

    # ---- tools

    def _called(self, reply: Reply, place: int) -> list[Effect]:
        """Tell the client of a reply's call; that of an aside is not remembered, nor its result awaited."""
        call, item = reply.calls[place], ""
        if reply.item:
            self.open_calls.add(call.call_id)
            item = f"{reply.item}_c{place}"
            before = f"{reply.item}_c{place - 1}" if place else reply.item
            placed = Item(item, "call", call.arguments, call.name, call.call_id)
            self.history.place(placed, before if before in self.history else None)
        return [Send(ToolCalled(reply.epoch, call.call_id, call.name, call.arguments, item))]

    def tool_result(self, call_id: str, output: str, config: SessionConfig) -> list[Effect]:
        """Take a result, once, and answer it if its reply was heard to the end."""
        if call_id not in self.open_calls:
            return [Send(Fault("unknown_call", "there is no open tool call with this id", retryable=False))]
        self.open_calls.discard(call_id)
        self._results += 1
        self.history.place(Item(f"result{self._results}", "result", output, call_id=call_id))
        return self._go_on(config)

    def _go_on(self, config: SessionConfig) -> list[Effect]:
        """Answer the results of a reply's calls when they are all here."""
        waiting = self._awaiting
        if waiting is None or any(call.call_id in self.open_calls for call in waiting.calls):
            return []
        self._awaiting = None
        # Required was the call, and it was made: required again, nothing would ever be said.
        config = replace(config, tool_choice="auto") if config.tool_choice != "none" else config
        return self._reply_to(self._prompt(config), waiting.turn, config)


def fault_of(message: Finished | Refused, epoch: int = 0) -> Fault:
    """Return what a client is told of a request that did not work, and of which reply it was."""
    if isinstance(message, Refused):
        return Fault(message.code, message.detail, retryable=message.code == "overloaded", epoch=epoch)
    if message.reason == "length":
        return Fault("engine_failed", "the voice ended before all was said", retryable=False, epoch=epoch)
    return Fault("engine_failed", "the engine could not finish this; please repeat", retryable=True, epoch=epoch)

"""The assistant's side of a conversation: one reply at a time, the tools it calls, and the history it leaves.

A reply may be prepared before the person is done, withdrawn without a trace, held, released, and cut to what was
heard. floor.py and session.py decide when; this module does it. Asides are replies outside the conversation. Pure: the
clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from voxlane.engine.api import (
    ChatMessage,
    ConverseModel,
    Finished,
    Pieces,
    Refused,
    Samples,
    Started,
    Text,
    ToolCall,
    ToolUse,
    heard_pieces,
)
from voxlane.server.conversation.client_events import Respond
from voxlane.server.conversation.effects import Effect, Send
from voxlane.server.conversation.replies.history import (
    Frames,
    History,
    characters_of,
    prompt_of,
    reply_item,
    spoken_prompt_of,
)
from voxlane.server.conversation.replies.ledger import Ledger
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.replies.saved import SavedProgress
from voxlane.server.conversation.replies.speech_reply import SpeechReply
from voxlane.server.conversation.server_events import Fault, Latency, ReplyDone, ToolCalled, TurnDone
from voxlane.server.conversation.turns.user_turn import RATE, Content, UserSpeech
from voxlane.server.conversation.values import Item, SessionConfig

ReplyMessage = Started | Text | Samples | Pieces | Finished | Refused | ToolCall

MOST_ASIDES = 8
"""Asides that may run at once: more than any client uses, and a bound on what one client can ask of the engine."""

MOST_TOOL_ROUNDS = 8
"""Times in a row that a model may call tools instead of speaking; small models call the same one again and again."""

CALLS = ("call", "result")
"""The kinds of items that are about tools."""

NO_CALLS = "the speech-to-speech model that answers reads neither tool calls nor their results"

REPLY_TOKENS = 256
"""Tokens left for a reply beside the history; few replies are longer, even where they may be."""

SPEECH_POSITIONS = 4
"""Positions of a spoken reply for each token of its text: the token, and the frames that are its sound."""

KEPT_REPLIES = 64
"""Replies whose word positions are kept, for clients that report late how much they have played."""


@dataclass(frozen=True, slots=True)
class SpokenReply:
    """The text of a past reply, and where its words lie in its sound."""

    text: str
    ledger: Ledger


class Answers:
    """The assistant's current reply, its asides, its tool calls and the history."""

    def __init__(
        self,
        session: str,
        speak_rate: int,
        *,
        reads_words: bool = False,
        begins_early: bool = False,
        history: History | None = None,
        speech: ConverseModel | None = None,
        chats: bool = True,
    ) -> None:
        self.history = history or History()
        self.reply: Reply | None = None
        self._session = session
        self._speak_rate = speak_rate
        self._reads_words = reads_words  # the voice takes text word by word
        self._begins_early = begins_early  # the voice says the first words of a clause before it is whole
        self._epoch = 0
        self._speech = speech  # answers with speech
        self._chats = chats  # there is a model that answers with text
        self._expected: Content = ""  # what the prepared reply answers
        self._failed: Content = ""  # what preparing a reply failed for
        self._answered: UserSpeech | None = None  # the turn that the reply answers, for its latencies
        self._broken = False  # the engine sends no more of the reply
        self.asides: dict[int, Reply] = {}
        self.reply_ended_s: float | None = None  # when the last reply ended; None: no reply yet, or another has begun
        self.asked = False  # the last reply ended with a question
        self.open_calls: set[str] = set()  # ids of tool calls sent to the client, without a result so far
        self._results = 0
        self._rounds = 0  # times that results were answered since the person's turn
        self._spoken: dict[str, SpokenReply] = {}  # by item, oldest first
        self._last_pieces: tuple[str, Frames] = ("", ())  # the item and all pieces of the last reply that spoke
        self._awaiting: Reply | None = None  # a reply heard to its end whose tool results are awaited

    @property
    def speak_rate(self) -> int:
        """Samples a second of its replies."""
        return self._speak_rate

    def item_of(self, epoch: int) -> str:
        """Return the id under which a reply is remembered."""
        return reply_item(self._session, epoch)

    def most_sound(self, config: SessionConfig) -> int:
        """Return how many bytes of a turn's sound are kept: what the model that answers it hears at once.

        It is 0 where the chat model answers, and where text alone is given and only on request, as in a transcription.
        """
        speech = self._model_for(config)
        if speech is None or not (config.speaks or config.replies):
            return 0
        return 2 * int(speech.heard_s * RATE)

    @property
    def reads_calls(self) -> bool:
        """Whether a model that answers is told of tool calls and their results."""
        return self._speech is None or self._chats

    def _model_for(self, config: SessionConfig) -> ConverseModel | None:
        """Return the speech-to-speech model that answers; None if the chat model does."""
        return self._speech if config.speaks or not self._chats else None

    @property
    def talking(self) -> bool:
        """Whether the person hears a reply, or a reply is on hold."""
        return self.reply is not None and self.reply.stage in ("live", "held") and not self.reply.silent

    @property
    def thinking(self) -> bool:
        """Whether an answer is on its way and no sound of it was sent."""
        return self._awaiting is not None or (
            self.reply is not None and self.reply.stage == "live" and self.reply.silent
        )

    @property
    def busy(self) -> bool:
        """Whether a turn is being answered: the next turn has to wait."""
        return self._awaiting is not None or (self.reply is not None and self.reply.stage != "tentative")

    @property
    def idle(self) -> bool:
        """Whether there is no reply, not even a prepared one, and no aside: time changes nothing here."""
        return self.reply is None and not self.asides

    # ---- saving

    def saved(self, turns: int, now: float) -> SavedProgress:
        """Return the counters and the reply that the client knows of; `turns` is the number of turns so far."""
        reply = self.reply if self.reply is not None and self.reply.stage != "tentative" else None
        calls = tuple(sorted(self.open_calls))
        saved = None if reply is None else reply.saved(now)
        return SavedProgress(turns, self._epoch, self._results, calls, saved)

    def restore(self, progress: SavedProgress, position: int) -> None:
        """Go on from saved counters; of the reply under way, the history keeps what was heard up to `position`."""
        self._epoch, self._results = progress.epoch, progress.results
        self.open_calls = set(progress.open_calls)
        if (reply := progress.reply) is not None:
            self.history.fill(reply.item, reply.heard(position).strip(), whole=False)

    # ---- beginning

    def greet(self, text: str, turn: int, config: SessionConfig, now: float) -> list[Effect]:
        """Say a given text without being asked."""
        reply = self._new(turn, config, given=True)
        self._remember(reply)
        return reply.begin_with(text, now)

    def prepare(self, turn: UserSpeech, config: SessionConfig) -> list[Effect]:
        """Begin a reply that the client does not see yet, in case the turn is over."""
        if self.reply is not None or self._awaiting is not None or turn.content == self._failed:
            return []
        self._expected = turn.content
        reply = self._new(turn.number, config, tentative=True)
        return reply.begin(self._prompt(config, turn))

    def prepared_for(self, turn: UserSpeech) -> bool:
        """Return whether the prepared reply answers what a turn says."""
        prepared = self.reply is not None and self.reply.stage == "tentative"
        return prepared and bool(turn.content) and turn.content == self._expected

    def withdraw(self, unless: UserSpeech | None = None) -> list[Effect]:
        """Cancel a prepared reply without a trace, unless it answers what the turn `unless` says."""
        reply = self.reply
        if reply is None or reply.stage != "tentative":
            return []
        if unless is not None and self.prepared_for(unless):
            return []
        self.reply = None
        return reply.withdraw()

    def answer(self, turn: UserSpeech, config: SessionConfig) -> list[Effect]:
        """Answer a turn that is in the history; use the prepared reply if it answers the same words."""
        self._answered, self._failed, self._rounds = turn, "", 0
        reply = self.reply
        if reply is not None and reply.stage == "tentative" and self._expected == turn.content:
            self._remember(reply)
            effects = reply.go_live()
            for place in range(len(reply.calls)):
                effects += self._called(reply, place)
            return effects
        return [*self.withdraw(), *self._reply_to(self._prompt(config), turn.number, config)]

    def respond(self, asked: Respond, turn: int, now: float) -> list[Effect]:
        """Reply because the client asks for it, or send a Fault that says why not."""
        config, items = asked.config, self._input(asked, now)
        if items is None:
            return [Send(Fault("invalid_item_id", "input: there is no such item", retryable=False, ref=asked.ref))]
        if asked.input is not None and not self.reads_calls and any(one.kind in CALLS for one in items):
            return [Send(Fault("unsupported_item", NO_CALLS, retryable=False, ref=asked.ref))]
        known = asked.input is None  # else the client supplies the whole input
        told = self.history.with_facts(config.instructions) if known else config.instructions
        messages = spoken_prompt_of(items, told) if self._model_for(config) else prompt_of(items, told)
        if asked.aside:
            if len(self.asides) >= MOST_ASIDES:
                reason = f"at most {MOST_ASIDES} responses may be under way outside the conversation"
                return [Send(Fault("too_many_responses", reason, retryable=True, ref=asked.ref))]
            self._epoch += 1
            aside = self._made(0, config, tag=asked.tag)
            self.asides[aside.epoch] = aside
            return aside.begin(messages)
        effects, begins_s = self.withdraw(), None
        if self._awaiting is not None:  # the client continues the answer itself
            effects += [Send(TurnDone(self._awaiting.turn, "done"))]
            self._awaiting = None
        if (reply := self.reply) is not None:
            if not reply.all_sent or reply.stage == "held":
                reason = "a response is under way: cancel it, or wait for its end"
                fault = Fault("conversation_already_has_active_response", reason, retryable=False, ref=asked.ref)
                return [Send(fault)]
            begins_s = reply.over_at(now)  # it is still being played; the next one is played after it
            effects += self._complete(reply, replace(config, chains_tools=False), now)
        return [*effects, *self._reply_to(messages, turn, config, tag=asked.tag, begins_s=begins_s)]

    def _input(self, asked: Respond, now: float) -> list[Item] | None:
        given = self.history.shown if asked.input is None else asked.input
        items = [self.history.get(one) if isinstance(one, str) else one for one in given]
        found = [self.as_told(item, now) for item in items if item is not None]
        return found if len(found) == len(items) else None

    def as_told(self, item: Item, now: float) -> Item:
        """Return an item; if its reply is still playing, with the words heard so far, or all once all was sent."""
        reply = self.reply
        if reply is None or reply.item != item.id:
            return item
        if reply.all_sent and not self._broken:
            whole = reply.said == reply.text
            return replace(item, text=reply.said.strip(), whole=whole, pieces=tuple(reply.pieces))
        position = reply.position(now)
        return replace(item, text=reply.heard(position), pieces=self._heard_pieces(reply.pieces, position))

    def _heard_pieces(self, pieces: Sequence[tuple[int, ...]], position: int) -> Frames:
        return heard_pieces(pieces, position, self._speech.frame_samples) if self._speech is not None else ()

    def _prompt(self, config: SessionConfig, turn: UserSpeech | None = None) -> tuple[ChatMessage, ...]:
        """Return the prompt, with as much of the conversation as the model can hold, and a turn that is not over."""
        saying = turn.text if turn is not None else ""
        fixed = len(config.instructions) + len(saying) + characters_of((), config.tools)
        reply_tokens, speech = min(config.max_tokens, REPLY_TOKENS), self._model_for(config)
        if speech is None:
            self.history.make_room(fixed, reply_tokens)
            return self.history.prompt(config.instructions, saying)
        rows = ceil(turn.said_bytes / 2 / RATE * speech.rows_s) if turn is not None else 0
        self.history.make_room(fixed, rows + SPEECH_POSITIONS * reply_tokens)
        said = Item(turn.item, "user", saying, sound=turn.said) if turn is not None else None
        return self.history.spoken_prompt(config.instructions, said)

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
        given: bool = False,
    ) -> Reply:
        assert self.reply is None, "one reply at a time"
        self._epoch += 1
        item = reply_item(self._session, self._epoch)
        self.reply = self._made(turn, config, tentative=tentative, item=item, tag=tag, begins_s=begins_s, given=given)
        self._broken = False
        return self.reply

    def _made(
        self,
        turn: int,
        config: SessionConfig,
        *,
        tentative: bool = False,
        item: str = "",
        tag: str = "",
        begins_s: float | None = None,
        given: bool = False,
    ) -> Reply:
        """Return a reply of the model that answers; a text that is `given` is said by the voice."""
        kind = Reply if given or self._model_for(config) is None else SpeechReply
        return kind(
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
            begins_early=self._begins_early,
        )

    def _remember(self, reply: Reply) -> None:
        """Place a reply that begins in the history; its words are filled in when it is over."""
        self.reply_ended_s = None
        self.history.place(Item(reply.item, "assistant", spoken=reply.speaks, whole=False))

    # ---- ending

    def cut(self, now: float) -> list[Effect]:
        """End the reply at the playback position; the history keeps what was heard of it."""
        reply = self.reply
        if self._awaiting is not None:  # tool results that come later are remembered, not answered
            waiting, self._awaiting = self._awaiting, None
            return [Send(TurnDone(waiting.turn, "interrupted"))]
        if reply is None or reply.stage == "tentative":
            return self.withdraw()
        self.reply = None
        position = reply.position(now)
        effects = reply.interrupt(now)
        self._put_down(reply, position, now, whole=False)
        return [*effects, *self._latency(reply), Send(TurnDone(reply.turn, "interrupted"))]

    def cut_at(self, item: str, seconds: float, now: float) -> tuple[str, float] | None:
        """Cut a reply to `seconds` of its sound; return the text that the history keeps and the second it ends at.

        Return None if the reply never spoke. For the current reply only note the position: the caller ends it.
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
        whole = heard == spoken.text.strip()
        self.history.fill(item, heard, whole=whole, pieces=self._pieces_until(item, None if whole else sample))
        return heard, min(seconds, spoken.ledger.sent_samples / self._speak_rate)

    def _pieces_until(self, item: str, sample: int | None) -> Frames:
        """Return what is known of a past reply's pieces, up to a sample: of earlier replies, what was heard of them."""
        last, pieces = self._last_pieces
        if last != item:
            known = self.history.get(item)
            pieces = known.pieces if known is not None else ()
        return pieces if sample is None else self._heard_pieces(pieces, sample)

    def cancel_aside(self, epoch: int, now: float) -> list[Effect] | None:
        """End an aside; return None if no aside has this epoch."""
        aside = self.asides.pop(epoch, None)
        return None if aside is None else aside.interrupt(now)

    def advance(self, config: SessionConfig, now: float) -> list[Effect]:
        """Send what may be sent now, and complete a reply that was heard to its end."""
        effects: list[Effect] = []
        for aside in list(self.asides.values()):
            effects += aside.pump(now)
            if aside.all_sent:
                del self.asides[aside.epoch]
                effects.append(Send(ReplyDone(aside.epoch, aside.text)))
        reply = self.reply
        if reply is None:
            return effects
        effects += reply.pump(now)
        return effects + self._complete(reply, config, now) if reply.finished(now) else effects

    def wake_at(self, now: float) -> float | None:
        """Return when to look again, None if only a message from the engine can change anything."""
        times = [reply.wake_at(now) for reply in self._replies()]
        return min((at for at in times if at is not None), default=None)

    def _replies(self) -> Iterator[Reply]:
        if self.reply is not None:
            yield self.reply
        yield from self.asides.values()

    def lose_engine(self) -> list[Effect]:
        """Note that the engine is gone: of replies that it had not completed say what has come, and no more.

        Return a Fault for each of them, or one that concerns none.
        """
        if self.reply is not None and self.reply.stage == "tentative":
            self.reply = None
        lost = [reply for reply in self._replies() if not reply.generated]
        self._broken = self._broken or self.reply in lost
        for reply in lost:
            reply.break_off()
        return [Send(replace(_ENGINE_LOST, epoch=reply.epoch)) for reply in lost] or [Send(_ENGINE_LOST)]

    def _complete(self, reply: Reply, config: SessionConfig, now: float) -> list[Effect]:
        self.reply = None
        heard = self._put_down(reply, reply.ledger.sent_samples, now, whole=not self._broken)
        effects: list[Effect] = [Send(ReplyDone(reply.epoch, heard)), *self._latency(reply)]
        if reply.calls and config.chains_tools and not self._broken:
            self._awaiting = reply
            return effects + self._go_on(config)
        return [*effects, Send(TurnDone(reply.turn, "failed" if self._broken else "done"))]

    def _put_down(self, reply: Reply, position: int, now: float, *, whole: bool) -> str:
        """Write a reply, or what was heard of it up to a sample, into the history; return the words."""
        heard, pieces = reply.said, tuple(reply.pieces)
        if not whole:
            heard = reply.heard(position)
            pieces = self._heard_pieces(pieces, position) if reply.speaks else pieces
        self.reply_ended_s, self.asked = now, whole and heard.rstrip(" \"'”’").endswith("?")
        self.history.fill(reply.item, heard.strip(), whole=whole and heard == reply.text, pieces=pieces)
        if reply.speaks:
            self._spoken[reply.item] = SpokenReply(reply.text, reply.ledger)
            self._last_pieces = (reply.item, tuple(reply.pieces))
            if len(self._spoken) > KEPT_REPLIES:
                del self._spoken[next(iter(self._spoken))]
        return heard

    def _latency(self, reply: Reply) -> list[Effect]:
        turn, self._answered = self._answered, None
        if turn is None or turn.number != reply.turn:
            return []
        times = (turn.ended_s, turn.words_s, reply.first_token_s, reply.first_sample_s, reply.first_frame_s)
        parts = [-1.0 if at is None else max(0.0, at - turn.stopped_s) * 1e3 for at in times]
        return [Send(Latency(turn.number, *parts))]

    # ---- messages from the engine

    def receive(self, message: ReplyMessage, now: float) -> list[Effect]:
        """Apply an engine message to its reply; ignore messages of requests that are over."""
        name = message.request_id
        reply = next((one for one in self._replies() if name in (one.chat_id, one.tts_id)), None)
        if reply is None:
            return []
        if self._broken and reply is self.reply:  # late, or the confirmation of our Cancel
            return []
        if name == reply.chat_id and reply.thought is not None:  # the reply's text was ended early
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
            case Pieces(pieces=pieces):
                reply.add_pieces(pieces)
            case Finished(reason="failed" | "cancelled") | Refused():
                return self._fail(reply, message)
            case Finished(reason="length") if name == reply.chat_id and reply.has_no_room:
                return self._fail(reply, Refused(name, reply.epoch, "too_long", "the conversation has no more room"))
            case Finished(reason=reason, stats=stats) if name == reply.chat_id:
                return reply.end_thought(reason, stats)
            case Finished(reason="length"):  # the voice stopped before the end of the text
                return self._fail(reply, message)
            case Finished():
                reply.end_samples()
        return []

    def _fail(self, reply: Reply, message: Finished | Refused) -> list[Effect]:
        """End a reply that the engine could not finish; what has come of it is still said."""
        if reply.stage == "tentative":
            self._failed = self._expected
            return self.withdraw()
        if reply is self.reply:
            self._broken = True
            if isinstance(message, Refused) and message.code == "too_long" and message.request_id == reply.chat_id:
                self.history.shorten()
        return [Send(fault_of(message, reply.epoch)), *reply.break_off()]

    # ---- tools

    def _called(self, reply: Reply, place: int) -> list[Effect]:
        """Send a tool call to the client. An aside's call is not remembered and its result not awaited."""
        call, item = reply.calls[place], ""
        if reply.item:
            self.open_calls.add(call.call_id)
            item = f"{reply.item}_c{place}"
            before = f"{reply.item}_c{place - 1}" if place else reply.item
            placed = Item(item, "call", call.arguments, call.name, call.call_id)
            self.history.place(placed, before if before in self.history else None)
        return [Send(ToolCalled(reply.epoch, call.call_id, call.name, call.arguments, item))]

    def tool_result(self, call_id: str, output: str, config: SessionConfig) -> list[Effect]:
        """Remember a tool result, once, and answer it if its reply was heard to the end."""
        if call_id not in self.open_calls:
            return [Send(Fault("unknown_call", "there is no open tool call with this id", retryable=False))]
        self.open_calls.discard(call_id)
        self._results += 1
        self.history.place(Item(f"result{self._results}", "result", output, call_id=call_id))
        return self._go_on(config)

    def _go_on(self, config: SessionConfig) -> list[Effect]:
        """Answer the tool results of a reply when all of them have come."""
        waiting = self._awaiting
        if waiting is None or any(call.call_id in self.open_calls for call in waiting.calls):
            return []
        self._awaiting = None
        if not config.chains_tools:
            return [Send(TurnDone(waiting.turn, "done"))]
        self._rounds += 1
        # The required call was made. Required again, the model would call tools forever and never speak.
        choice = "none" if config.tool_choice == "none" or self._rounds >= MOST_TOOL_ROUNDS else "auto"
        config = replace(config, tool_choice=choice)
        return self._reply_to(self._prompt(config), waiting.turn, config)


_ENGINE_LOST = Fault("engine_lost", "the engine is restarting; please repeat", retryable=True)


def fault_of(message: Finished | Refused, epoch: int = 0) -> Fault:
    """Return the Fault for a request that failed; `epoch` is that of its reply."""
    if isinstance(message, Refused):
        return Fault(message.code, message.detail, retryable=message.code == "overloaded", epoch=epoch)
    if message.reason == "length":
        return Fault("engine_failed", "the voice ended before all was said", retryable=False, epoch=epoch)
    return Fault("engine_failed", "the engine could not finish this; please repeat", retryable=True, epoch=epoch)

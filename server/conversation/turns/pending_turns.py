"""Turns that are over but not yet transcribed to their last word or not yet answered, oldest first.

They are answered in their order; consecutive turns without an answer in between get one answer together. Replies that
a client asks for wait here until everything said so far is transcribed. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from voxlane.engine.api import Append, Cancel, EndInput, ListenParams, Priority, Submit
from voxlane.server.conversation.client_events import Respond
from voxlane.server.conversation.effects import Effect, Send, SendToEngine
from voxlane.server.conversation.hearing.audibility import Audibility
from voxlane.server.conversation.replies.answers import Answers
from voxlane.server.conversation.replies.history import NOTHING_SAID, turn_item
from voxlane.server.conversation.server_events import (
    Fault,
    HardToHear,
    IdleTimeout,
    InputCommitted,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.turns.hot_words import hot_words
from voxlane.server.conversation.turns.phrases import leaves_floor, only_hums
from voxlane.server.conversation.turns.user_turn import RATE, UserSpeech
from voxlane.server.conversation.values import Item, SessionConfig

CLIP_BYTES = 2 * RATE
"""Bytes of a clip per message to the engine: a second."""

ASKED_CHARS = 80
"""A question mark so near to the end of a reply asks the person something: "Shall I go on? Just say so."."""

MOST_ASKED = MOST_CLIPS = 8
"""At most so many requested replies wait for transcripts, and so many clips are being transcribed."""


class PersonSpeaking(Protocol):
    """What PendingTurns needs to know about the person's side of the conversation."""

    config: SessionConfig
    audibility: Audibility

    @property
    def hearing(self) -> bool:
        """Whether the person is speaking."""

    @property
    def suspected(self) -> bool:
        """Whether the person may be speaking."""

    def next_turn(self) -> int:
        """Return the number of a new turn."""


class PendingTurns:
    """The turns of one conversation that are over and not yet answered."""

    def __init__(self, name: str, speaker: PersonSpeaking, answers: Answers) -> None:
        self.owed = False  # the history ends with unanswered words, to be answered with the next turn
        self._name = name
        self._speaker = speaker
        self._answers = answers
        self._turns: deque[UserSpeech] = deque()
        self._waiting: list[UserSpeech] = []  # transcribed; to be answered when the current reply is over
        self._asked: deque[Respond] = deque()  # replies that the client asked for

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[UserSpeech]:
        return iter(self._turns)

    def add(self, turn: UserSpeech) -> None:
        """Add a turn that is over."""
        self._turns.append(turn)

    def remember(self, turn: UserSpeech) -> Effect:
        """Place a turn in the history; its words are filled in when they are known."""
        before = self._answers.history.place(Item(turn.item, "user", spoken=True, whole=False))
        return Send(InputCommitted(turn.number, turn.item, before))

    def listen(self, turn: UserSpeech, priority: Priority) -> Effect:
        """Return the command that makes the engine transcribe a turn."""
        config = self._speaker.config
        listen = ListenParams(config.language, hot_words=hot_words(config, self._answers.history.shown))
        return SendToEngine(Submit(turn.asr_id, "asr", listen=listen, priority=priority, session=self._name))

    @property
    def clips(self) -> int:
        """Number of clips that are being transcribed."""
        return sum(1 for turn in self._turns if turn.clip)

    def listen_to(self, item: str, pcm: bytes) -> list[Effect]:
        """Have a clip transcribed that the client placed as an item."""
        number = self._speaker.next_turn()
        clip = UserSpeech(number, item, f"{self._name}/hear{number}", 0, 0, clip=True)
        clip.keep(pcm, self._answers.most_sound(self._speaker.config))
        clip.note_said(0)
        self._turns.append(clip)
        pieces = [
            SendToEngine(Append(clip.asr_id, audio=pcm[at : at + CLIP_BYTES])) for at in range(0, len(pcm), CLIP_BYTES)
        ]
        return [self.listen(clip, Priority.HIGH), *pieces, SendToEngine(EndInput(clip.asr_id))]

    def respond(self, asked: Respond, now: float) -> list[Effect]:
        """Reply because the client asks for it: at once, or when everything said so far is transcribed."""
        for turn in self._turns:
            turn.answer_at_s = 0.0  # the client does not wait for what may follow
        effects = self.close_understood(now)
        remembers = asked.input is None or any(isinstance(one, str) for one in asked.input)
        reply = self._answers.reply  # once a reply was sent to its end, its client cannot see that it is on hold
        unheard = not asked.aside and reply is not None and reply.all_sent and reply.stage == "held"
        if not (self._turns and remembers) and not unheard:
            return [*effects, *self._respond(asked, now)]
        if len(self._asked) >= MOST_ASKED or (not asked.aside and self._replies_soon):
            reason = "a response to what was said last is under way"
            fault = Fault("conversation_already_has_active_response", reason, retryable=False, ref=asked.ref)
            return [*effects, Send(fault)]
        self._asked.append(asked)
        return effects

    @property
    def asked(self) -> bool:
        """Whether the client has asked for replies that wait here."""
        return bool(self._asked)

    @property
    def waits(self) -> bool:
        """Whether a turn, an answer or a requested reply waits here: else `catch_up` does nothing."""
        return bool(self._turns or self._asked or self._waiting or self.owed)

    @property
    def _replies_soon(self) -> bool:
        """Whether the client has asked for a reply that waits here."""
        return any(not one.aside for one in self._asked)

    def _respond(self, asked: Respond, now: float) -> list[Effect]:
        if asked.aside:
            return self._answers.respond(asked, 0, now)
        # The reply answers everything said so far.
        self.owed = False
        return [*self._give_up_waiting(), *self._answers.respond(asked, self._speaker.next_turn(), now)]

    def cancel_asked(self, now: float) -> list[Effect] | None:
        """Cancel the requested reply that has not begun; return None if there is none."""
        asked = next((one for one in self._asked if not one.aside), None)
        if asked is None:
            return None
        self._asked.remove(asked)
        return [*self._respond(asked, now), *self._answers.cut(now)]  # the client expects both its start and its end

    def catch_up(self, now: float) -> list[Effect]:
        """Begin the replies and answers that had to wait, if nothing is left to wait for."""
        effects = self.close_understood(now)
        reply = self._answers.reply
        if self._turns or self._speaker.hearing or (reply is not None and reply.stage == "held"):
            return effects
        while self._asked:
            effects += self._respond(self._asked.popleft(), now)
        if self._answers.busy or self._speaker.suspected or not (self._waiting or self.owed):
            return effects
        config, self.owed = self._speaker.config, False
        number = self._speaker.next_turn()
        last = UserSpeech(number, "", "", 0, 0, stopped_s=now, ended_s=now, words_s=now)
        if self._waiting:
            last = self._waiting.pop()  # one answer for all
        effects += self._give_up_waiting()
        if config.replies:
            return [*effects, *self._answers.withdraw(), *self._answers.answer(last, config)]
        return [*effects, Send(TurnDone(last.number, "interrupted"))] if last.asr_id else effects

    def dismiss(self) -> list[Effect]:
        """Keep the pending turns in the history, and do not answer them."""
        self.owed = False
        self._asked.clear()
        for turn in self._turns:
            turn.dismissed, turn.answer_at_s = True, 0.0
            if turn.understood:
                self._answers.history.fill(turn.item, turn.text, sound=turn.remembered_sound)
        return self._give_up_waiting()

    def give_up(self) -> list[Effect]:
        """End all pending turns without an answer; the words that are known stay in the history."""
        effects = self.dismiss()
        for turn in self._turns:
            effects += [] if turn.understood else [SendToEngine(Cancel(turn.asr_id))]
            effects += [] if turn.clip else [Send(TurnDone(turn.number, "interrupted"))]
        self._turns.clear()
        return effects

    def _give_up_waiting(self) -> list[Effect]:
        effects: list[Effect] = [Send(TurnDone(turn.number, "interrupted")) for turn in self._waiting]
        self._waiting.clear()
        return effects

    def close_understood(self, now: float) -> list[Effect]:
        """Answer the turns whose last word is known; a turn that may go on waits, and is answered with what follows."""
        effects: list[Effect] = []
        while self._turns and self._turns[0].understood:
            if now < self._turns[0].answer_at_s and not self._speaker.hearing:
                break
            turn = self._turns.popleft()
            self._answers.history.fill(turn.item, turn.text, sound=turn.remembered_sound)
            turn.sound.clear()  # the history has it
            if turn.clip:
                effects += self._answers.withdraw()  # a prepared reply does not know it
                continue
            if turn.beside and turn.text and leaves_floor(turn.text, self._speaker.config.barge_in.language):
                effects.append(Send(UserTurn(turn.number, turn.text)))
                effects += self.end_wordless(turn, now)
            elif self._needs_no_answer(turn):
                effects += [*self._answers.withdraw(), Send(UserTurn(turn.number, turn.text))]
                effects += self.end_wordless(turn, now)
            elif turn.text:
                effects += self.answer(turn, now)
            else:
                effects += [*self._answers.withdraw(), *self.end_wordless(turn, now)]
        return effects

    def _needs_no_answer(self, turn: UserSpeech) -> bool:
        """Return whether a turn is only a cough or a hum, which cut off no reply and answers no question."""
        config = self._speaker.config
        decided = config.turns.mode != "auto" or config.barge_in.at_once  # the client wants every voice answered
        if decided or self.owed or not only_hums(turn.text, config.barge_in.language):
            return False
        said = [item for item in self._answers.history.items if item.kind == "assistant"]
        return not said or (said[-1].whole and "?" not in said[-1].text[-ASKED_CHARS:])

    def answer_at(self) -> float | None:
        """Return when a turn that may go on is answered after all; None if there is none."""
        turn = self._turns[0] if self._turns else None
        return turn.answer_at_s if turn is not None and turn.understood else None

    def fail(self, turn: UserSpeech) -> list[Effect]:
        """Give up a turn that the engine could not transcribe."""
        self._turns.remove(turn)
        return [] if turn.clip else [Send(TurnDone(turn.number, "failed"))]

    def idle_at(self) -> float | None:
        """Return when the silence after a reply reaches its limit, None if no such silence is running."""
        config, reply_ended_s = self._speaker.config, self._answers.reply_ended_s
        if config.turns.idle_s is None or reply_ended_s is None or not config.replies:
            return None
        free = not self._speaker.suspected and not self._turns and not self._answers.busy
        return reply_ended_s + config.turns.idle_s if free else None

    def break_silence(self, heard_s: float, now: float) -> list[Effect]:
        """Speak again if the silence has reached its limit; `heard_s` is how much sound has come so far."""
        due_s, config = self.idle_at(), self._speaker.config
        if due_s is None or now < due_s:
            return []
        number = self._speaker.next_turn()
        turn = UserSpeech(number, turn_item(self._name, number), "", 0, 0, stopped_s=now, ended_s=now, words_s=now)
        from_s = max(0.0, heard_s - (config.turns.idle_s or 0.0))
        effects: list[Effect] = [Send(IdleTimeout(number, turn.item, from_s, heard_s)), self.remember(turn)]
        self._answers.history.fill(turn.item, NOTHING_SAID)
        return [*effects, *self._answers.answer(turn, config)]

    def end_wordless(self, turn: UserSpeech, now: float) -> list[Effect]:
        """End a turn that needs no answer."""
        if self._answers.reply_ended_s is not None:
            self._answers.reply_ended_s = now
        done = Send(TurnDone(turn.number, "done"))
        missed = turn.faint and not turn.text and self._speaker.audibility.miss(now)
        return [done, Send(HardToHear())] if missed else [done]

    def answer_typed(self, text: str, now: float) -> list[Effect]:
        """Remember and answer a turn that was typed."""
        number = self._speaker.next_turn()
        item = turn_item(self._name, number)
        self._answers.history.place(Item(item, "user", text))
        return self.answer(UserSpeech(number, item, "", 0, 0, settled=text, stopped_s=now, ended_s=now), now)

    def answer(self, turn: UserSpeech, now: float) -> list[Effect]:
        """Answer a turn that is in the history."""
        turn.words_s = now
        said = Send(UserTurn(turn.number, turn.text))
        if not self._speaker.config.replies:
            return [*self._answers.withdraw(), said, Send(TurnDone(turn.number, "done"))]
        if turn.beside and self._answers.busy and not turn.dismissed:
            self._waiting.append(turn)
            return [said]
        # The assistant answers something else, or the person speaks again: then both turns get one answer.
        speaks_again = self._speaker.hearing or (turn.asr_id and any(not one.clip for one in self._turns))
        if self._answers.busy or speaks_again or turn.dismissed or self._replies_soon:
            self.owed = self.owed or not (self._answers.busy or turn.dismissed)
            return [*self._answers.withdraw(), said, Send(TurnDone(turn.number, "interrupted"))]
        self.owed = False
        return [said, *self._give_up_waiting(), *self._answers.answer(turn, self._speaker.config)]

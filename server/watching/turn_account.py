"""The account of each turn: when its stages happened, what it cost, how it ended. It keeps no words. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from voxlane.server.conversation.server_events import (
    BargeIn,
    Fault,
    Latency,
    ReplyStarted,
    ReplyText,
    ServerEvent,
    SpeechStarted,
    SpeechStopped,
    Thought,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.values import TurnEnd

MOST_OPEN = 64
"""Turns that are accounted for at one time: more than a conversation ever has, and a bound."""

STAGES = ("turn_end", "words", "first_token", "first_sample", "first_frame")
"""The stages of the latency bar, as in the event Latency."""

RecordEnd = TurnEnd | Literal["left"]
"""How a turn ended; `left`: the conversation was over before the turn was."""

MS = 1_000_000
"""Nanoseconds of a millisecond."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn that is over. Times are in nanoseconds since 1970."""

    number: int
    began_ns: int
    ended_ns: int
    end: RecordEnd
    last_sound_ns: int | None  # when the person stopped speaking, or typed the turn; None: there was no person's turn
    stages: tuple[tuple[str, float], ...]  # milliseconds from the last sound, for the stages that happened
    words: int  # of the person
    reply_words: int  # written by the model, heard or not
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tools: int  # tools that were called
    barge_ins: int
    faults: int


@dataclass(slots=True)
class _OpenTurn:
    number: int
    began_ns: int
    stopped_ns: int | None = None  # when it was known that the person had finished
    latency: Latency | None = None
    words: int = 0
    reply_words: int = 0
    tokens: tuple[int, int, int] = (0, 0, 0)
    tools: int = 0
    barge_ins: int = 0
    faults: int = 0
    epochs: set[int] = field(default_factory=set)
    last_letter: bool = False  # the reply's text so far ends within a word


class TurnAccount:
    """Follows the events of one conversation."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._open: dict[int, _OpenTurn] = {}
        self.turns = 0  # turns that are over
        self.interruptions = 0  # turns of these that were interrupted

    def follow(self, event: ServerEvent) -> TurnRecord | None:
        """Take an event that the client is sent; return the record of a turn that it ends."""
        match event:
            case SpeechStarted(turn):
                self._turn(turn)
            case SpeechStopped(turn):
                self._turn(turn).stopped_ns = self._clock_ns()
            case UserTurn(turn, text):
                found = self._turn(turn)
                found.words = len(text.split())
                if found.stopped_ns is None:  # it was typed
                    found.stopped_ns = self._clock_ns()
            case ReplyStarted(epoch, turn) if turn:  # an aside belongs to no turn
                self._turn(turn).epochs.add(epoch)
            case ReplyText(epoch, text) if (of := self._of(epoch)) is not None:
                _count_words(of, text)
            case Thought(epoch) if (of := self._of(epoch)) is not None:
                new = event.prompt_tokens, event.cached_tokens, event.output_tokens
                before = of.tokens
                of.tokens = before[0] + new[0], before[1] + new[1], before[2] + new[2]
            case ToolCalled(epoch) if (of := self._of(epoch)) is not None:
                of.tools += 1
            case BargeIn(epoch) if (of := self._of(epoch)) is not None:
                of.barge_ins += 1
            case Fault(epoch=epoch) if (of := self._of(epoch)) is not None:
                of.faults += 1
            case Latency(turn):
                self._turn(turn).latency = event
            case TurnDone(turn, how):
                return self._close(self._turn(turn), how)
            case _:
                pass
        return None

    def leave(self) -> list[TurnRecord]:
        """Return the records of the turns that are open when the conversation ends."""
        return [self._close(turn, "left") for turn in list(self._open.values())]

    def _turn(self, number: int) -> _OpenTurn:
        found = self._open.get(number)
        if found is None:
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            found = self._open[number] = _OpenTurn(number, self._clock_ns())
        return found

    def _of(self, epoch: int) -> _OpenTurn | None:
        return next((turn for turn in self._open.values() if epoch in turn.epochs), None)

    def _close(self, turn: _OpenTurn, end: RecordEnd) -> TurnRecord:
        self._open.pop(turn.number, None)
        self.turns += 1
        self.interruptions += end == "interrupted"
        latency, last_sound = turn.latency, turn.stopped_ns
        stages: list[tuple[str, float]] = []
        if latency is not None:
            times = (getattr(latency, f"{name}_ms") for name in STAGES)
            stages = [(name, at) for name, at in zip(STAGES, times, strict=True) if at >= 0]
            if last_sound is not None:  # it was noticed that much later
                last_sound -= int(max(0.0, latency.turn_end_ms) * MS)
        now = self._clock_ns()
        prompt, cached, output = turn.tokens
        return TurnRecord(
            number=turn.number,
            began_ns=turn.began_ns if last_sound is None else min(turn.began_ns, last_sound),
            ended_ns=max(now, turn.began_ns),
            end=end,
            last_sound_ns=last_sound,
            stages=tuple(stages),
            words=turn.words,
            reply_words=turn.reply_words,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            tools=turn.tools,
            barge_ins=turn.barge_ins,
            faults=turn.faults,
        )


def _count_words(turn: _OpenTurn, text: str) -> None:
    """Count the words of more text: a piece may begin within a word."""
    if not text:
        return
    turn.reply_words += len(text.split()) - (turn.last_letter and not text[0].isspace())
    turn.last_letter = not text[-1].isspace()

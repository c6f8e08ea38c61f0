"""What is saved of a conversation, so that another server process can go on with it. Values, and how a reply ended.

Saved are the history and the counters. Sound, partial transcripts and requests to the engine are not: a turn that was
open when a server died ends once, on the server that takes the conversation over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from voxlane.server.conversation.server_events import Fault, Interrupted, ReplyDone, ServerEvent, TurnDone
from voxlane.server.conversation.values import Item, TurnEnd


@dataclass(frozen=True, slots=True)
class SavedFact:
    """A fact about the person, and the item that stated it."""

    item: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """A history: its items, and what the model is shown of them."""

    items: tuple[Item, ...] = ()
    hidden: tuple[str, ...] = ()  # ids of the items that the model is no longer shown
    facts: tuple[SavedFact, ...] = ()
    ratio: float = 0.0  # characters per token; 0: not known


@dataclass(frozen=True, slots=True)
class SavedReply:
    """A reply under way: its text so far, and where its words lie in its sound."""

    epoch: int
    turn: int
    item: str  # its id in the history
    text: str
    speaks: bool
    ends: tuple[int, ...]  # where each word ends in the text; the first entry stands for "no word"
    middles: tuple[int, ...]  # the sample at the middle of each word
    position: int  # the sample being played when it was saved

    def heard(self, position: int) -> str:
        """Return the text heard up to a sample; all of it if the reply is text only."""
        return self.text[: self.ends[bisect_right(self.middles, position) - 1]] if self.speaks else self.text


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """The counters of a session, and the reply under way."""

    turns: int = 0  # turns so far
    epoch: int = 0  # the last reply's
    results: int = 0  # tool results so far
    open_calls: tuple[str, ...] = ()  # tool calls without a result
    reply: SavedReply | None = None


@dataclass(frozen=True, slots=True)
class OpenReply:
    """A reply whose beginning the client was told, and not its end."""

    epoch: int
    turn: int


def endings(
    turns: Iterable[int], told: OpenReply | None, reply: SavedReply | None, item: Item | None, position: int
) -> list[ServerEvent]:
    """Return the events that end what the client was told of and a dead server never ended.

    `turns` are the open turns, `told` is the open reply, `reply` its saved state if it was not complete, `item` its
    entry in the history, and `position` the sample that was played last.
    """
    events: list[ServerEvent] = []
    how: TurnEnd = "failed"
    if told is not None and item is not None and item.whole and reply is None:
        events.append(ReplyDone(told.epoch, item.text))
        how = "done"
    elif told is not None:
        heard = item.text if item is not None else ""
        events.append(Interrupted(told.epoch, heard, position))
        how = "interrupted" if heard else "failed"
    ends = [TurnDone(turn, how if told is not None and told.turn == turn else "failed") for turn in turns]
    if any(end.how == "failed" for end in ends):
        events.append(Fault("server_lost", "the server was restarted; please repeat", retryable=True))
    return [*events, *ends]

"""All that a client can be told in a conversation, whatever its dialect.

Values only. How they are spelt on a wire is protocols/'s business; when they are told is session.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.api import SpokenWord
from voxlane.server.conversation.values import Item, SessionConfig, StateName, TurnEnd


@dataclass(frozen=True, slots=True)
class FloorState:
    """Who has the floor."""

    name: StateName


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The person speaks, since `at_s` of their audio."""

    turn: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The person's turn is over; their last sound was at `at_s` of their audio."""

    turn: int
    at_s: float


@dataclass(frozen=True, slots=True)
class UserWords:
    """What was understood so far: `settled` is new and final, `tail` replaces the tail before."""

    turn: int
    settled: str
    tail: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """All that the person said in a turn; it is in the history."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply to a turn begins. Everything that belongs to it carries its epoch."""

    epoch: int
    turn: int
    item: str = ""  # the id under which it is remembered; "": it is not
    tag: str = ""  # of the Respond that asked for it


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More of a reply's text."""

    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Speech:
    """More of a reply's sound. Offsets leave no gap; the words are those that begin in it."""

    epoch: int
    offset: int
    pcm: bytes  # 16-bit little-endian at the session's rate
    words: tuple[SpokenWord, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """All of a reply's sound was sent; it has so many samples."""

    epoch: int
    samples: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody began to speak: stop playing, keep what is queued."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """It was nothing: go on with the very next sample."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply is over: throw away what is queued. `heard` is what the history keeps of it."""

    epoch: int
    heard: str
    samples: int  # played


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """The reply was generated and sent to its end."""

    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """A turn ended, as every turn does once."""

    turn: int
    how: TurnEnd


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The model wants a tool: the client answers with a ToolResult."""

    epoch: int
    call_id: str
    name: str
    arguments: str  # JSON
    item: str = ""  # the id under which the call is remembered; "": it is not


@dataclass(frozen=True, slots=True)
class Latency:
    """Where the time of a turn went, in milliseconds from the person's last sound; -1: did not happen."""

    turn: int
    turn_end_ms: float  # decided that the turn is over
    words_ms: float  # all words known
    first_token_ms: float
    first_sample_ms: float  # synthesised
    first_frame_ms: float  # sent


@dataclass(frozen=True, slots=True)
class BargeIn:
    """How an interruption went, in milliseconds from the sound that caused it to be noticed; -1: did not happen."""

    epoch: int
    hold_ms: float  # from the first sound to the hold, in audio time
    verdict_ms: float  # from the first sound to commit or release
    committed: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Something went wrong. `retryable`: the same may work a moment later."""

    code: str
    message: str
    retryable: bool
    ref: str = ""  # the client's word for what went wrong
    epoch: int = 0  # of the reply that failed; 0: it was none


@dataclass(frozen=True, slots=True)
class InputCommitted:
    """What was said is a turn, remembered as an item whose words are yet to come; UserTurn or TurnDone follow."""

    turn: int
    item: str
    after: str  # the item before it; "": it is the first


@dataclass(frozen=True, slots=True)
class InputCleared:
    """What was said before was nothing."""


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """Nobody has spoken for long: a reply to the silence follows. Times are of the person's audio."""

    turn: int
    item: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class ItemPlaced:
    """An item is remembered."""

    item: Item
    after: str  # the item before it; "": it is the first


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """An item is forgotten."""

    id: str


@dataclass(frozen=True, slots=True)
class ItemShown:
    """What is remembered of an item."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemCut:
    """What is remembered of a reply is what was heard of it."""

    id: str
    seconds: float
    heard: str


@dataclass(frozen=True, slots=True)
class Thought:
    """The chat model is done with a reply; its sound may still be on its way."""

    epoch: int
    reason: str  # the engine's FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Configured:
    """What is in force now."""

    config: SessionConfig


ServerEvent = (
    FloorState | SpeechStarted | SpeechStopped | UserWords | UserTurn | ReplyStarted | ReplyText | Speech | SpeechDone
    | Hold | Release | Interrupted | ReplyDone | TurnDone | ToolCalled | Latency | BargeIn | Fault | Configured
    | InputCommitted | InputCleared | IdleTimeout | ItemPlaced | ItemDropped | ItemShown | ItemCut | Thought
)  # fmt: skip

"""All events that a client can be sent in a conversation, in any dialect.

Values only. session.py sends them; protocols/ writes them to the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.api import SpokenWord
from voxlane.server.conversation.values import Item, SessionConfig, StateName, TurnEnd


@dataclass(frozen=True, slots=True)
class FloorState:
    """The state of the floor."""

    name: StateName


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The person speaks, since second `at_s` of their audio."""

    turn: int
    at_s: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The person's turn is over; their last sound was at second `at_s` of their audio."""

    turn: int
    at_s: float


@dataclass(frozen=True, slots=True)
class UserWords:
    """The transcript grows: `settled` is new and final, `tail` replaces the last tail."""

    turn: int
    settled: str
    tail: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The transcript of a whole turn; it is in the history."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """A reply to a turn begins. Everything that belongs to it carries its epoch."""

    epoch: int
    turn: int
    item: str = ""  # its id in the history; "": it is not remembered
    tag: str = ""  # the tag of the Respond that asked for it


@dataclass(frozen=True, slots=True)
class ReplyText:
    """More of a reply's text."""

    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Speech:
    """More of a reply's sound. Offsets leave no gap; the words are those that begin in this piece."""

    epoch: int
    offset: int
    pcm: bytes  # 16-bit little-endian at the session's rate
    words: tuple[SpokenWord, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """All of a reply's sound was sent: `samples` in all."""

    epoch: int
    samples: int


@dataclass(frozen=True, slots=True)
class Duck:
    """A voice may have begun that is probably no interruption: go on playing, with this gain."""

    epoch: int
    gain: float


@dataclass(frozen=True, slots=True)
class Hold:
    """A voice may have begun: stop playing, keep the queued sound."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """The voice has not taken the floor: go on with the very next sample, at full loudness."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply is over: discard the queued sound. `heard` is the text that the history keeps."""

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
    """A turn ended. Every turn ends exactly once."""

    turn: int
    how: TurnEnd


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The model calls a tool: the client answers with a ToolResult."""

    epoch: int
    call_id: str
    name: str
    arguments: str  # JSON
    item: str = ""  # the call's id in the history; "": it is not remembered


@dataclass(frozen=True, slots=True)
class Latency:
    """The latencies of a turn in milliseconds from the person's last sound; -1: did not happen."""

    turn: int
    turn_end_ms: float  # the turn was taken as over
    words_ms: float  # all words were known
    first_token_ms: float
    first_sample_ms: float  # the first sample was synthesised
    first_frame_ms: float  # the first frame was sent


@dataclass(frozen=True, slots=True)
class BargeIn:
    """How a barge-in went."""

    epoch: int
    hold_ms: float  # milliseconds of audio from the first sound to the first duck or hold
    verdict_ms: float  # milliseconds from the first sound to commit or release
    committed: bool
    ducked_ms: float = 0.0  # milliseconds for which the reply was lowered
    muted_ms: float = 0.0  # milliseconds for which the reply stood still


@dataclass(frozen=True, slots=True)
class HardToHear:
    """The person is too faint to be understood. Sent at most once in a conversation."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something went wrong. `retryable`: the same may work a moment later."""

    code: str
    message: str
    retryable: bool
    ref: str = ""  # the client's id of the event that failed
    epoch: int = 0  # of the reply that failed; 0: no reply


@dataclass(frozen=True, slots=True)
class InputCommitted:
    """A turn is in the history as an item without words so far; UserTurn or TurnDone follow."""

    turn: int
    item: str
    after: str  # the item before it; "": it is the first


@dataclass(frozen=True, slots=True)
class InputCleared:
    """The sound so far was discarded."""


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """The person has been silent for long: a reply follows. Times are seconds of the person's audio."""

    turn: int
    item: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class ItemPlaced:
    """An item was put into the history."""

    item: Item
    after: str  # the item before it; "": it is the first


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """An item was deleted from the history."""

    id: str


@dataclass(frozen=True, slots=True)
class ItemShown:
    """An item as it is remembered."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemCut:
    """A reply in the history was cut to what was heard of it."""

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
    """The configuration that holds now."""

    config: SessionConfig


ServerEvent = (
    FloorState | SpeechStarted | SpeechStopped | UserWords | UserTurn | ReplyStarted | ReplyText | Speech | SpeechDone
    | Duck | Hold | Release | Interrupted | ReplyDone | TurnDone | ToolCalled | Latency | BargeIn | Fault | Configured
    | InputCommitted | InputCleared | IdleTimeout | ItemPlaced | ItemDropped | ItemShown | ItemCut | Thought
    | HardToHear
)  # fmt: skip

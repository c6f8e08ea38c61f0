"""The vocabulary of a conversation: what a client can say, what it can be told, and what a session wants done.

Values only. How they are spelt on a wire is protocols/'s business; what they lead to is session.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from voxlane.engine.api import SpokenWord, ToEngine, Tool
from voxlane.server.turns import BargePolicy, TurnPolicy

StateName = Literal["listening", "hearing", "thinking", "speaking", "held"]
TurnEnd = Literal["done", "interrupted", "failed"]

INSTRUCTIONS = (
    "You are a friendly voice assistant. Your answers are spoken aloud: answer in one or two short sentences, "
    "without lists, headings or symbols."
)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How one conversation is led. A client may change any of it at any time; what has begun goes on as it was."""

    instructions: str = INSTRUCTIONS
    voice: str = ""  # "": the engine's default
    speed: float = 1.0
    language: str = ""  # "": the listening model decides
    temperature: float = 0.7
    max_tokens: int = 256  # of one reply
    seed: int | None = None  # None: a fresh one for every reply
    greeting: str = ""  # said when the conversation begins
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    replies: bool = True  # False: turns are answered when the client asks for it
    chains_tools: bool = True  # False: so are the results of tool calls
    turns: TurnPolicy = field(default_factory=TurnPolicy)
    barge_in: BargePolicy = field(default_factory=BargePolicy)
    interruptible: bool = True  # False: what is said during a reply is answered after it
    speaks: bool = True  # False: replies are text only
    buffer_s: float = 1.5  # speech sent ahead of what the client has played


ItemKind = Literal["user", "assistant", "system", "call", "result"]


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a conversation, as it is remembered."""

    id: str
    kind: ItemKind
    text: str = ""  # the words; a call's arguments, as JSON; a result's output
    name: str = ""  # of the tool that is called
    call_id: str = ""  # of a call and of its result
    spoken: bool = False  # the words were said, not written
    whole: bool = True  # False: of a reply, only what was heard; of speech, what is yet to be understood


# ---- from the client


@dataclass(frozen=True, slots=True)
class Audio:
    """What the microphone heard: 16-bit little-endian samples at 16 kHz."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A turn that was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The person pressed the button: what follows is a turn, whatever the detector thinks."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The person let go of the button, or the client ended the turn itself."""


@dataclass(frozen=True, slots=True)
class Played:
    """The client has played so many samples of a reply."""

    epoch: int
    samples: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Be quiet now, as a button says it."""


@dataclass(frozen=True, slots=True)
class Configure:
    """From now on, do it like this."""

    config: SessionConfig


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call brought."""

    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class PlaceItem:
    """Remember this, behind the item `after`; None: at the end, "": as the first. `ref` is the client's word for it."""

    item: Item
    after: str | None = None
    pcm: bytes = b""  # of an item of the person's that is sound: 16-bit at 16 kHz; its words are found out
    ref: str = ""


@dataclass(frozen=True, slots=True)
class DropItem:
    """Forget this."""

    id: str
    ref: str = ""


@dataclass(frozen=True, slots=True)
class ShowItem:
    """Say what is remembered of this."""

    id: str
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CutItem:
    """Of this reply, so many seconds were heard, and no more will be."""

    id: str
    seconds: float
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CommitInput:
    """What was said so far is a turn."""

    ref: str = ""


@dataclass(frozen=True, slots=True)
class ClearInput:
    """What was said so far was nothing."""


@dataclass(frozen=True, slots=True)
class Respond:
    """Reply now, to all that is remembered, led by `config`.

    An aside is no part of the conversation: it is not remembered and interrupts nothing. Where `input` is given, the
    reply is to that alone.
    """

    config: SessionConfig
    tag: str = ""  # the client's word for the reply, in its ReplyStarted
    aside: bool = False
    input: tuple[Item | str, ...] | None = None  # a string is the id of an item that is remembered
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CancelReply:
    """Stop a reply; None: the one of the conversation. An aside is stopped by its epoch only."""

    epoch: int | None = None
    ref: str = ""


ClientEvent = (
    Audio | TextTurn | StartTurn | EndTurn | Played | Stop | Configure | ToolResult | PlaceItem | DropItem | ShowItem
    | CutItem | CommitInput | ClearInput | Respond | CancelReply
)  # fmt: skip


# ---- from the engine's side, beside its messages


@dataclass(frozen=True, slots=True)
class EngineLost:
    """Every request that was under way is gone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: what was to happen at `Session.wake_at` is due."""


# ---- to the client


@dataclass(frozen=True, slots=True)
class State:
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
    State | SpeechStarted | SpeechStopped | UserWords | UserTurn | ReplyStarted | ReplyText | Speech | SpeechDone
    | Hold | Release | Interrupted | ReplyDone | TurnDone | ToolCalled | Latency | BargeIn | Fault | Configured
    | InputCommitted | InputCleared | IdleTimeout | ItemPlaced | ItemDropped | ItemShown | ItemCut | Thought
)  # fmt: skip


# ---- what a session wants done


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the client."""

    event: ServerEvent


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the engine."""

    message: ToEngine


Effect = Send | Tell

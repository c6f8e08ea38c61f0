"""All that a client can say in a conversation, whatever its dialect.

Values only. How they are spelt on a wire is protocols/'s business; what they lead to is session.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.server.conversation.values import Item, SessionConfig


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
class ConfigureSession:
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
    Audio
    | TextTurn
    | StartTurn
    | EndTurn
    | Played
    | Stop
    | ConfigureSession
    | ToolResult
    | PlaceItem
    | DropItem
    | ShowItem
    | CutItem | CommitInput | ClearInput | Respond | CancelReply
)  # fmt: skip

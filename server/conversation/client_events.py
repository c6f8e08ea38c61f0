"""All events that a client can send in a conversation, in any dialect.

Values only. protocols/ reads them from the wire; session.py acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.server.conversation.values import Item, SessionConfig


@dataclass(frozen=True, slots=True)
class Audio:
    """Microphone sound: 16-bit little-endian samples at 16 kHz."""

    pcm: bytes
    made_up: bool = False  # silence in the place of sound that has not come: the client did not send it


@dataclass(frozen=True, slots=True)
class TextTurn:
    """A turn that was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Say:
    """Say this text. It is dropped while a person speaks or a reply is on its way."""

    text: str


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The person pressed the button: the sound from here on is a turn, whatever the detector says."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The person let go of the button, or the client ended the turn itself."""


@dataclass(frozen=True, slots=True)
class Played:
    """The client has played the first `samples` of a reply."""

    epoch: int
    samples: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop speaking now, as a stop button asks."""


@dataclass(frozen=True, slots=True)
class ConfigureSession:
    """Use this configuration from now on."""

    config: SessionConfig


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class PlaceItem:
    """Put an item into the history behind `after`; None: at the end, "": first. `ref`: the client's event id."""

    item: Item
    after: str | None = None
    pcm: bytes = b""  # the sound of a user item, 16-bit at 16 kHz; it is transcribed
    ref: str = ""


@dataclass(frozen=True, slots=True)
class DropItem:
    """Delete an item from the history."""

    id: str
    ref: str = ""


@dataclass(frozen=True, slots=True)
class ShowItem:
    """Send back what is remembered of an item."""

    id: str
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CutItem:
    """The client has played `seconds` of this reply and plays no more of it."""

    id: str
    seconds: float
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CommitInput:
    """Take the sound so far as a turn."""

    ref: str = ""


@dataclass(frozen=True, slots=True)
class ClearInput:
    """Discard the sound so far."""


@dataclass(frozen=True, slots=True)
class Respond:
    """Reply now, to the whole history, under `config`.

    An aside is not part of the conversation: it is not remembered and interrupts nothing. If `input` is given, the
    model is shown only that.
    """

    config: SessionConfig
    tag: str = ""  # the client's name for the reply, repeated in ReplyStarted
    aside: bool = False
    input: tuple[Item | str, ...] | None = None  # a string is the id of an item in the history
    ref: str = ""


@dataclass(frozen=True, slots=True)
class CancelReply:
    """Stop a reply; None: the conversation's reply. An aside is stopped by its epoch only."""

    epoch: int | None = None
    ref: str = ""


ClientEvent = (
    Audio
    | TextTurn
    | Say
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

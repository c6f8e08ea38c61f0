"""What all telephone systems share: the events of a line, and the `LineCodec` that each system's file defines.

A line is dumb: it plays the sound that it is sent, in order, and it can be told to discard what it has not played. So
the player of a call is in the server, in phone/. The codecs here only read and write messages. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from voxlane.server.protocols.dialect import AudioFormat

Message = bytes | str


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a telephone system says about a call. All of it is data from outside: never instructions."""

    system: str  # the codec's name: "twilio"
    call_id: str = ""
    caller: str = ""  # the number that calls
    called: str = ""  # the number that was called
    parameters: Mapping[str, str] = field(default_factory=dict)  # the customer's own, without our token
    token: str = ""  # the token in the parameters


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The call begins, with these formats of its sound."""

    facts: CallFacts
    input: AudioFormat
    output: AudioFormat


@dataclass(frozen=True, slots=True)
class Media:
    """Sound of the caller. `order` and `at_ms` are None where the system does not number its messages."""

    data: bytes
    order: int | None = None  # place among the media messages; consecutive, beginning anywhere
    at_ms: int | None = None  # time of its first sample in the stream


@dataclass(frozen=True, slots=True)
class KeyPressed:
    """The caller pressed a key: one of 0 to 9, *, #, A to D."""

    key: str


@dataclass(frozen=True, slots=True)
class MarkReturned:
    """The line has reached a mark: everything sent before it was played, or discarded where `played` is False."""

    name: str
    played: bool = True


@dataclass(frozen=True, slots=True)
class BufferCleared:
    """The line has discarded what it had not played."""


@dataclass(frozen=True, slots=True)
class BufferFull:
    """The line takes no more sound until BufferReady."""


@dataclass(frozen=True, slots=True)
class BufferReady:
    """The line takes sound again."""


@dataclass(frozen=True, slots=True)
class MustSend:
    """The protocol asks for this message at once: a pong, an `opened`."""

    message: Message


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The caller or the telephone system has hung up."""


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    """A message that the codec does not know. It is ignored and logged by its name alone."""

    name: str


LineEvent = (
    CallStarted | Media | KeyPressed | MarkReturned | BufferCleared | BufferFull | BufferReady | MustSend | CallEnded
    | UnknownMessage
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineTraits:
    """How a telephone system behaves."""

    name: str
    lead_s: float = 0.4  # how far sound is sent ahead of its playback
    piece_ms: int = 20  # sound in one message
    clears: bool = True  # sound that was sent and not played can be discarded
    marks: bool = True  # marks come back when they are played
    settle_s: float = 0.0  # sound that is sent so soon after a clear would be discarded, too
    most_messages: tuple[float, float] | None = None  # of sound and clears: in a second, and at once; None: any number
    asks_next: bool = False  # it asks what follows after a call, by its documents or its dialplan


class LineCodec(Protocol):
    """The messages of one call on one telephone system."""

    traits: LineTraits

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""

    def media(self, data: bytes) -> Message:
        """Return the message for a piece of sound in the output format."""

    def mark(self, name: str) -> Message | None:
        """Return the message for a mark behind all sound so far; None if there are no marks."""

    def clear(self) -> Message | None:
        """Return the message that discards what was not played; None if the system cannot do it."""

    def hang_up(self) -> Message | None:
        """Return the message that ends the call; None if closing the connection does."""

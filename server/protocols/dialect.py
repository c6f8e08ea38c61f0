"""What every dialect has in common: the values it reads and writes beside the conversation's own events.

A dialect is a row of this shape: who speaks first and how that is read, what its clients must keep to, and a codec that
lives as long as the conversation. It knows no bytes; those are each dialect's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from voxlane.engine.api import ChatMessage
from voxlane.server.conversation.client_events import ClientEvent, Played
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.conversation.values import SessionConfig, StateName

CodecName = Literal["pcm16", "mulaw", "alaw", "opus"]


class BadMessage(ValueError):
    """The message is not one of the dialect's; the text says what is wrong, in our words and numbers only."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How sound travels one way."""

    codec: CodecName = "pcm16"
    rate: int = 16_000


# ---- from the client, beside ClientEvent


@dataclass(frozen=True, slots=True)
class Hello:
    """How a client wants to converse, or which conversation it wants back."""

    input: AudioFormat = AudioFormat()
    output: AudioFormat = AudioFormat(rate=24_000)
    config: SessionConfig = field(default_factory=SessionConfig)
    key: str = ""
    resume: str = ""  # the last token it was given
    last_seq: int | None = None  # the last message it has; None: nothing is left of them
    played: Played | None = None  # where its player stands, in its own samples
    wishes: object = None  # what else its codec wants to know


@dataclass(frozen=True, slots=True)
class ClientPing:
    """Answer when all that came before is dealt with."""

    mark: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The client is done."""


@dataclass(frozen=True, slots=True)
class Starved:
    """The client's player has nothing left to play of a reply; whether that is its end, the server knows."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Complaint:
    """The client said something that cannot be: it is told so, both ways through here, and the conversation goes on."""

    code: str
    message: str
    param: str | None = None
    ref: str = ""  # the client's word for what it said


Incoming = ClientEvent | Hello | ClientPing | Bye | Starved | Complaint


# ---- to the client, beside ServerEvent


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this server can do."""

    server: str
    chat_model: str
    asr_model: str
    tts_model: str
    languages: tuple[str, ...]
    voices: tuple[str, ...]  # the default one first
    codecs: tuple[str, ...]
    one_pace: bool = False  # the voices can only speak at their own
    voice_languages: tuple[str, ...] = ()  # that the voices can be asked to speak
    instructed: bool = False  # the voices can be told how to speak


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a client must keep to."""

    frame_bytes: int
    frames_per_s: float
    bytes_per_s: float
    audio_rate: float  # seconds of audio a second,
    audio_burst_s: float  # and this much at once
    idle_s: float
    session_s: float
    resume_s: float


@dataclass(frozen=True, slots=True)
class SessionReady:
    """The conversation is on, or on again."""

    session: str
    token: str
    resumed: bool
    config: SessionConfig
    capabilities: Capabilities
    bounds: Bounds
    state: StateName
    history: tuple[ChatMessage, ...] = ()
    position: Played | None = None  # where its sound goes on, in the client's samples


@dataclass(frozen=True, slots=True)
class ServerPong:
    """Everything before the ping was dealt with."""

    mark: int
    audio_s: float  # of the client's audio


@dataclass(frozen=True, slots=True)
class GoAway:
    """The conversation will be closed in so many seconds."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Farewell:
    """Nothing follows."""


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """The connection is closed because of this."""

    kind: str  # OpenAI's `type`
    code: str
    message: str
    retryable: bool


Outgoing = ServerEvent | SessionReady | ServerPong | GoAway | Farewell | Complaint | ConnectionEnd


@dataclass(frozen=True, slots=True)
class Packet:
    """One message to be written, and what of a reply's sound is in it."""

    fields: tuple[object, ...]
    epoch: int = 0  # of the sound; 0: there is none
    end: int = 0  # sample of the reply after the last one in it, in the client's samples
    seconds: float = 0.0


class Codec(Protocol):
    """One conversation's dialect: keeps what its formats need, and the configuration that updates are merged into.

    Played, both ways, is in the client's samples; every other event is in the session's.
    """

    def decode(self, message: bytes | str) -> Iterable[Incoming]:
        """Return what a client says, or raise BadMessage; much of it may be made only as it is taken."""

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return what to write for an event."""

    def write(self, packet: Packet, sequence: int) -> bytes | str:
        """Return a packet's bytes under its number."""

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds."""

    def session_samples(self, played: Played) -> Played:
        """Return a position of the client's player in the session's samples."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one client may send."""

    frame_bytes: int
    frames_per_s: float
    frames_burst: int
    bytes_per_s: float
    bytes_burst: int
    audio_rate: float  # seconds of audio a second,
    audio_burst_s: float  # and this much at once


@dataclass(frozen=True, slots=True)
class Handshake:
    """What is known of a client before it has said anything."""

    query: Mapping[str, str]
    session: Mapping[str, Any] | None  # what its secret stands for
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of client is served. The client says hello first, unless there is an `opening`."""

    subprotocol: str
    pace: RateLimits
    make: Callable[[Hello, int], Codec]  # the second: samples a second of the session's sound
    read_hello: Callable[[bytes | str, SessionConfig], Hello] | None = None  # raises BadMessage; the second: defaults
    opening: Callable[[Handshake, SessionConfig], Hello] | None = None  # the same of a dialect without a hello
    subprotocol_needed: bool = True
    resumable: bool = True
    any_voice: bool = False  # a name that no voice has stands for the default one

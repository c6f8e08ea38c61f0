"""What all dialects share: the `Dialect` description, and the values they read and write beside conversation events.

A `Dialect` says which side speaks first and how its opening is read, what its clients may send, and how to make a codec
that lives as long as the conversation. Each dialect is a module or a package beside this file and defines its own
bytes; server/app.py gives it a route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from voxlane.engine.api import ChatMessage
from voxlane.server.conversation.client_events import Audio, ClientEvent, Played
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.conversation.values import SessionConfig, StateName
from voxlane.server.limits import RETRY_AFTER_SECONDS

CodecName = Literal["pcm16", "mulaw", "alaw", "opus", "g722"]


class BadMessage(ValueError):
    """The message is not valid in the dialect; of the message, the text holds unknown keys only, quoted."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The format of audio in one direction."""

    codec: CodecName = "pcm16"
    rate: int = 16_000


# ---- from the client, beside ClientEvent


@dataclass(frozen=True, slots=True)
class Hello:
    """A client's opening: its formats and configuration, or the conversation it wants to resume."""

    input: AudioFormat = AudioFormat()
    output: AudioFormat = AudioFormat(rate=24_000)
    config: SessionConfig = field(default_factory=SessionConfig)
    key: str = ""
    resume: str = ""  # the last token that it was sent
    last_seq: int | None = None  # number of the last message it has; None: it has none
    played: Played | None = None  # its player's position, in the client's samples
    opening: object = None  # the dialect's own part, for its codec
    heard_s: float = 0.0  # seconds of its audio that came at another server before


@dataclass(frozen=True, slots=True)
class ClientPing:
    """Send a ServerPong when all messages before this one are processed."""

    mark: int


@dataclass(frozen=True, slots=True)
class Bye:
    """The client is done."""


@dataclass(frozen=True, slots=True)
class Starved:
    """The client's player has run out of a reply's sound; the server knows whether that was its end."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Complaint:
    """A mistake in a client's message. It goes from the codec out to the client again; the conversation goes on."""

    code: str
    message: str
    param: str | None = None
    ref: str = ""  # the client's id of its message


@dataclass(frozen=True, slots=True)
class OpusPacket:
    """Microphone sound whose framing is right; it is decoded outside of this process and then becomes Audio."""

    data: bytes


Decoded = ClientEvent | Hello | ClientPing | Bye | Starved | Complaint
Incoming = OpusPacket | Decoded


# ---- to the client, beside ServerEvent


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this server can do."""

    server: str
    chat_model: str
    asr_model: str
    tts_model: str
    languages: tuple[str, ...]
    voices: tuple[str, ...]  # the default first
    codecs: tuple[str, ...]
    one_pace: bool = False  # the voices have one speed only
    voice_languages: tuple[str, ...] = ()  # languages that a client can choose for the voices
    instructed: bool = False  # the voices follow `voice_instructions`
    phonemes: bool = True  # `pronunciations` may give phonemes
    speech_model: str = ""  # answers speech with speech, in the place of the chat model and the voice; "": none
    tools: bool = True  # spoken replies call tools
    written_tools: bool = True  # replies that are only text call tools
    pronounced: bool = True  # spoken replies follow `pronunciations`


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that a client is told."""

    frame_bytes: int
    frames_per_s: float
    bytes_per_s: float
    audio_rate: float  # seconds of audio per second
    audio_burst_s: float  # seconds of audio at once
    idle_s: float
    session_s: float
    resume_s: float


@dataclass(frozen=True, slots=True)
class SessionReady:
    """The conversation has begun or was resumed."""

    session: str
    token: str
    resumed: bool
    config: SessionConfig
    capabilities: Capabilities
    bounds: Bounds
    state: StateName
    history: tuple[ChatMessage, ...] = ()
    position: Played | None = None  # where playback resumes, in the client's samples
    recorded: tuple[str, ...] = ()  # what the operator keeps of it: `audio`, `transcript`
    resumable: bool = True  # see SessionResumable
    at: str = ""  # the server's name at its balancer, which the client names when it resumes


@dataclass(frozen=True, slots=True)
class ServerPong:
    """Everything before the ping was processed."""

    mark: int
    audio_s: float  # seconds of the client's audio so far


@dataclass(frozen=True, slots=True)
class GoAway:
    """The conversation will be closed in `seconds`."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class SessionResumable:
    """Whether a restart of the server would lose nothing. False: the store of conversations does not answer."""

    resumable: bool


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last message of a connection."""


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """The error that closes the connection."""

    kind: str  # OpenAI's `type`
    code: str
    message: str
    retryable: bool
    retry_after_s: int = RETRY_AFTER_SECONDS  # if it is retryable


Outgoing = ServerEvent | SessionReady | ServerPong | GoAway | SessionResumable | Farewell | Complaint | ConnectionEnd


@dataclass(frozen=True, slots=True)
class Packet:
    """One message to write, and the position of the sound in it."""

    fields: tuple[object, ...]
    epoch: int = 0  # of the sound; 0: no sound
    end: int = 0  # the sample of the reply after its last one, in the client's samples
    seconds: float = 0.0


class Codec(Protocol):
    """One conversation's encoder and decoder: keeps audio codec state and the configuration that updates merge into.

    `Played`, both ways, counts the client's samples; every other event counts the session's.
    """

    def decode(self, message: bytes | str) -> Iterable[Incoming]:
        """Return the events of a message, or raise BadMessage; the events may be made lazily."""

    def sound(self, message: bytes) -> Audio | None:
        """Return the sound of a message in bytes that holds nothing else, or raise BadMessage.

        None: `decode` has to read the message. This is the way of a microphone's frames, fifty a second.
        """

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return the packets for an event."""

    def write(self, packet: Packet, sequence: int) -> bytes | str:
        """Return a packet's bytes with its sequence number."""

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds."""

    def session_samples(self, played: Played) -> Played:
        """Convert a position of the client's player to the session's samples."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """What one client may send."""

    frame_bytes: int
    frames_per_s: float
    frames_burst: int
    bytes_per_s: float
    bytes_burst: int
    audio_rate: float  # seconds of audio per second
    audio_burst_s: float  # seconds of audio at once


@dataclass(frozen=True, slots=True)
class Handshake:
    """What is known of a client before its first message."""

    query: Mapping[str, str]
    session: Mapping[str, Any] | None  # the session settings of its client secret
    capabilities: Capabilities
    offered: tuple[str, ...] = ()  # subprotocols
    beta: str = ""  # the header OpenAI-Beta


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of client is served. The client sends a hello first, unless there is an `opening`."""

    subprotocol: str
    rate_limits: RateLimits
    make: Callable[[Hello, int], Codec]  # the int is the session's sample rate
    read_hello: Callable[[bytes | str, SessionConfig], Hello] | None = None  # raises BadMessage; the config: defaults
    opening: Callable[[Handshake, SessionConfig], Hello] | None = None  # for a dialect without a hello
    subprotocol_needed: bool = True
    resumable: bool = True
    any_voice: bool = False  # an unknown voice name means the default voice
    name: str = "native"  # for logs, traces and webhooks

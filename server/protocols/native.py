"""The native dialect, `voxlane.v1`: msgpack arrays in binary frames; docs/protocol.md is its specification.

A message is an array: its name, the sequence number if the server sends it, then its fields. Sound is `bin`; rare
messages hold a map. Everything from a client is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgpack
from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from voxlane.engine.api import SpokenWord
from voxlane.server import limits
from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import SessionConfig, TypedText
from voxlane.server.limits import RETRY_AFTER_SECONDS
from voxlane.server.limits import VOICE_FRAME_BYTES as FRAME_BYTES
from voxlane.server.protocols import dialect
from voxlane.server.protocols.dialect import (
    AudioFormat,
    BadMessage,
    Dialect,
    Hello,
    Incoming,
    OpusPacket,
    Outgoing,
    Packet,
    RateLimits,
)
from voxlane.server.protocols.settings import as_map, configured
from voxlane.server.protocols.sound import (
    LatePacket,
    Loudspeaker,
    Microphone,
    PacketMicrophone,
    SoundPiece,
    check_format,
)
from voxlane.server.validation import InvalidValue, checked

SUBPROTOCOL = "voxlane.v1"

MOST_ITEMS = 256
"""Most entries of a list or a map in a message."""

LARGEST = (1 << 53) - 1
"""Largest number in a message: the largest that JavaScript counts exactly."""

MOST_FORMATS = 4
"""Formats that a client may offer for each direction."""

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Secret = Annotated[str, Meta(max_length=512)]


_AUDIO = b"\x92\xa5audio"
"""How an `audio` message begins: an array of two, and its name. Its second value is `bin`."""

_BIN_HEADS = {b"\xc4": 2, b"\xc5": 3}
"""The first byte of a `bin`, and how many bytes come before its content."""


class _Format(Struct, forbid_unknown_fields=True):
    codec: Annotated[str, Meta(max_length=16)] | UnsetType = UNSET
    rate: Annotated[int, Meta(ge=1, le=192_000)] | UnsetType = UNSET


Offer = _Format | Annotated[tuple[_Format, ...], Meta(min_length=1, max_length=MOST_FORMATS)]


class _Position(Struct, array_like=True, forbid_unknown_fields=True):
    epoch: Count
    samples: Count


class _Played(_Position):
    queued: Count


class _Hello(Struct, forbid_unknown_fields=True):
    input: Offer | None = None
    output: Offer | None = None
    config: dict[str, Any] = field(default_factory=dict)
    key: Secret = ""
    resume: Secret = ""
    last_seq: Count | None = None
    played: _Position | None = None


class _Text(Struct, array_like=True):
    text: TypedText


class _Config(Struct, array_like=True):
    config: Any


class _ToolResult(Struct, array_like=True):
    call_id: Annotated[str, Meta(max_length=256)]
    output: Annotated[str, Meta(max_length=32_000)]


class _Ping(Struct, array_like=True):
    mark: Count


class _Bare(Struct, array_like=True):
    pass


def unpack(message: bytes | str) -> tuple[str, tuple[Any, ...]]:
    """Return a message's name and fields; raise BadMessage before anything large is allocated."""
    if isinstance(message, str):
        raise BadMessage("messages are binary")
    if len(message) > FRAME_BYTES:
        raise BadMessage(f"a message has at most {FRAME_BYTES} bytes")
    try:
        parts = msgpack.unpackb(
            message,
            use_list=False,
            strict_map_key=True,
            max_array_len=MOST_ITEMS,
            max_map_len=MOST_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:  # UnicodeDecodeError is a ValueError
        raise BadMessage("not msgpack, or over its limits") from error
    if not isinstance(parts, tuple) or not parts or not isinstance(parts[0], str):
        raise BadMessage("a message is an array that begins with its name")
    return parts[0], parts[1:]


def read_hello(message: bytes | str, defaults: SessionConfig) -> Hello:
    """Return the Hello, the first message of a connection."""
    name, fields = unpack(message)
    if name != "hello":
        raise BadMessage("the first message is hello")
    _count(name, fields, 1)
    try:
        given = checked(_Hello, fields[0], at="hello")
        config = configured(defaults, given.config)
    except InvalidValue as error:
        raise BadMessage(str(error)) from error
    return Hello(
        input=_format("input", given.input),
        output=_format("output", given.output),
        config=config,
        key=given.key,
        resume=given.resume,
        last_seq=given.last_seq,
        played=None if given.played is None else client_events.Played(given.played.epoch, given.played.samples),
    )


def _format(key: Literal["input", "output"], offer: Offer | None) -> AudioFormat:
    """Return the first of the client's formats that this server has."""
    usual: AudioFormat = getattr(Hello(), key)
    if offer is None:
        return usual
    for one in (offer,) if isinstance(offer, _Format) else offer:
        given = {name: value for name, value in structs.asdict(one).items() if value is not UNSET}
        form = replace(usual, **given)
        try:
            check_format(form, incoming=key == "input")
        except BadMessage as error:
            refusal = error
        else:
            return form
    raise refusal


def _count(name: str, fields: tuple[Any, ...], wanted: int) -> None:
    if len(fields) != wanted:
        raise BadMessage(f"{name} has {wanted} fields")


class Native:
    """One conversation in the native dialect."""

    def __init__(self, hello: Hello, session_rate: int) -> None:
        self.formats = hello.input, hello.output
        self._config = hello.config
        heard_s, opus = hello.heard_s, hello.input.codec == "opus"
        self._microphone = PacketMicrophone(heard_s) if opus else Microphone(hello.input, heard_s)
        self._loudspeaker = Loudspeaker(hello.output, session_rate)

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds."""
        return self._microphone.seconds

    def session_samples(self, played: client_events.Played) -> client_events.Played:
        """Convert a position of the client's player to the session's samples."""
        return replace(played, samples=self._loudspeaker.session_samples(played.samples))

    def sound(self, message: bytes) -> client_events.Audio | None:
        """Return the sound of an `audio` message, None for any other message and for Opus."""
        head = len(_AUDIO)
        if not message.startswith(_AUDIO) or isinstance(self._microphone, PacketMicrophone):
            return None
        kind = message[head : head + 1]
        begin = head + _BIN_HEADS.get(kind, 0)
        length = int.from_bytes(message[head + 1 : begin], "big")
        if not length or len(message) != begin + length:
            return None
        return client_events.Audio(self._microphone.push(message[begin:]))

    def decode(self, message: bytes | str) -> list[Incoming]:
        """Return the events of a message, or raise BadMessage."""
        name, fields = unpack(message)
        if name == "audio":  # the frequent message: fifty a second
            _count(name, fields, 1)
            if not isinstance(fields[0], bytes):
                raise BadMessage("audio: not bin")
            if isinstance(self._microphone, PacketMicrophone):
                self._microphone.push(fields[0])
                return [OpusPacket(fields[0])]
            pcm = self._microphone.push(fields[0])
            return [client_events.Audio(pcm)] if pcm else []
        if name not in _READERS:
            raise BadMessage("there is no message of this name")
        kind, read = _READERS[name]
        _count(name, fields, len(kind.__struct_fields__))
        try:
            return read(self, checked(kind, fields))
        except InvalidValue as error:
            raise BadMessage(str(error)) from error

    def configure(self, message: _Config) -> list[Incoming]:
        """Return a configuration update; settings that are not in it stay."""
        self._config = configured(self._config, message.config)
        return [client_events.ConfigureSession(self._config)]

    def respond(self, _: _Bare) -> list[Incoming]:
        """Return a request for a reply."""
        return [client_events.Respond(self._config)]

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return the packets for an event; events about items have none."""
        match event:
            case server_events.Speech():
                return [self._sound(piece) for piece in self._loudspeaker.push(event)]
            case server_events.SpeechDone(epoch, samples):
                pieces, total = self._loudspeaker.finish(epoch, samples)
                return [*map(self._sound, pieces), Packet(("audio_done", epoch, total))]
            case server_events.Interrupted(epoch, heard, samples):
                return [Packet(("interrupted", epoch, heard, self._loudspeaker.client_samples(samples)))]
            case dialect.SessionReady():
                return [Packet(("ready", self._ready(event)))]
            case _ if type(event) in _UNSPOKEN:
                return []
            case _:
                name, fields = _WRITERS[type(event)]
                return [Packet((name, *fields(event)))]

    def write(self, packet: Packet, sequence: int) -> bytes:
        """Return a packet's bytes with its sequence number."""
        data: bytes = msgpack.packb((packet.fields[0], sequence, *packet.fields[1:]), default=_late)
        return data

    def _sound(self, piece: SoundPiece) -> Packet:
        words = [_word(word) for word in piece.words]
        fields = ("audio", piece.epoch, piece.offset, piece.packet or piece.data, words)
        return Packet(fields, piece.epoch, piece.offset + piece.samples, piece.samples / self.formats[1].rate)

    def _ready(self, ready: dialect.SessionReady) -> dict[str, object]:
        incoming, outgoing = self.formats
        position = ready.position
        return {
            "session": ready.session,
            "token": ready.token,
            "resumed": ready.resumed,
            "state": ready.state,
            "input": as_map(incoming),
            "output": as_map(outgoing),
            "config": as_map(ready.config),
            "capabilities": as_map(ready.capabilities),
            "limits": as_map(ready.bounds),
            "history": [as_map(message) for message in ready.history],
            "played": position and [position.epoch, position.samples],
            "recorded": list(ready.recorded),
            "resumable": ready.resumable,
            "at": ready.at,
        }


def _late(value: object) -> bytes:
    assert isinstance(value, LatePacket), value
    return bytes(value)


def _word(word: SpokenWord) -> list[int]:
    return [word.start, word.end, word.start_sample, word.end_sample]


def _played(_: Native, message: _Played) -> list[Incoming]:
    starved = [] if message.queued else [dialect.Starved(message.epoch)]
    return [client_events.Played(message.epoch, message.samples), *starved]


def _error(code: str, message: str, retryable: bool, wait_s: int = RETRY_AFTER_SECONDS) -> tuple[object, ...]:
    return code, message, retryable, wait_s if retryable else 0


_READERS: dict[str, tuple[type[Struct], Callable[[Native, Any], list[Incoming]]]] = {
    "text": (_Text, lambda _, message: [client_events.TextTurn(message.text)]),
    "start": (_Bare, lambda _, __: [client_events.StartTurn()]),
    "end": (_Bare, lambda _, __: [client_events.EndTurn()]),
    "played": (_Played, _played),
    "stop": (_Bare, lambda _, __: [client_events.Stop()]),
    "respond": (_Bare, Native.respond),
    "config": (_Config, Native.configure),
    "tool_result": (_ToolResult, lambda _, said: [client_events.ToolResult(said.call_id, said.output)]),
    "ping": (_Ping, lambda _, message: [dialect.ClientPing(message.mark)]),
    "bye": (_Bare, lambda _, __: [dialect.Bye()]),
}
"""Client message -> the type of its fields, and the function that makes events of them."""

_WRITERS: dict[type, tuple[str, Callable[[Any], tuple[object, ...]]]] = {
    server_events.FloorState: ("state", lambda e: (e.name,)),
    server_events.SpeechStarted: ("speech_started", lambda e: (e.turn, e.at_s)),
    server_events.SpeechStopped: ("speech_stopped", lambda e: (e.turn, e.at_s)),
    server_events.UserWords: ("user_words", lambda e: (e.turn, e.settled, e.tail)),
    server_events.UserTurn: ("user_turn", lambda e: (e.turn, e.text)),
    server_events.ReplyStarted: ("reply", lambda e: (e.epoch, e.turn)),
    server_events.ReplyText: ("reply_text", lambda e: (e.epoch, e.text)),
    server_events.Duck: ("duck", lambda e: (e.epoch, e.gain)),
    server_events.Hold: ("hold", lambda e: (e.epoch,)),
    server_events.Release: ("release", lambda e: (e.epoch,)),
    server_events.ReplyDone: ("reply_done", lambda e: (e.epoch, e.text)),
    server_events.TurnDone: ("turn_done", lambda e: (e.turn, e.how)),
    server_events.ToolCalled: ("tool_call", lambda e: (e.epoch, e.call_id, e.name, e.arguments)),
    server_events.Latency: (
        "latency",
        lambda e: (e.turn, e.turn_end_ms, e.words_ms, e.first_token_ms, e.first_sample_ms, e.first_frame_ms),
    ),
    server_events.BargeIn: (
        "barge_in",
        lambda e: (e.epoch, e.hold_ms, e.verdict_ms, e.committed, e.ducked_ms, e.muted_ms),
    ),
    server_events.HardToHear: ("hard_to_hear", lambda e: ()),
    server_events.Fault: ("error", lambda e: _error(e.code, e.message, e.retryable)),
    dialect.ConnectionEnd: ("error", lambda e: _error(e.code, e.message, e.retryable, e.retry_after_s)),
    dialect.Complaint: ("error", lambda e: _error(e.code, e.message, False)),
    server_events.Configured: ("configured", lambda e: (as_map(e.config),)),
    dialect.ServerPong: ("pong", lambda e: (e.mark, e.audio_s)),
    dialect.GoAway: ("go_away", lambda e: (e.seconds, e.reason)),
    dialect.SessionResumable: ("resumable", lambda e: (e.resumable,)),
    dialect.Farewell: ("bye", lambda e: ()),
}

_UNSPOKEN = frozenset(
    {
        server_events.InputCommitted,
        server_events.InputCleared,
        server_events.IdleTimeout,
        server_events.ItemPlaced,
        server_events.ItemDropped,
        server_events.ItemShown,
        server_events.ItemCut,
        server_events.Thought,
    }
)
"""Events without a message in this dialect: its clients have no items."""

RATE_LIMITS = RateLimits(
    frame_bytes=FRAME_BYTES,
    frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
    frames_burst=limits.VOICE_FRAMES_BURST,
    bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
    bytes_burst=limits.VOICE_BYTES_BURST,
    audio_rate=limits.VOICE_AUDIO_RATE,
    audio_burst_s=limits.VOICE_AUDIO_BURST_SECONDS,
)

NATIVE = Dialect(SUBPROTOCOL, RATE_LIMITS, Native, read_hello)

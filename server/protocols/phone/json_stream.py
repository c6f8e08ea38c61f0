"""What Twilio, Telnyx, Plivo and Exotel share: JSON messages with a stream's id, and sound in base64 among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    LineEvent,
    LineTraits,
    MarkReturned,
    Media,
    Message,
)
from voxlane.server.protocols.phone.reading import (
    MarkName,
    Number,
    decoded_sound,
    event_name,
    json_object,
    key_event,
    read_as,
    unknown,
)


class _Sound(Struct):
    payload: str
    track: str = "inbound"
    chunk: Number | None = None
    timestamp: Number | None = None


class _Key(Struct):
    digit: str | int = ""


class _Mark(Struct):
    name: MarkName


@dataclass(frozen=True, slots=True)
class StreamStart:
    """What a `start` message says."""

    stream_id: str
    facts: CallFacts
    input: AudioFormat
    output: AudioFormat


Reader = Callable[[dict[str, Any]], list[LineEvent]]


class JsonStream:
    """Reads the messages of one stream; each system says how its `start` is read, and writes its own messages."""

    traits: LineTraits
    id_key = "streamSid"
    stream_times = True  # its times count the sound; False: they are those of a wall clock, with its jitter

    def __init__(self) -> None:
        self._started: StreamStart | None = None
        self._ended = False
        self._two_tracks = False  # the numbers may count both tracks
        self._readers: dict[str, Reader] = {
            "media": self._media,
            "dtmf": self._dtmf,
            "mark": self._mark,
            "stop": self._stop,
        }

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        body = json_object(message)
        name = event_name(body)
        if self._ended:
            return []
        if name == "connected":
            return self._connected(body)
        if name == "start":
            return self._start(body)
        reader = self._readers.get(name)
        if reader is None:
            return [unknown(name)]
        if self._started is None:
            raise BadMessage(f"{name} comes before start")
        if body.get(self.id_key, self._started.stream_id) != self._started.stream_id:
            raise BadMessage(f"{self.id_key} is not that of this call")
        return reader(body)

    def hang_up(self) -> None:
        """Return nothing: closing the connection ends the call, or lets its document go on."""
        return

    # ---- for the systems

    @property
    def _stream(self) -> StreamStart:
        """What `start` said; nothing is written before it."""
        assert self._started is not None
        return self._started

    def _read_start(self, body: dict[str, Any]) -> StreamStart:
        raise NotImplementedError

    def _connected(self, body: dict[str, Any]) -> list[LineEvent]:
        return []

    def _incoming(self, data: bytes) -> bytes:
        """Return the caller's sound in the input format."""
        return data

    # ---- messages

    def _start(self, body: dict[str, Any]) -> list[LineEvent]:
        if self._started is not None:
            raise BadMessage("start comes twice")
        self._started = start = self._read_start(body)
        return [CallStarted(start.facts, start.input, start.output)]

    def _media(self, body: dict[str, Any]) -> list[LineEvent]:
        given = read_as(_Sound, body.get("media"), at="media")
        if given.track.startswith("outbound"):
            self._two_tracks = True
            return []
        data = decoded_sound(given.payload, self._stream.input)
        order = None if self._two_tracks else given.chunk
        at_ms = given.timestamp if self.stream_times else None
        return [Media(self._incoming(data), order, at_ms)] if data else []

    def _dtmf(self, body: dict[str, Any]) -> list[LineEvent]:
        return [key_event(read_as(_Key, body.get("dtmf"), at="dtmf").digit, "dtmf")]

    def _mark(self, body: dict[str, Any]) -> list[LineEvent]:
        return [MarkReturned(read_as(_Mark, body.get("mark"), at="mark").name)]

    def _stop(self, body: dict[str, Any]) -> list[LineEvent]:
        self._ended = True
        return [CallEnded()]

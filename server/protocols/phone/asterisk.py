"""Asterisk's channel driver `chan_websocket` with JSON control: `Dial(WebSocket/voxlane/c(ulaw)f(json))`.

Asterisk plays what it is sent by its own clock. It drops the part of a message that does not fill a frame, ignores text
of more than 128 bytes, and never returns a mark that was flushed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    BufferFull,
    BufferReady,
    CallStarted,
    LineEvent,
    LineTraits,
    MarkReturned,
    Media,
    Message,
)
from voxlane.server.protocols.phone.reading import (
    Identifier,
    MarkName,
    Number,
    bytes_of,
    call_facts,
    checked_sound,
    event_name,
    json_object,
    json_text,
    key_event,
    padded,
    read_as,
    scalars,
    supported,
    unknown,
)
from voxlane.server.protocols.phone.system import TelephoneSystem

MOST_COMMAND_BYTES = 128
MOST_FRAME_BYTES = 4_800

PREFIX = "VOXLANE_"
"""Channel variables may begin with it: VOXLANE_FROM is `from`. Inherited ones may have underscores before it."""

FORMATS = {
    "ulaw": AudioFormat("mulaw", 8_000),
    "alaw": AudioFormat("alaw", 8_000),
    "slin": AudioFormat("pcm16", 8_000),
    "slin16": AudioFormat("pcm16", 16_000),
    "slin24": AudioFormat("pcm16", 24_000),
    "g722": AudioFormat("g722", 16_000),
}
"""Asterisk's names of formats; linear sound is little-endian."""

_ADVICE = f"dial with c() and one of {', '.join(FORMATS)}"
_NOT_PARAMETERS = ("DIALEDPEER", "MEDIA_WEBSOCKET_")  # of the driver; the dial string may hold our token
_SILENT = ("STATUS", "QUEUE_DRAINED", "MEDIA_BUFFERING_COMPLETED")


class _Start(Struct):
    format: Identifier
    connection_id: Identifier = ""
    channel_id: Identifier = ""
    optimal_frame_size: Number = 0
    channel_variables: Any = None


class _Key(Struct):
    digit: str | int = ""


class _Mark(Struct):
    correlation_id: MarkName


class Asterisk:
    """The messages of one call on Asterisk."""

    traits = LineTraits("asterisk", asks_next=True)

    def __init__(self) -> None:
        self._started: _Start | None = None
        self._format = FORMATS["ulaw"]
        self._frame_bytes = 160

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        if isinstance(message, bytes):
            if self._started is None:
                raise BadMessage("sound comes before MEDIA_START")
            return [Media(checked_sound(message, self._format))] if message else []
        if message.startswith("MEDIA_START"):
            raise BadMessage("Asterisk must send JSON: add f(json) to the dial string")
        body = json_object(message)
        name = event_name(body)
        if name == "MEDIA_START":
            return self._start(body)
        if self._started is None:
            raise BadMessage("the first message is MEDIA_START")
        if body.get("channel_id", self._started.channel_id) != self._started.channel_id:
            raise BadMessage("channel_id is not that of this call")
        return self._control(name, body)

    def _control(self, name: str, body: dict[str, Any]) -> list[LineEvent]:
        match name:
            case "DTMF_END":
                return [key_event(read_as(_Key, body).digit, name)]
            case "MEDIA_MARK_PROCESSED":
                return [MarkReturned(read_as(_Mark, body).correlation_id)]
            case "MEDIA_XOFF":
                return [BufferFull()]
            case "MEDIA_XON":
                return [BufferReady()]
            case _ if name in _SILENT:
                return []
            case _:
                return [unknown(name)]

    def _start(self, body: dict[str, Any]) -> list[LineEvent]:
        if self._started is not None:
            raise BadMessage("MEDIA_START comes twice")
        start = read_as(_Start, body)
        if start.format not in FORMATS:
            raise BadMessage(f"this format of the sound is not supported: {_ADVICE}")
        self._started, self._format = start, supported(FORMATS[start.format], _ADVICE)
        self._frame_bytes = min(start.optimal_frame_size, MOST_FRAME_BYTES) or bytes_of(self._format, 20)
        variables = {key.lstrip("_"): value for key, value in scalars(start.channel_variables).items()}
        given = {
            key.removeprefix(PREFIX): value for key, value in variables.items() if not key.startswith(_NOT_PARAMETERS)
        }
        facts = call_facts(self.traits.name, start.channel_id or start.connection_id, given)
        return [CallStarted(facts, self._format, self._format)]

    def media(self, data: bytes) -> bytes:
        """Return the message for a piece of sound, filled up to whole frames."""
        return padded(data, self._format, self._frame_bytes)

    def mark(self, name: str) -> str:
        """Return the message for a mark; the name must be short."""
        message = json_text({"command": "MARK_MEDIA", "correlation_id": name})
        assert len(message.encode()) <= MOST_COMMAND_BYTES, "Asterisk ignores longer commands"
        return message

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return json_text({"command": "FLUSH_MEDIA"})

    def hang_up(self) -> str:
        """Return the message that ends the call."""
        return json_text({"command": "HANGUP"})


ASTERISK = TelephoneSystem(
    "asterisk",
    Asterisk,
    begins=lambda first: "MEDIA_START" in (first.event, first.text[:11]),  # as plain text, the codec says what is wrong
    subprotocols=("media",),
)

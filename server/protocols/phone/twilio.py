"""Twilio Media Streams, both ways (`<Connect><Stream>`); SignalWire, Fonoster and 2600Hz send the same messages.

Numbers are text. Twilio buffers what it is sent and plays it in order. A mark comes back when everything before it was
played, and at once on `clear`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from voxlane.server.protocols.phone.json_stream import JsonStream, StreamStart
from voxlane.server.protocols.phone.line_events import LineTraits
from voxlane.server.protocols.phone.reading import (
    Identifier,
    Number,
    audio_format,
    call_facts,
    encoded_sound,
    json_text,
    read_as,
    scalars,
)


class _MediaFormat(Struct, rename="camel"):
    encoding: Identifier = "audio/x-mulaw"
    sample_rate: Number = 8_000


class _Start(Struct, rename="camel"):
    stream_sid: Identifier
    call_sid: Identifier = ""
    custom_parameters: Any = None
    media_format: _MediaFormat = field(default_factory=_MediaFormat)


class Twilio(JsonStream):
    """The messages of one call on Twilio."""

    traits = LineTraits("twilio")
    id_key = "streamSid"

    def _read_start(self, body: dict[str, Any]) -> StreamStart:
        start = read_as(_Start, body.get("start"), at="start")
        given = body["start"]
        form = audio_format(start.media_format.encoding, start.media_format.sample_rate, "Twilio sends audio/x-mulaw")
        facts = call_facts(
            self.traits.name,
            start.call_sid,
            scalars(start.custom_parameters),
            caller=given.get("from") or body.get("from"),
            called=given.get("to") or body.get("to"),
        )
        return StreamStart(start.stream_sid, facts, form, form)

    def media(self, data: bytes) -> str:
        """Return the message for a piece of sound."""
        return self._written("media", media={"payload": encoded_sound(data)})

    def mark(self, name: str) -> str:
        """Return the message for a mark."""
        return self._written("mark", mark={"name": name})

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return self._written("clear")

    def _written(self, event: str, **fields: object) -> str:
        return json_text({"event": event, "streamSid": self._stream.stream_id, **fields})

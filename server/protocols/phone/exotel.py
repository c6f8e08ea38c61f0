"""Exotel's Voicebot applet: messages like Twilio's in snake_case, 16-bit linear sound.

Exotel wants sound in multiples of 320 bytes and at least 3,200 at once; smaller messages may crackle.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.json_stream import JsonStream, StreamStart
from voxlane.server.protocols.phone.line_events import LineTraits
from voxlane.server.protocols.phone.reading import (
    LINE_RATES,
    Identifier,
    Number,
    bytes_of,
    call_facts,
    encoded_sound,
    json_text,
    padded,
    read_as,
    scalars,
)
from voxlane.server.protocols.phone.system import TelephoneSystem

BLOCK_BYTES = 320
FEWEST_BYTES = 3_200


class _MediaFormat(Struct):
    encoding: Identifier = ""
    sample_rate: Number = 8_000


class _Start(Struct):
    stream_sid: Identifier
    call_sid: Identifier = ""
    custom_parameters: Any = None
    media_format: _MediaFormat = field(default_factory=_MediaFormat)


class Exotel(JsonStream):
    """The messages of one call on Exotel."""

    traits = LineTraits("exotel", lead_s=0.6, piece_ms=200)
    id_key = "stream_sid"

    def _read_start(self, body: dict[str, Any]) -> StreamStart:
        start = read_as(_Start, body.get("start"), at="start")
        given = body["start"]
        form = _format(start.media_format)
        if bytes_of(form, 100) >= FEWEST_BYTES:
            self.traits = LineTraits("exotel", lead_s=0.6, piece_ms=100)
        facts = call_facts(
            self.traits.name,
            start.call_sid,
            scalars(start.custom_parameters),
            caller=given.get("from"),
            called=given.get("to"),
        )
        return StreamStart(start.stream_sid, facts, form, form)

    def media(self, data: bytes) -> str:
        """Return the message for a piece of sound, filled up to whole blocks."""
        whole = padded(data, self._stream.output, BLOCK_BYTES)
        return self._written("media", media={"payload": encoded_sound(whole)})

    def mark(self, name: str) -> str:
        """Return the message for a mark."""
        return self._written("mark", mark={"name": name})

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return self._written("clear")

    def _written(self, event: str, **fields: object) -> str:
        return json_text({"event": event, "stream_sid": self._stream.stream_id, **fields})


def _format(given: _MediaFormat) -> AudioFormat:
    """Return the format. Names other than μ-law's ("base64", "audio/x-raw", "raw/slin") all mean linear sound."""
    if "mulaw" in given.encoding.lower():
        return AudioFormat("mulaw", 8_000)
    if given.sample_rate not in LINE_RATES:
        raise BadMessage("this rate of the sound is not supported: set sample-rate to 8000, 16000 or 24000")
    return AudioFormat("pcm16", given.sample_rate)


EXOTEL = TelephoneSystem("exotel", Exotel, begins=lambda first: "stream_sid" in first.start)

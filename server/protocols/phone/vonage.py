"""Vonage's WebSockets (NCCO `connect` to an endpoint of type `websocket`): binary 16-bit sound, JSON for the rest.

The first message holds the endpoint's own headers beside `event` and `content-type`. Vonage wants sound in messages of
20 ms. A `notify` comes back when everything before it was played; a `clear` discards it as well.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    BufferCleared,
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
    audio_format,
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
    unknown,
)

PIECE_MS = 20

_ADVICE = "set content-type to audio/l16;rate=8000, 16000 or 24000"
_NOT_PARAMETERS = ("event", "content-type")
_CALL_IDS = ("uuid", "call_uuid", "conversation_uuid")


class _Connected(Struct, rename={"content_type": "content-type"}):
    content_type: Identifier = "audio/l16;rate=16000"


class _Key(Struct):
    digit: str | int = ""


class _Mark(Struct):
    mark: MarkName


class Vonage:
    """The messages of one call on Vonage."""

    traits = LineTraits("vonage", piece_ms=PIECE_MS)

    def __init__(self) -> None:
        self._format: AudioFormat | None = None

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        if isinstance(message, bytes):
            return self._media(message)
        body = json_object(message)
        name = event_name(body)
        if name == "websocket:connected":
            return self._connected(body)
        if self._format is None:
            raise BadMessage("the first message is websocket:connected")
        match name:
            case "websocket:dtmf":
                inner = body.get("dtmf")  # an older form has the key in here
                return [key_event(read_as(_Key, inner if isinstance(inner, dict) else body).digit, name)]
            case "websocket:notify":
                payload = body.get("payload")
                known = isinstance(payload, dict) and "mark" in payload
                return [MarkReturned(read_as(_Mark, payload, at="payload").mark) if known else unknown(name)]
            case "websocket:cleared":
                return [BufferCleared()]
            case _:
                return [unknown(name)]

    def _connected(self, body: dict[str, Any]) -> list[LineEvent]:
        if self._format is not None:
            raise BadMessage("websocket:connected comes twice")
        form = audio_format(read_as(_Connected, body).content_type, 16_000, _ADVICE)
        if form.codec != "pcm16":
            raise BadMessage(f"this format of the sound is not supported: {_ADVICE}")
        self._format = form
        given = {key: value for key, value in scalars(body).items() if key not in _NOT_PARAMETERS}
        call_id = next((given[key] for key in _CALL_IDS if given.get(key)), "")
        return [CallStarted(call_facts(self.traits.name, call_id[:256], given), form, form)]

    def _media(self, data: bytes) -> list[LineEvent]:
        if self._format is None:
            raise BadMessage("sound comes before websocket:connected")
        return [Media(checked_sound(data, self._format))] if data else []

    def media(self, data: bytes) -> bytes:
        """Return the message for a piece of sound, filled up to whole messages of 20 ms."""
        assert self._format is not None
        return padded(data, self._format, bytes_of(self._format, PIECE_MS))

    def mark(self, name: str) -> str:
        """Return the message for a mark."""
        return json_text({"action": "notify", "payload": {"mark": name}})

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return json_text({"action": "clear"})

    def hang_up(self) -> None:
        """Return nothing: closing the connection ends the call."""
        return

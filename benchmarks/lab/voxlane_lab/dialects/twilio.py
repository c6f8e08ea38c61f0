"""Twilio Media Streams, both ways, with the lab as the carrier: it calls the server and plays what it is sent. Pure.

The carrier knows no responses: all sound is one track, whose response is "". `clear` drops what waits, and all marks
that wait come back at once. A mark comes back when the sound before it was played. A naive carrier ignores `clear`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from voxlane_lab.dialects.client_side import ClientSide, MicrophoneFeed
from voxlane_lab.dialects.dialect import DialectOptions, LabHandshake
from voxlane_lab.dialects.wire import NotUnderstood, base64_bytes, base64_text, fields_as, json_body, json_text
from voxlane_lab.values import Message, Pcm
from voxlane_lab.waveform import decode_g711, encode_g711

RATE = 8_000
FRAME_MS = 20
TRACK = ""  # the name of all sound


class _Sound(Struct):
    payload: Any = None


class MediaMessage(Struct):
    """Sound, both ways."""

    media: _Sound


class _Named(Struct):
    name: str


class MarkMessage(Struct):
    """A mark, both ways."""

    mark: _Named


Body = dict[str, Any]


class TwilioCarrier(ClientSide):
    """One telephone call; `call` tells it from others."""

    name = "twilio"
    names_responses = False

    def __init__(self, options: DialectOptions, call: str = "") -> None:
        super().__init__(options, RATE)
        digest = hashlib.sha256(call.encode()).hexdigest()
        self._account_sid, self._call_sid, self._stream_sid = f"AC{'0' * 32}", f"CA{digest[:32]}", f"MZ{digest[32:]}"
        self._microphone = MicrophoneFeed(RATE)
        self._messages = 0
        self._chunks = 0
        self._marks: list[tuple[int, str]] = []  # the place in the track, and the name
        self._readers: dict[str, Callable[[Body, float], list[Message]]] = {
            "media": self._media,
            "mark": self._mark,
            "clear": self._clear,
        }

    # ---- what the carrier says

    def handshake(self) -> LabHandshake:
        """Return how to connect; a key goes into `start`, as a carrier sends no headers of ours."""
        return LabHandshake(self._options.url)

    def open(self, at_s: float) -> list[Message]:
        """Return `connected` and `start`."""
        self.ready = True
        self._note(at_s, "sent", "connected")
        start = {
            "accountSid": self._account_sid,
            "streamSid": self._stream_sid,
            "callSid": self._call_sid,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": RATE, "channels": 1},
            "customParameters": {"token": self._options.key} if self._options.key else {},
        }
        connected = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
        return [json_text(connected), self._sent(at_s, "start", start=start)]

    def say(self, pcm: Pcm, at_s: float) -> list[Message]:
        """Return the message that carries 20 ms of the microphone."""
        payload = base64_text(encode_g711(self._microphone.push(pcm), "mulaw"))
        self._chunks += 1
        media = {
            "track": "inbound",
            "chunk": str(self._chunks),
            "timestamp": str((self._chunks - 1) * FRAME_MS),
            "payload": payload,
        }
        return [self._written("media", media=media)]

    def due(self, at_s: float) -> list[Message]:
        """Return the marks that were reached."""
        if not self._marks:
            return []
        reached = self.speaker.length(TRACK) - self.speaker.queued
        names = [name for place, name in self._marks if place <= reached]
        self._marks = [one for one in self._marks if one[0] > reached]
        return [self._sent(at_s, "mark", mark={"name": name}) for name in names]

    def close(self, at_s: float) -> list[Message]:
        """Return `stop`."""
        return [self._sent(at_s, "stop", stop={"accountSid": self._account_sid, "callSid": self._call_sid})]

    def _sent(self, at_s: float, event: str, **fields: Any) -> Message:
        self._note_body(at_s, "sent", event, fields)
        return self._written(event, **fields)

    def _written(self, event: str, **fields: Any) -> Message:
        self._messages += 1
        numbered = {"event": event, "sequenceNumber": str(self._messages), **fields, "streamSid": self._stream_sid}
        return json_text(numbered)

    # ---- what the server says

    def _read(self, message: Message, at_s: float) -> list[Message]:
        body = json_body(message)
        event = body.pop("event", None)
        if not isinstance(event, str):
            raise NotUnderstood("a message without an event")
        reader = self._readers.get(event)
        if reader is not None and body.pop("streamSid", self._stream_sid) != self._stream_sid:
            raise NotUnderstood(f"a {event} for another streamSid than that of the call")
        if event != "media":
            self._note_body(at_s, "got", event, body)
        return [] if reader is None else reader(body, at_s)

    def _media(self, body: Body, at_s: float) -> list[Message]:
        payload = base64_bytes(fields_as(MediaMessage, body, "media").media.payload)
        self._arrived(TRACK, decode_g711(payload, "mulaw"), at_s)
        return []

    def _mark(self, body: Body, at_s: float) -> list[Message]:
        name = fields_as(MarkMessage, body, "mark").mark.name
        self._marks.append((self.speaker.length(TRACK), name))
        return self.due(at_s)

    def _clear(self, body: Body, at_s: float) -> list[Message]:
        self._drop(at_s)
        return self.due(at_s)

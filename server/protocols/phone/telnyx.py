"""Telnyx media streaming with `stream_bidirectional_mode=rtp`.

The two directions may have different codecs. `start` names that of the caller's sound only; ours is PCMU, or L16 if
the caller's is, unless the custom parameter `codec` says otherwise: PCMU, PCMA, G722, L16 or L16/16000. A mark comes
back when everything before it was played, and at once on `clear`. Messages may come in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, SubElement

from msgspec import Struct, field

from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.byte_order import ByteOrder
from voxlane.server.protocols.phone.documents import AnswerFields, Document, Documents, StreamOrder, xml
from voxlane.server.protocols.phone.json_stream import JsonStream, StreamStart
from voxlane.server.protocols.phone.line_events import LineEvent, LineTraits
from voxlane.server.protocols.phone.reading import (
    Identifier,
    Number,
    audio_format,
    bytes_of,
    call_facts,
    encoded_sound,
    json_text,
    padded,
    read_as,
    scalars,
    unknown,
)
from voxlane.server.protocols.phone.signing import (
    SignedRequest,
    Signing,
    SystemKey,
    canonical_base64,
    ed25519_verifies,
    is_number,
    is_recent,
)
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, TelephoneSystem
from voxlane.server.protocols.phone.twilio import twiml_busy, twiml_next

SHORTEST_MS = 20
"""Telnyx takes messages of 20 ms to 30 s."""

_ADVICE = "set stream_codec and stream_bidirectional_codec to PCMU, PCMA, G722 or L16 (8000, 16000 or 24000 Hz)"
_AUTH_TOKEN = "x-telnyx-streaming-auth-token"


class _MediaFormat(Struct):
    encoding: Identifier = "PCMU"
    sample_rate: Number = 8_000


class _Start(Struct):
    call_control_id: Identifier = ""
    custom_parameters: Any = None
    media_format: _MediaFormat = field(default_factory=_MediaFormat)


class _Top(Struct):
    stream_id: Identifier


class _Failure(Struct):
    code: Number = 0


class Telnyx(JsonStream):
    """The messages of one call on Telnyx."""

    traits = LineTraits("telnyx", asks_next=True)
    id_key = "stream_id"

    def __init__(self) -> None:
        super().__init__()
        self._readers["error"] = self._error
        self._order = ByteOrder()
        self._token = ""  # the streaming auth token

    def _connected(self, body: dict[str, Any]) -> list[LineEvent]:
        inner = body.get("connected")
        found = {**scalars(body), **scalars(inner)}
        self._token = found.get(_AUTH_TOKEN, "")
        return []

    def _read_start(self, body: dict[str, Any]) -> StreamStart:
        stream_id = read_as(_Top, body).stream_id
        start = read_as(_Start, body.get("start"), at="start")
        given = body["start"]
        parameters = scalars(start.custom_parameters)
        form = audio_format(start.media_format.encoding, start.media_format.sample_rate, _ADVICE)
        output = _output(form, parameters.pop("codec", ""))
        facts = call_facts(
            self.traits.name,
            start.call_control_id,
            parameters,
            caller=given.get("from"),
            called=given.get("to"),
            token=self._token,
        )
        return StreamStart(stream_id, facts, form, output)

    def _incoming(self, data: bytes) -> bytes:
        return self._order.incoming(data) if self._stream.input.codec == "pcm16" else data

    def _error(self, body: dict[str, Any]) -> list[LineEvent]:
        payload = body.get("payload")
        code = read_as(_Failure, payload, at="payload").code if isinstance(payload, dict) else 0
        return [unknown(f"error {code}")]

    def media(self, data: bytes) -> str:
        """Return the message for a piece of sound, at least 20 ms long."""
        form = self._stream.output
        if len(data) < bytes_of(form, SHORTEST_MS):
            data = padded(data, form, bytes_of(form, SHORTEST_MS))
        if form.codec == "pcm16":
            data = self._order.outgoing(data)
        return json_text({"event": "media", "media": {"payload": encoded_sound(data)}})

    def mark(self, name: str) -> str:
        """Return the message for a mark."""
        return json_text({"event": "mark", "mark": {"name": name}})

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return json_text({"event": "clear"})


def _output(form: AudioFormat, codec: str) -> AudioFormat:
    if not codec:
        return form if form.codec == "pcm16" else AudioFormat("mulaw", 8_000)
    name, _, rate = codec.partition("/")
    usual = form.rate if form.codec == "pcm16" else 8_000
    return audio_format(f"{name};rate={rate}" if rate else name, usual, _ADVICE)


# ---- documents


def texml(order: StreamOrder) -> Document:
    """Return the answer that connects a call: without rtp the line would play nothing but MP3 files."""
    response = Element("Response")
    connect = SubElement(response, "Connect")
    # Whether parameters or a query arrive is not documented for TeXML: the pass is in both, and the first one counts.
    url = f"{order.stream_url}?{urlencode({'token': order.token})}"
    sound = {"codec": "PCMU", "bidirectionalMode": "rtp", "bidirectionalCodec": "PCMU"}
    stream = SubElement(connect, "Stream", {"url": url, "track": "inbound_track", **sound})
    SubElement(stream, "Parameter", {"name": "token", "value": order.token})
    SubElement(response, "Redirect", {"method": "POST"}).text = order.next_url  # its Connect has no action
    return xml(response)


# ---- signatures


def telnyx_signed(public_key: str, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """Return whether Telnyx has signed a request at about this time."""
    signed = canonical_base64(signature)
    if signed is None or not is_number(timestamp) or not is_recent(int(timestamp), now):
        return False
    return ed25519_verifies(telnyx_key(public_key), signed, timestamp.encode() + b"|" + body)


def telnyx_key(public_key: str) -> bytes:
    """Return Telnyx' public key; raise ValueError if it is none."""
    key = canonical_base64(public_key)
    if key is None or len(key) != 32:
        raise ValueError("the public key is the base64 of 32 bytes, as Telnyx shows it")
    return key


def _check_key(public_key: str) -> None:
    telnyx_key(public_key)


def _shown(headers: Mapping[str, str]) -> str:
    return headers.get("telnyx-signature-ed25519", "")


def _mark(public_key: str, request: SignedRequest, now: float) -> str:
    signature, sent_at = _shown(request.headers), request.headers.get("telnyx-timestamp", "")
    return signature if telnyx_signed(public_key, sent_at, signature, request.body, now) else ""


TELNYX = TelephoneSystem(
    "telnyx",
    Telnyx,
    begins=lambda first: first.event == "start" and "stream_id" in first.body,
    documents=Documents(
        path=f"{PHONE_ADDRESS}/texml",
        title="Telnyx",
        kind="TeXML",
        fields=AnswerFields("CallSid", "From", "To"),
        answer=texml,
        busy=twiml_busy,
        follow_up=twiml_next,
    ),
    key=SystemKey("VOXLANE_TELNYX_KEY", _check_key, needs_cryptography=True),  # the public key
    requests=Signing(_shown, _mark),
)

"""Twilio Media Streams, both ways (`<Connect><Stream>`); SignalWire, Fonoster and 2600Hz send the same messages.

Numbers are text. Twilio buffers what it is sent and plays it in order. A mark comes back when everything before it was
played, and at once on `clear`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit
from xml.etree.ElementTree import Element, SubElement

from msgspec import Struct, field

from voxlane.server.protocols.phone.documents import (
    AnswerFields,
    Document,
    Documents,
    NextStep,
    StreamOrder,
    busy,
    dial,
    xml,
)
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
from voxlane.server.protocols.phone.signing import Pairs, SignedRequest, Signing, SystemKey, first_of, mac, same_text
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, TelephoneSystem


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

    traits = LineTraits("twilio", asks_next=True)
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


# ---- documents


def twiml(order: StreamOrder) -> Document:
    """Return the answer that connects a call."""
    response = Element("Response")
    connect = SubElement(response, "Connect", {"action": order.next_url, "method": "POST"})
    stream = SubElement(connect, "Stream", {"url": order.stream_url})
    SubElement(stream, "Parameter", {"name": "token", "value": order.token})
    return xml(response)


def twiml_busy() -> Document:
    """Return the refusal of a call; Telnyx reads it, too."""
    return busy("Reject")


def twiml_next(step: NextStep | None) -> Document:
    """Return what follows after a call; Telnyx reads it, too."""
    return dial(step, sip="Sip")


# ---- signatures

_STANDARD_PORTS = {"https": 443, "wss": 443, "http": 80, "ws": 80}
_HASHES: Mapping[str, Callable[..., Any]] = {"HMAC_SHA1": hashlib.sha1, "HMAC_SHA256": hashlib.sha256}


def twilio_signed(
    token: str, url: str, signature: str, form: Pairs = (), *, body: bytes = b"", settings: str = ""
) -> bool:
    """Return whether Twilio has signed a request: its URL and form, or the body whose hash is in the URL.

    A WebSocket handshake has neither form nor body. `settings` is the header X-Twilio-Webhooks-Signature-Settings.
    """
    algorithm = _HASHES.get(_algorithm(settings))
    if algorithm is None or (body and not _hash_in_url(url, body)):
        return False
    fields = "".join(name + value for name, value in sorted(set(form)))
    found = False
    for spelled in _spellings(url):  # every one is computed: the time does not tell which one is right
        found |= same_text(signature, mac(token.encode(), spelled + fields, algorithm))
    return found


def _algorithm(settings: str) -> str:
    for part in settings.split(","):
        name, _, value = part.partition("=")
        if name.strip() == "algorithm" and value.strip():
            return value.strip().upper()
    return "HMAC_SHA1"


def _hash_in_url(url: str, body: bytes) -> bool:
    given = parse_qs(urlsplit(url).query).get("bodySHA256", [""])
    return same_text(given[0].lower(), hashlib.sha256(body).hexdigest())


def _spellings(url: str) -> list[str]:
    """Return a URL with and without the standard port of its scheme: Twilio signs either."""
    split = urlsplit(url)
    port = f":{_STANDARD_PORTS.get(split.scheme, 0)}"
    if split.port is None:
        return [url, _at(split, split.netloc + port)]
    return [url, _at(split, split.netloc.removesuffix(port))]


def _at(split: SplitResult, netloc: str) -> str:
    return split._replace(netloc=netloc).geturl()


def _shown(headers: Mapping[str, str]) -> str:
    return first_of(headers, "x-twilio-signature", "x-signalwire-signature")


def _mark(token: str, request: SignedRequest) -> str:
    signature = _shown(request.headers)
    body = b"" if request.form else request.body
    settings = request.headers.get("x-twilio-webhooks-signature-settings", "")
    right = twilio_signed(token, request.url, signature, request.form, body=body, settings=settings)
    return signature if right else ""


def _of_request(token: str, request: SignedRequest, now: float) -> str:
    return _mark(token, request)


def _of_handshake(token: str, request: SignedRequest, now: float) -> str:
    """Return the mark of a handshake: Twilio drops the query of a stream's URL before it signs and connects."""
    return _mark(token, SignedRequest(request.method, request.url.partition("?")[0], request.headers))


TWILIO = TelephoneSystem(
    "twilio",
    Twilio,
    begins=lambda first: "streamSid" in first.start,
    documents=Documents(
        path=f"{PHONE_ADDRESS}/twiml",
        title="Twilio and SignalWire",
        kind="TwiML",
        fields=AnswerFields("CallSid", "From", "To"),
        answer=twiml,
        busy=twiml_busy,
        follow_up=twiml_next,
    ),
    key=SystemKey("VOXLANE_TWILIO_TOKEN"),  # the auth token; of SignalWire the signing key
    requests=Signing(_shown, _of_request),
    handshakes=Signing(_shown, _of_handshake, once=False),  # every handshake has the same
)

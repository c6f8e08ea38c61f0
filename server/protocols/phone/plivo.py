"""Plivo audio streaming with `bidirectional="true"`.

A checkpoint comes back as `playedStream` when everything before it was played. There is no `stop` in its documents: the
connection is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from xml.etree.ElementTree import Element, SubElement

import msgspec
from msgspec import Struct, field

from voxlane.server.protocols.phone.byte_order import ByteOrder
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
from voxlane.server.protocols.phone.line_events import BufferCleared, LineEvent, LineTraits, MarkReturned
from voxlane.server.protocols.phone.reading import (
    MOST_CHARACTERS,
    Identifier,
    MarkName,
    Number,
    audio_format,
    call_facts,
    encoded_sound,
    json_text,
    read_as,
    scalars,
)
from voxlane.server.protocols.phone.signing import Pairs, SignedRequest, Signing, SystemKey, mac, same_text
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, TelephoneSystem

_ADVICE = "set contentType to audio/x-mulaw;rate=8000 or audio/x-l16;rate=16000"


class _MediaFormat(Struct, rename="camel"):
    encoding: Identifier = "audio/x-l16"
    sample_rate: Number = 8_000


class _Start(Struct, rename="camel"):
    stream_id: Identifier
    call_id: Identifier = ""
    media_format: _MediaFormat = field(default_factory=_MediaFormat)


class _Played(Struct):
    name: MarkName


class Plivo(JsonStream):
    """The messages of one call on Plivo."""

    traits = LineTraits("plivo", asks_next=True)
    id_key = "streamId"
    stream_times = False

    def __init__(self) -> None:
        super().__init__()
        self._readers |= {"playedStream": self._played, "played": self._played, "clearedAudio": self._cleared}
        self._order = ByteOrder()

    def _read_start(self, body: dict[str, Any]) -> StreamStart:
        start = read_as(_Start, body.get("start"), at="start")
        given = body["start"]
        form = audio_format(start.media_format.encoding, start.media_format.sample_rate, _ADVICE)
        facts = call_facts(
            self.traits.name,
            start.call_id,
            extra_headers(body.get("extra_headers")),
            caller=given.get("from"),
            called=given.get("to"),
        )
        return StreamStart(start.stream_id, facts, form, form)

    def _incoming(self, data: bytes) -> bytes:
        return self._order.incoming(data) if self._stream.input.codec == "pcm16" else data

    def _played(self, body: dict[str, Any]) -> list[LineEvent]:
        return [MarkReturned(read_as(_Played, body).name)]

    def _cleared(self, body: dict[str, Any]) -> list[LineEvent]:
        return [BufferCleared()]

    def media(self, data: bytes) -> str:
        """Return the message for a piece of sound."""
        form = self._stream.output
        linear = form.codec == "pcm16"
        sound = {
            "contentType": "audio/x-l16" if linear else f"audio/x-{form.codec}",
            "sampleRate": form.rate,
            "payload": encoded_sound(self._order.outgoing(data) if linear else data),
        }
        return self._written("playAudio", media=sound)

    def mark(self, name: str) -> str:
        """Return the message for a checkpoint."""
        return self._written("checkpoint", name=name)

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return self._written("clearAudio")

    def _written(self, event: str, **fields: object) -> str:
        return json_text({"event": event, "streamId": self._stream.stream_id, **fields})


def extra_headers(given: object) -> dict[str, str]:
    """Return the headers of a stream: JSON, or pairs as `a=1;b=2`, `a=1,b=2` and `{X-PH-a: 1, X-PH-b: 2}`."""
    if not isinstance(given, str):
        return _bare(scalars(given))
    try:
        value = msgspec.json.decode(given[:MOST_CHARACTERS])
    except (ValueError, RecursionError):
        value = _pairs(given.strip().strip("{}"))
    return _bare(scalars(value))


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for pair in text.replace(";", ",").split(","):
        mark = "=" if "=" in pair else ":"
        key, _, value = pair.partition(mark)
        if key.strip():
            found[key.strip().strip("'\"")] = value.strip().strip("'\"")
    return found


def _bare(headers: dict[str, str]) -> dict[str, str]:
    """Return headers without the prefix that Plivo gives them."""
    return {key[5:] if key.lower().startswith("x-ph-") else key: value for key, value in headers.items()}


# ---- documents

_SOUND = "audio/x-mulaw;rate=8000"
"""The format of the sound on Plivo's lines: that of the telephone network itself."""


def plivo_xml(order: StreamOrder) -> Document:
    """Return the answer that connects a call; what follows the stream is done when the stream has ended."""
    response = Element("Response")
    options = {"bidirectional": "true", "keepCallAlive": "true", "contentType": _SOUND}
    stream = SubElement(response, "Stream", {**options, "extraHeaders": f"token={order.token}"})
    stream.text = order.stream_url
    SubElement(response, "Redirect", {"method": "POST"}).text = order.next_url
    return xml(response)


def plivo_next(step: NextStep | None) -> Document:
    """Return what follows after a call."""
    return dial(step, sip="User")


# ---- signatures


def plivo_signed(token: str, method: str, url: str, nonce: str, signatures: str, form: Pairs = ()) -> bool:
    """Return whether Plivo has signed a request in its version 3; the header may hold several signatures."""
    if not nonce:
        return False
    right = mac(token.encode(), f"{_signed_text(method, url, form)}.{nonce}")
    found = False
    for one in signatures.split(","):
        found |= same_text(one.strip(), right)
    return found


def _signed_text(method: str, url: str, form: Pairs) -> str:
    """Return what Plivo signs: the URL with its query in order, and the form's fields in order behind it."""
    split = urlsplit(url)
    bare = split._replace(query="", fragment="").geturl()
    query = parse_qsl(split.query, keep_blank_values=True)
    if method.upper() == "GET":
        query, form = [*query, *form], ()
    ordered = "&".join(f"{name}={value}" for name, value in sorted(query))
    fields = "".join(name + value for name, value in sorted(form))
    if not ordered and not fields:
        return bare
    return f"{bare}?{ordered}{'.' if ordered and fields else ''}{fields}"


def _shown(headers: Mapping[str, str]) -> str:
    return headers.get("x-plivo-signature-v3", "")


def _mark(token: str, request: SignedRequest, now: float) -> str:
    """Return the nonce: the header may hold other signatures beside the right one, but there is one nonce."""
    nonce = request.headers.get("x-plivo-signature-v3-nonce", "")
    right = plivo_signed(token, request.method, request.url, nonce, _shown(request.headers), request.form)
    return nonce if right else ""


PLIVO = TelephoneSystem(
    "plivo",
    Plivo,
    begins=lambda first: "streamId" in first.start,
    documents=Documents(
        path=f"{PHONE_ADDRESS}/plivo",
        title="Plivo",
        kind="Plivo XML",
        fields=AnswerFields("CallUUID", "From", "To"),
        answer=plivo_xml,
        busy=lambda: busy("Hangup"),
        follow_up=plivo_next,
    ),
    key=SystemKey("VOXLANE_PLIVO_TOKEN"),  # the auth token
    requests=Signing(_shown, _mark),
)

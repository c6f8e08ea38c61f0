"""Vonage's WebSockets (NCCO `connect` to an endpoint of type `websocket`): binary 16-bit sound, JSON for the rest.

The first message holds the endpoint's own headers beside `event` and `content-type`. Vonage wants sound in messages of
20 ms. A `notify` comes back when everything before it was played; a `clear` discards it as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.documents import (
    AnswerFields,
    Document,
    Documents,
    NextStep,
    StreamOrder,
    is_sip,
    json_document,
)
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
from voxlane.server.protocols.phone.signing import (
    Pairs,
    SignedRequest,
    Signing,
    SystemKey,
    bearer,
    is_recent,
    same_text,
)
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, TelephoneSystem

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

    traits = LineTraits("vonage", piece_ms=PIECE_MS, asks_next=True)

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


# ---- documents

_SOUND = "audio/l16;rate=16000"
_NUMBER = re.compile(r"\+?[0-9]{2,15}")
_ENDED = frozenset({"completed", "disconnected", "unanswered", "failed", "rejected", "busy", "timeout", "cancelled"})
"""States in which Vonage's connection to us is over."""


def ncco(order: StreamOrder) -> Document:
    """Return the answer that connects a call; Vonage asks at `next_url` when the stream has ended, and obeys."""
    endpoint = {
        "type": "websocket",
        "uri": order.stream_url,
        "content-type": _SOUND,
        "headers": {"token": order.token},
    }
    connect = {
        "action": "connect",
        "eventType": "synchronous",
        "eventUrl": [order.next_url],
        "eventMethod": "POST",
        **_from(order.called),
        "endpoint": [endpoint],
    }
    return json_document([connect])


def ncco_busy() -> Document:
    """Return the refusal: Vonage knows no busy line, so the call ends."""
    return json_document([])


def ncco_next(step: NextStep | None) -> Document:
    """Return what follows after a call; None does nothing more, which hangs up."""
    if step is None:
        return json_document([])
    if is_sip(step.target):
        endpoint = {"type": "sip", "uri": step.target}
    else:
        endpoint = {"type": "phone", "number": step.target.removeprefix("+")}
    return json_document([{"action": "connect", **_from(step.called), "endpoint": [endpoint]}])


def _from(called: str) -> Mapping[str, str]:
    """Return the caller of a connection that Vonage makes: it must be a number of the customer's."""
    return {"from": called} if _NUMBER.fullmatch(called) else {}


# ---- signatures


def vonage_signed(secret: str, token: str, now: float, *, body: bytes = b"", query: Pairs = ()) -> bool:
    """Return whether a JSON Web Token is Vonage's, of about this time, and for this body or query."""
    signed, _, signature = token.rpartition(".")
    digest = hmac.new(secret.encode(), signed.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
    if not same_text(signature, base64.urlsafe_b64encode(digest).rstrip(b"=").decode()):
        return False
    head, _, payload = signed.partition(".")
    header, claims = _json_part(head), _json_part(payload)
    if header.get("alg") != "HS256" or not is_recent(_seconds(claims.get("iat")), now):
        return False
    if "exp" in claims and _seconds(claims["exp"]) < now:
        return False
    return _payload_matches(claims.get("payload_hash"), body, query)


def _payload_matches(given: object, body: bytes, query: Pairs) -> bool:
    """Return whether the hash in a token is that of the body; without a body, of the query as JSON, or of nothing."""
    if given is None:
        return not body
    as_json = json.dumps(dict(query), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    contents = (body,) if body else (as_json, b"")
    return isinstance(given, str) and any(
        same_text(given.lower(), hashlib.sha256(content).hexdigest()) for content in contents
    )


def _json_part(part: str) -> dict[str, Any]:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(value: object) -> float:
    """Return a time of a token, minus infinity if it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else float("-inf")


def _mark(secret: str, request: SignedRequest, now: float) -> str:
    token = bearer(request.headers)
    return token if vonage_signed(secret, token, now, body=request.body, query=request.query) else ""


VONAGE = TelephoneSystem(
    "vonage",
    Vonage,
    begins=lambda first: first.event.startswith("websocket:"),
    documents=Documents(
        path=f"{PHONE_ADDRESS}/vonage",
        title="Vonage",
        kind="NCCO",
        # Vonage's connection to us is a call of its own: the conversation is what both have in common.
        fields=AnswerFields("conversation_uuid", "from", "to"),
        answer=ncco,
        busy=ncco_busy,
        follow_up=ncco_next,
        as_json=True,
        lists_actions=True,
        by_get=True,  # its default
        # A document before the end would replace the one that is being followed.
        is_over=lambda values: values.get("status") in _ENDED,
    ),
    key=SystemKey("VOXLANE_VONAGE_SECRET"),  # the signature secret
    requests=Signing(bearer, _mark),
)

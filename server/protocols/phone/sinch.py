"""Sinch Voice with `connectStream`: binary 16-bit sound, JSON for the rest.

The first message asks whether we take the call; sound follows our answer. Sinch plays in order what it is sent, and
discards it on `clear`. It has no marks, says nothing about pressed keys, and asks nothing when the stream has ended.
Written from Sinch's documents; no call of Sinch's has been here yet.
"""

from __future__ import annotations

import base64
import hashlib
import re
from calendar import timegm
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.documents import AnswerFields, Document, Documents, StreamOrder, json_document
from voxlane.server.protocols.phone.line_events import CallStarted, LineEvent, LineTraits, Media, Message, MustSend
from voxlane.server.protocols.phone.reading import (
    LINE_RATES,
    Identifier,
    call_facts,
    checked_sound,
    event_name,
    json_object,
    json_text,
    read_as,
    scalars,
    unknown,
)
from voxlane.server.protocols.phone.signing import (
    SignedRequest,
    Signing,
    SystemKey,
    canonical_base64,
    is_recent,
    mac,
    same_text,
)
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, TelephoneSystem

RATE = 16_000
"""The sample rate that Sinch is told."""


class _Connect(Struct, rename="camel"):
    call_id: Identifier
    sample_rate: int
    codec: Literal["PCM"] = "PCM"
    call_headers: Any = None


class Sinch:
    """The messages of one call on Sinch."""

    traits = LineTraits("sinch", marks=False)

    def __init__(self) -> None:
        self._format: AudioFormat | None = None

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        if isinstance(message, bytes):
            if self._format is None:
                raise BadMessage("sound comes before connect")
            return [Media(checked_sound(message, self._format))] if message else []
        body = json_object(message)
        name = event_name(body, "command")
        if name != "connect":
            return [unknown(name)]
        if self._format is not None:
            raise BadMessage("connect comes twice")
        given = read_as(_Connect, body)
        if given.sample_rate not in LINE_RATES:
            raise BadMessage(f"set sampleRate to one of {', '.join(map(str, LINE_RATES))}")
        self._format = form = AudioFormat("pcm16", given.sample_rate)
        facts = call_facts(self.traits.name, given.call_id, _headers(given.call_headers))
        return [CallStarted(facts, form, form), MustSend(json_text({"command": "answer"}))]

    def media(self, data: bytes) -> bytes:
        """Return the message for a piece of sound."""
        return data

    def mark(self, name: str) -> None:
        """Return nothing: Sinch has no marks."""
        return

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return json_text({"command": "clear"})

    def hang_up(self) -> None:
        """Return nothing: closing the connection ends the call."""
        return


def _headers(given: Any) -> dict[str, str]:
    """Return the headers of a call: an object, or a list of keys and values as in the document that ordered them."""
    if isinstance(given, list):
        given = {one.get("key"): one.get("value") for one in given if isinstance(one, dict)}
    return scalars(given)


def svaml(order: StreamOrder) -> Document:
    """Return the answer that connects a call."""
    action = {
        "name": "connectStream",
        "destination": {"type": "Websocket", "endpoint": order.stream_url},
        "streamingOptions": {"version": 1, "sampleRate": RATE},
        "callHeaders": [{"key": "token", "value": order.token}],
    }
    return json_document({"action": action})


def _shown(headers: Mapping[str, str]) -> str:
    scheme, _, signature = headers.get("authorization", "").partition(" ")
    return signature.strip() if scheme.lower() == "application" else ""


def _mark(secret: str, request: SignedRequest, now: float) -> str:
    """Return the signature, behind the key of the application, of a request at about this time."""
    signature = _shown(request.headers).partition(":")[2]
    stamp, key = request.headers.get("x-timestamp", ""), canonical_base64(secret)
    digest = base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest()).decode()
    kind, path = request.headers.get("content-type", ""), urlsplit(request.url).path
    text = "\n".join((request.method, digest, kind, f"x-timestamp:{stamp}", path))
    right = bool(key) and same_text(signature, mac(key or b"", text)) and is_recent(_seconds(stamp), now)
    return signature if right else ""


def _seconds(stamp: str) -> float:
    """Return a time such as 2014-09-24T10:59:41Z, minus infinity if it is none."""
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?Z", stamp, re.ASCII)
    return float(timegm(tuple(map(int, found.groups())))) if found else float("-inf")


def _check_secret(secret: str) -> None:
    if not canonical_base64(secret):
        raise ValueError("the application secret is base64, as Sinch shows it")


SINCH = TelephoneSystem(
    "sinch",
    Sinch,
    begins=lambda first: first.body.get("command") == "connect" and "applicationKey" in first.body,
    documents=Documents(
        path=f"{PHONE_ADDRESS}/sinch",
        title="Sinch",
        kind="SVAML",
        fields=AnswerFields("callid", "cli", "to.endpoint"),
        answer=svaml,
        busy=lambda: json_document({"action": {"name": "hangup"}}),
        as_json=True,
        announced_by={"event": "ice"},  # it reports answers and ends at the same address
    ),
    key=SystemKey("VOXLANE_SINCH_SECRET", _check_secret),  # the application's secret
    requests=Signing(_shown, _mark),
)

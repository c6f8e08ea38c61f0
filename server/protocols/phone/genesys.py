"""Genesys Cloud AudioHook, version 2, as the Audio Connector speaks it: binary μ-law, JSON for the rest.

Genesys opens a session and offers formats; the server chooses one. Both sides number their texts and repeat the last
number that they have seen. Genesys takes five messages a second, and ends a call that sends more for long, so sound
goes in large pieces. It says when playback ends, but has no marks. A session whose conversation is all zeros is a test
of the connection: it is opened and closed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field, to_builtins

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallStarted,
    LineEvent,
    LineTraits,
    Media,
    Message,
    MustSend,
)
from voxlane.server.protocols.phone.reading import (
    Identifier,
    Number,
    call_facts,
    checked_sound,
    json_object,
    json_text,
    key_event,
    read_as,
    scalars,
    unknown,
)
from voxlane.server.protocols.phone.signing import (
    SignedRequest,
    Signing,
    SystemKey,
    canonical_base64,
    is_number,
    is_recent,
    mac,
    same_text,
)
from voxlane.server.protocols.phone.system import TelephoneSystem

VERSION = "2"
NO_CONVERSATION = "00000000-0000-0000-0000-000000000000"
FORMAT = AudioFormat("mulaw", 8_000)
BYTES_PER_MS = 8

_DURATION = re.compile(r"PT([0-9]{1,9})(?:\.([0-9]{1,9}))?S")
_SILENT = ("paused", "playback_completed", "playback_started", "update")


class _Message(Struct):
    version: Literal["2"]
    id: Identifier
    type: Annotated[str, Meta(min_length=1)]
    seq: Number
    serverseq: Number = 0
    parameters: dict[str, Any] = field(default_factory=dict)


class _Offer(Struct):
    format: Identifier
    rate: Number
    channels: tuple[Identifier, ...]
    type: Identifier = "audio"


class _Participant(Struct):
    ani: Identifier = ""
    dnis: Identifier = ""


class _Open(Struct, rename="camel"):
    conversation_id: Identifier
    media: tuple[_Offer, ...] = ()
    participant: _Participant = field(default_factory=_Participant)
    input_variables: Any = None
    custom_config: Any = None


class _Discarded(Struct):
    start: Identifier
    discarded: Identifier


class _Key(Struct):
    digit: str | int = ""


class _Failure(Struct):
    code: Number = 0


class Genesys:
    """The messages of one call on Genesys Cloud."""

    # Genesys takes 5 messages a second and 25 at once; what sound leaves of them is for texts.
    traits = LineTraits("genesys", lead_s=1.0, piece_ms=250, marks=False, most_messages=(4.0, 20.0))

    def __init__(self) -> None:
        self._id: str | None = None
        self._seq = 0  # of our last text
        self._clientseq = 0  # of the last text from Genesys
        self._channels = 1
        self._external = 0  # the caller's channel
        self._probe = False
        self._ended = False
        self._at_ms = 0.0  # the time of the next sample

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        if isinstance(message, bytes):
            return self._media(message)
        given = read_as(_Message, json_object(message))
        if (self._id is None) != (given.type == "open"):
            raise BadMessage("open comes twice" if self._id else "the first message is open")
        self._number(given)
        match given.type:
            case "open":
                return self._open(given)
            case "ping":
                return [MustSend(self._written("pong"))]
            case "close":
                self._ended = True
                return [MustSend(self._written("closed")), CallEnded()]
            case "dtmf":
                return [key_event(read_as(_Key, given.parameters, at="parameters").digit, "dtmf")]
            case "discarded" | "resumed":
                self._skip(read_as(_Discarded, given.parameters, at="parameters"))
                return []
            case "error":
                return [unknown(f"error {read_as(_Failure, given.parameters, at='parameters').code}")]
            case _:
                return [] if given.type in _SILENT else [unknown(given.type)]

    def _number(self, given: _Message) -> None:
        """Check the numbers of a text."""
        if self._id is not None and given.id != self._id:
            raise BadMessage("id is not that of this session")
        if given.seq != self._clientseq + 1:
            raise BadMessage("seq must grow by one with each message")
        if given.serverseq > self._seq:
            raise BadMessage("serverseq is higher than any seq of ours")
        self._clientseq = given.seq

    def _open(self, given: _Message) -> list[LineEvent]:
        opening = read_as(_Open, given.parameters, at="parameters")
        self._probe = opening.conversation_id == NO_CONVERSATION
        chosen = _chosen(opening.media)
        if chosen is None and not self._probe:
            raise BadMessage("Genesys must offer PCMU at 8000 Hz with the external channel")
        self._id = given.id
        if chosen is not None:
            self._channels, self._external = len(chosen.channels), chosen.channels.index("external")
        opened = MustSend(self._written("opened", media=[] if chosen is None else [to_builtins(chosen)]))
        if self._probe:
            return [opened]
        facts = call_facts(
            self.traits.name,
            opening.conversation_id,
            {**scalars(opening.custom_config), **scalars(opening.input_variables)},
            caller=opening.participant.ani.removeprefix("tel:"),
            called=opening.participant.dnis.removeprefix("tel:"),
        )
        return [CallStarted(facts, FORMAT, FORMAT), opened]

    def _media(self, data: bytes) -> list[LineEvent]:
        if self._id is None:
            raise BadMessage("sound comes before open")
        sound = checked_sound(data, FORMAT)[self._external :: self._channels]
        if self._probe or self._ended or not sound:
            return []
        at_ms, self._at_ms = self._at_ms, self._at_ms + len(sound) / BYTES_PER_MS
        return [Media(sound, at_ms=round(at_ms))]

    def _skip(self, given: _Discarded) -> None:
        """Go on after sound that Genesys did not send."""
        self._at_ms = _milliseconds(given.start) + _milliseconds(given.discarded)

    def media(self, data: bytes) -> bytes:
        """Return the message for a piece of sound."""
        return data

    def mark(self, name: str) -> None:
        """Return nothing: there are no marks."""
        return

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return self._written("event", entities=[{"type": "barge_in", "data": {}}])

    def hang_up(self) -> str:
        """Return the message that ends the session; Genesys answers it with `close`."""
        return self._written("disconnect", reason="completed", outputVariables={})

    def _written(self, kind: str, **parameters: object) -> str:
        self._seq += 1
        return json_text(
            {
                "version": VERSION,
                "id": self._id or "",
                "type": kind,
                "seq": self._seq,
                "clientseq": self._clientseq,
                "parameters": parameters,
            }
        )


def _chosen(offers: tuple[_Offer, ...]) -> _Offer | None:
    """Return the offer with the caller's channel and the fewest others."""
    fitting = [one for one in offers if one.format == "PCMU" and one.rate == FORMAT.rate and "external" in one.channels]
    return min(fitting, key=lambda one: len(one.channels), default=None)


def _milliseconds(duration: str) -> float:
    """Return a duration such as PT1.5S."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise BadMessage("a duration is written as PT1.5S")
    return float(f"{found[1]}.{found[2] or 0}") * 1000


# ---- signatures

NONCE_CHARACTERS = 22
"""Shortest nonce of a handshake: 128 bits as base64."""

_COVERED = frozenset(
    {
        "@request-target", "@authority", "audiohook-organization-id", "audiohook-session-id",
        "audiohook-correlation-id", "x-api-key",
    }
)  # fmt: skip
_PARAMETER = r';([a-z]+)=(?:"([^"\\]*)"|([0-9]{1,15}))'
_SIGNATURE_INPUT = re.compile(
    r'(?P<label>[a-z*][a-z0-9_.*-]*)=(?P<signed>\((?P<names>"[a-z@-]+"(?: "[a-z@-]+")*)\)'
    r'(?P<parameters>(?:;[a-z]+=(?:"[^"\\]*"|[0-9]{1,15}))*))'
)


def genesys_nonce(secret: str, headers: Mapping[str, str], request_target: str, authority: str, now: float) -> str:
    """Return the nonce of a handshake that Genesys has signed with the client secret, "" if it has not.

    `headers` have lower-case names. This is an HTTP message signature as AudioHook uses it: one, with HMAC-SHA256, over
    the six components that AudioHook names.
    """
    found = _SIGNATURE_INPUT.fullmatch(headers.get("signature-input", "").strip())
    key = canonical_base64(secret)
    if found is None or not key:
        return ""
    names = found["names"].replace('"', "").split(" ")
    parameters = {name: text or digits for name, text, digits in re.findall(_PARAMETER, found["parameters"])}
    if not _parameters_fit(parameters, headers, now) or not set(names) >= _COVERED:
        return ""
    derived = {"@request-target": request_target, "@authority": authority}
    values = [derived.get(name, headers.get(name)) for name in names]
    if None in values:
        return ""
    lines = [f'"{name}": {str(value).strip()}' for name, value in zip(names, values, strict=True)]
    text = "\n".join([*lines, f'"@signature-params": {found["signed"]}'])
    right = f"{found['label']}=:{mac(key, text)}:"
    return parameters["nonce"] if same_text(headers.get("signature", "").strip(), right) else ""


def _parameters_fit(parameters: Mapping[str, str], headers: Mapping[str, str], now: float) -> bool:
    created, expires = parameters.get("created", ""), parameters.get("expires", "")
    return (
        parameters.get("alg", "hmac-sha256") == "hmac-sha256"
        and len(parameters.get("nonce", "")) >= NONCE_CHARACTERS
        and same_text(parameters.get("keyid", ""), headers.get("x-api-key", ""))
        and is_number(created)
        and is_recent(int(created), now)
        and (not expires or (is_number(expires) and int(expires) >= now))
    )


def _check_secret(secret: str) -> None:
    if not canonical_base64(secret):
        raise ValueError("the client secret is base64, as Genesys has it")


def _shown(headers: Mapping[str, str]) -> str:
    return headers.get("audiohook-session-id", "")


def _mark(secret: str, request: SignedRequest, now: float) -> str:
    split = urlsplit(request.url)
    target = f"{split.path}?{split.query}" if split.query else split.path
    return genesys_nonce(secret, request.headers, target, split.netloc, now)


GENESYS = TelephoneSystem(
    "genesys",
    Genesys,
    begins=lambda first: first.body.get("type") == "open" and "version" in first.body,
    key=SystemKey("VOXLANE_GENESYS_SECRET", _check_secret, signs_address=False, needs_phone_key=True),
    handshakes=Signing(_shown, _mark, with_phone_key=True),
)

"""What the codecs of the telephone systems share: JSON, base64, formats, keys, and the parameters of a call.

Messages are read leniently: unknown fields are ignored, and numbers may come as text. What is used is checked, and what
is wrong raises BadMessage.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import CallFacts, KeyPressed, LineEvent, Message, UnknownMessage
from voxlane.server.validation import InvalidValue, checked

T = TypeVar("T")

MOST_SOUND_BYTES = 64 * 1024
"""Sound in one message: four seconds of PCM16 at 8 kHz, where 20 ms are usual."""

MOST_CHARACTERS = 128 * 1024
"""Characters of a text message: the largest sound as base64, with room for the rest."""

MOST_PARAMETERS = 64
"""Parameters of a call. Others are dropped, as are those that are too long."""

MOST_PARAMETER_CHARACTERS = 512
"""Characters of a parameter's name, and of its value."""

MOST_NAME_CHARACTERS = 40
"""Characters of an unknown message's name that are kept for the log."""

KEYS = frozenset("0123456789*#ABCD")

LINE_RATES = (8_000, 16_000, 24_000)
"""Sample rates of linear sound on a line."""

Identifier = Annotated[str, Meta(max_length=256)]
MarkName = Annotated[str, Meta(max_length=200)]
Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]

_MULAW = {"pcmu", "mulaw", "ulaw", "g711u", "basic", "x-mulaw", "x-ulaw"}
_ALAW = {"pcma", "alaw", "g711a", "x-alaw"}
_LINEAR = {"l16", "x-l16", "linear16", "pcm16", "slin", "x-raw"}
_SILENCE = {"mulaw": b"\xff", "alaw": b"\xd5", "pcm16": b"\0", "g722": b"\xfa", "opus": b""}


def json_object(message: Message) -> dict[str, Any]:
    """Return a text message as a JSON object."""
    if isinstance(message, bytes):
        raise BadMessage("this message must be text")
    if len(message) > MOST_CHARACTERS:
        raise BadMessage(f"a message has at most {MOST_CHARACTERS} characters")
    try:
        value = msgspec.json.decode(message)
    except (ValueError, RecursionError) as error:  # errors of msgspec and of Unicode are ValueErrors
        raise BadMessage("not JSON, or nested too deeply") from error
    if not isinstance(value, dict):
        raise BadMessage("a message is a JSON object")
    return value


def json_text(value: Mapping[str, object]) -> str:
    """Return a JSON object as text."""
    return msgspec.json.encode(value).decode()


def read_as(kind: type[T], value: object, *, at: str = "") -> T:
    """Return a value as a struct; `at` names its place in errors."""
    try:
        return checked(kind, value, at=at, text=True)
    except InvalidValue as error:
        raise BadMessage(str(error)) from error


def event_name(body: Mapping[str, Any], key: str = "event") -> str:
    """Return the name of a message."""
    name = body.get(key)
    if not isinstance(name, str) or not name:
        raise BadMessage(f"a message has its name in {key}")
    return name


def unknown(name: str) -> UnknownMessage:
    """Return the event for a message that is not known."""
    return UnknownMessage(name[:MOST_NAME_CHARACTERS])


def key_event(key: str | int, name: str) -> LineEvent:
    """Return the event for a pressed key; `name` is that of the message."""
    key = str(key).upper()
    return KeyPressed(key) if key in KEYS else unknown(name)


# ---- sound


def checked_sound(data: bytes, form: AudioFormat) -> bytes:
    """Return sound if it has whole samples and is not too long."""
    if len(data) > MOST_SOUND_BYTES:
        raise BadMessage(f"a message has at most {MOST_SOUND_BYTES} bytes of sound")
    if form.codec == "pcm16" and len(data) % 2:
        raise BadMessage("16-bit audio has an odd number of bytes")
    return data


def decoded_sound(payload: str, form: AudioFormat) -> bytes:
    """Return the sound of a base64 payload."""
    if len(payload) > (MOST_SOUND_BYTES + 2) // 3 * 4:
        raise BadMessage(f"a message has at most {MOST_SOUND_BYTES} bytes of sound")
    try:
        data = base64.b64decode(payload, validate=True)
    except ValueError as error:  # binascii.Error is a ValueError, as is text outside of ASCII
        raise BadMessage("the payload is not base64") from error
    if len(payload) % 4:  # a padding too many is not seen above
        raise BadMessage("the payload is not base64")
    return checked_sound(data, form)


def encoded_sound(data: bytes) -> str:
    """Return sound as a base64 payload."""
    return binascii.b2a_base64(data, newline=False).decode()


def padded(data: bytes, form: AudioFormat, size: int) -> bytes:
    """Return sound, filled up with silence to a multiple of `size` bytes."""
    return data + _SILENCE[form.codec] * (-len(data) % size)


def bytes_of(form: AudioFormat, ms: int) -> int:
    """Return the bytes of so many milliseconds."""
    if form.codec == "g722":
        return 8 * ms
    return form.rate * ms // 1000 * (2 if form.codec == "pcm16" else 1)


def audio_format(encoding: str, rate: int, advice: str) -> AudioFormat:
    """Return the format that a system names; `advice` says what to set if it is not supported.

    A name may hold the rate: "audio/l16;rate=16000".
    """
    name, _, rest = encoding.lower().replace(" ", "").partition(";")
    name = name.removeprefix("audio/")
    for option in rest.split(";"):
        key, _, value = option.partition("=")
        if key == "rate" and value.isascii() and value.isdigit() and len(value) <= 6:
            rate = int(value)
    if name in _MULAW | _ALAW and rate == 8_000:
        return AudioFormat("mulaw" if name in _MULAW else "alaw", rate)
    if name in _LINEAR and rate in LINE_RATES:
        return AudioFormat("pcm16", rate)
    if name == "g722":  # its RTP clock says 8000, its samples are at 16 kHz
        return supported(AudioFormat("g722", 16_000), advice)
    raise BadMessage(f"this format of the sound is not supported: {advice}")


def supported(form: AudioFormat, advice: str) -> AudioFormat:
    """Return a format if this installation has it."""
    if form.codec == "g722" and find_spec("av") is None:
        raise BadMessage(f"G.722 needs PyAV, which this server lacks: {advice}")
    return form


# ---- the call


def scalars(value: object) -> dict[str, str]:
    """Return the texts, numbers and flags of a JSON object, or of a list of objects with name and value."""
    if isinstance(value, list):
        value = {
            one["name"]: one.get("value") for one in value if isinstance(one, dict) and isinstance(one.get("name"), str)
        }
    if not isinstance(value, dict):
        return {}
    return {key: _text(one) for key, one in value.items() if isinstance(one, str | int | float | bool)}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def call_facts(
    system: str, call_id: str, given: Mapping[str, str], *, caller: object = "", called: object = "", token: str = ""
) -> CallFacts:
    """Return the facts of a call. Parameters tell what the system does not: token, from or caller, to or called."""
    given = {key: value for key, value in given.items() if _short(key) and _short(value)}
    token = token if _short(token) else ""
    return CallFacts(
        system,
        call_id,
        _number(caller) or _named(given, ("from", "caller")),
        _number(called) or _named(given, ("to", "called")),
        dict([(key, value) for key, value in given.items() if key.lower() != "token"][:MOST_PARAMETERS]),
        _named(given, ("token",)) or token,
    )


def _short(text: str) -> bool:
    return len(text) <= MOST_PARAMETER_CHARACTERS


def _number(value: object) -> str:
    text = _text(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return text if _short(text) else ""


def _named(given: Mapping[str, str], names: Iterable[str]) -> str:
    lower = {key.lower(): value for key, value in given.items()}
    return next((lower[name] for name in names if lower.get(name)), "")

"""Plain PCM over WebSocket, as a small TOML file maps it. Pure.

Without a file: PCM16 at 16 kHz in binary messages both ways, and the text {"type": "clear"} drops what waits.

A server that takes binary sound and sends JSON, with names of its responses (file 1):

    [send]
    rate = 16000
    hello = { type = "start", sample_rate = 16000, key = "$KEY" }

    [receive]
    rate = 24000
    form = "json"
    audio_type = "audio"
    audio = "/data/pcm"
    response = "/turn_id"
    ready = "started"
    clear = ["interrupted", "clear"]
    done = "audio_end"
    text = "/text"
    text_type = "transcript"

A server that takes JSON and sends binary sound (file 2):

    [headers]
    X-Api-Key = "$KEY"

    [send]
    rate = 8000
    form = "json"
    message = { event = "input" }
    audio = "/sound/base64"
    bye = { event = "end" }

    [receive]
    rate = 8000
    type = "/event"
    clear = "flush"
    error = "failure"
    error_text = "/reason"

A path is a JSON pointer: the keys of an object, or the numbers of a list, each behind a slash. `$KEY` stands for the
key of the environment in headers and messages; without headers the key goes into `Authorization: Bearer`.
"""

from __future__ import annotations

import copy
import tomllib
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.dialects.client_side import ClientSide, MicrophoneFeed, SampleJoiner
from voxlane_lab.dialects.dialect import DialectOptions, LabHandshake
from voxlane_lab.dialects.wire import NotUnderstood, base64_bytes, base64_text, json_body, json_text
from voxlane_lab.errors import LabError
from voxlane_lab.values import Message, Pcm

KEY = "$KEY"

Rate = Annotated[
    int,
    Meta(ge=8_000, le=48_000, multiple_of=50, extra={"rule": "a multiple of 50 from 8000 to 48000"}),
]
Pointer = Annotated[str, Meta(pattern=r"^(/[^/]+)+$", max_length=200, extra={"rule": "a path such as /data/audio"})]
Form = Literal["binary", "json"]
Types = str | list[str]


class PcmSending(Struct, forbid_unknown_fields=True, frozen=True):
    """How the microphone is sent."""

    rate: Rate = 16_000
    form: Annotated[Form, Meta(description="binary, or json with base64")] = "binary"
    message: Annotated[dict[str, Any], Meta(description="what a JSON message holds beside its sound")] = {}
    audio: Annotated[Pointer, Meta(description="where a JSON message has its sound")] = "/audio"
    hello: Annotated[dict[str, Any] | None, Meta(description="the first message")] = None
    bye: Annotated[dict[str, Any] | None, Meta(description="the last message")] = None


class PcmReceiving(Struct, forbid_unknown_fields=True, frozen=True):
    """How the server's messages are read. Text messages are JSON objects."""

    rate: Rate = 16_000
    form: Annotated[Form, Meta(description="binary, or json with base64")] = "binary"
    type: Annotated[Pointer, Meta(description="where a message has its type")] = "/type"
    audio: Annotated[Pointer, Meta(description="where a JSON message has its sound")] = "/audio"
    audio_type: Annotated[Types, Meta(description="types with sound; none: whichever have some")] = []
    response: Annotated[Pointer | None, Meta(description="where a message names its response")] = None
    clear: Annotated[Types, Meta(description="types that drop what waits")] = "clear"
    done: Annotated[Types, Meta(description="types that say that all sound of the response has come")] = []
    ready: Annotated[Types, Meta(description="types that say that the call may begin; none: it may at once")] = []
    text: Annotated[Pointer | None, Meta(description="where a message has words of the response")] = None
    text_type: Annotated[Types, Meta(description="types with words; none: whichever have some")] = []
    error: Annotated[Types, Meta(description="types that say that the call has failed")] = []
    error_text: Annotated[Pointer | None, Meta(description="where such a message says why")] = None


class PcmMapping(Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    headers: dict[str, str] = {}
    send: PcmSending = PcmSending()
    receive: PcmReceiving = PcmReceiving()


def read_mapping(text: str) -> PcmMapping:
    """Return the mapping of a file; raise LabError with one line that names the place."""
    try:
        mapping = checked(PcmMapping, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"the mapping: not TOML: {error}") from None
    except WrongShape as error:
        raise LabError(f"the mapping: {error}") from None
    try:
        _put(copy.deepcopy(mapping.send.message), mapping.send.audio, "")
    except TypeError:
        raise LabError("the mapping: send.audio leads through a value of send.message that is no table") from None
    return mapping


class PcmClient(ClientSide):
    """One call in plain PCM."""

    name = "pcm"

    def __init__(self, options: DialectOptions) -> None:
        mapping = read_mapping(options.mapping)
        super().__init__(options, mapping.receive.rate)
        self.names_responses = mapping.receive.response is not None
        self._headers, self._send, self._rules = mapping.headers, mapping.send, mapping.receive
        self._microphone = MicrophoneFeed(mapping.send.rate)
        self._joiner = SampleJoiner()
        self._response = "unnamed" if self.names_responses else ""

    # ---- what the client says

    def handshake(self) -> LabHandshake:
        """Return how to connect."""
        key = self._options.key
        usual = {"Authorization": f"Bearer {key}"} if key else {}
        return LabHandshake(self._options.url, self._with_key(self._headers) or usual)

    def open(self, at_s: float) -> list[Message]:
        """Return the hello, if there is one."""
        self.ready = not self._rules.ready
        return self._sent(at_s, "hello", self._send.hello)

    def say(self, pcm: Pcm, at_s: float) -> list[Message]:
        """Return the message that carries 20 ms of the microphone."""
        data = self._microphone.push(pcm).astype("<i2").tobytes()
        if self._send.form == "binary":
            return [data]
        message = self._with_key(self._send.message)
        _put(message, self._send.audio, base64_text(data))
        return [json_text(message)]

    def due(self, at_s: float) -> list[Message]:
        """Return nothing: the server is not told what was played."""
        return []

    def close(self, at_s: float) -> list[Message]:
        """Return the bye, if there is one."""
        return self._sent(at_s, "bye", self._send.bye)

    def _sent(self, at_s: float, name: str, message: dict[str, Any] | None) -> list[Message]:
        if message is None:
            return []
        full = self._with_key(message)
        self._note_body(at_s, "sent", name, full)
        return [json_text(full)]

    def _with_key(self, value: Any) -> Any:
        """Return a copy of a value in which the key stands for $KEY."""
        if isinstance(value, dict):
            return {name: self._with_key(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._with_key(one) for one in value]
        return value.replace(KEY, self._options.key) if isinstance(value, str) else value

    # ---- what the server says

    def _read(self, message: Message, at_s: float) -> list[Message]:
        if isinstance(message, str):
            self._read_json(json_body(message), at_s)
        elif self._rules.form == "json":
            raise NotUnderstood("a binary message, and the mapping says that its sound is in JSON")
        else:
            self._add(message, at_s)
        return []

    def _read_json(self, body: dict[str, Any], at_s: float) -> None:
        rules = self._rules
        kind = _found(body, rules.type)
        named = None if rules.response is None else _found(body, rules.response)
        if isinstance(named, str | int):
            self._response = str(named)
        if self._has_sound(kind, body):
            self._add(base64_bytes(_found(body, rules.audio)), at_s)
        else:
            self._note_body(at_s, "got", kind if isinstance(kind, str) else "message", body)
        self._take_words(kind, body)
        if _among(kind, rules.ready):
            self.ready = True
        if _among(kind, rules.clear):
            self._drop(at_s)
        if _among(kind, rules.done) and self.names_responses:
            self.finished.add(self._response)
        if _among(kind, rules.error):
            why = None if rules.error_text is None else _found(body, rules.error_text)
            self.failure = f"the server ended the call: {self._told(None, why)}"

    def _has_sound(self, kind: object, body: dict[str, Any]) -> bool:
        if self._rules.form == "binary":
            return False
        if self._rules.audio_type:
            return _among(kind, self._rules.audio_type)
        return _found(body, self._rules.audio) is not None

    def _add(self, data: bytes, at_s: float) -> None:
        self._arrived(self._response, self._joiner.push(self._response, data), at_s)

    def _take_words(self, kind: object, body: dict[str, Any]) -> None:
        rules = self._rules
        if rules.text is None or (rules.text_type and not _among(kind, rules.text_type)):
            return
        words = _found(body, rules.text)
        if isinstance(words, str):
            self.texts[self._response] = self.texts.get(self._response, "") + words


def _among(kind: object, types: Types) -> bool:
    return kind == types if isinstance(types, str) else kind in types


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _found(body: Any, path: str) -> Any:
    """Return what lies at a path; None: nothing."""
    for step in _steps(path):
        if isinstance(body, dict):
            body = body.get(step)
        elif isinstance(body, list) and step.isascii() and step.isdigit() and int(step[:6]) < len(body):
            body = body[int(step[:6])]
        else:
            return None
    return body


def _put(body: dict[str, Any], path: str, value: str) -> None:
    """Put a value at a path of an object; tables that are missing are made."""
    *outer, last = _steps(path)
    for step in outer:
        body = body.setdefault(step, {})
        if not isinstance(body, dict):
            raise TypeError(step)
    body[last] = value

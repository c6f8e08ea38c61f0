"""The client's side of OpenAI Realtime (GA) over WebSocket, for any server that speaks it. Pure.

It does as OpenAI's own clients do. On `input_audio_buffer.speech_started` it drops what waits, says with
`conversation.item.truncate` how much of the item was played, and refuses what still comes of that response. There is
no pause in this dialect. The beta's names of events are understood, too. A naive client ignores speech_started.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from voxlane_lab.dialects.client_side import NO_ARGUMENTS, ClientSide, MicrophoneFeed, SampleJoiner, ToolTable
from voxlane_lab.dialects.dialect import DialectOptions, LabHandshake
from voxlane_lab.dialects.wire import NotUnderstood, base64_bytes, base64_text, fields_as, json_body, json_text
from voxlane_lab.values import Message, Pcm

RATE = 24_000
UPDATED_S = 2.0
"""A server that has created the session and does not say within this time that it is updated is taken as ready."""

FATAL = frozenset(
    {
        "account_deactivated",
        "authentication_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_quota",
        "invalid_api_key",
        "model_not_found",
        "permission_error",
        "session_expired",
    }
)
"""Codes and types of errors after which a conversation cannot go on."""

_FORMAT = {"type": "audio/pcm", "rate": RATE}

Name = str | int | None


class _Delta(Struct):
    delta: Any = None
    response_id: Name = None
    item_id: Name = None
    content_index: int | None = None


class _Done(Struct):
    response_id: Name = None
    item_id: Name = None
    transcript: str | None = None
    text: str | None = None


class _Fault(Struct):
    type: Any = None
    code: Any = None
    message: Any = None


class _Details(Struct):
    error: _Fault | None = None


class _Response(Struct):
    id: Name = None
    status: str | None = None
    status_details: _Details | None = None


class _OfResponse(Struct):
    response: _Response


class _Call(Struct):
    call_id: str
    name: str | None = None


class _Item(Struct):
    type: Any = None
    id: Name = None
    call_id: str | None = None
    name: str | None = None


class _OfItem(Struct):
    item: _Item


class _Format(Struct):
    type: str | None = None
    rate: int | None = None


class _Output(Struct):
    format: Any = None


class _Audio(Struct):
    output: _Output | None = None


class _Session(Struct):
    audio: _Audio | None = None


class _OfSession(Struct):
    session: _Session | None = None


class _Error(Struct):
    error: _Fault | None = None


Body = dict[str, Any]
Reader = Callable[[Body, float], list[Message]]


class _Piece(Struct, frozen=True):
    """An item's part of a response's sound."""

    item: str
    content: int
    first: int  # the place of its first sample in the response


class RealtimeClient(ClientSide):
    """One call in OpenAI Realtime."""

    name = "realtime"

    def __init__(self, options: DialectOptions) -> None:
        super().__init__(options, RATE)
        self._microphone = MicrophoneFeed(RATE)
        self._joiner = SampleJoiner()
        self._tools = ToolTable(options.tools)
        self._tool_names: dict[str, str] = {}  # by call
        self._asks = False  # a response must be asked for when the tools' results are told
        self._created_s: float | None = None
        self._running: dict[str, None] = {}  # responses that have begun and are not over, in order
        self._over: set[str] = set()  # responses of which nothing more is played
        self._pieces: dict[str, list[_Piece]] = {}  # by response
        self._readers = self._all_readers()

    # ---- what the client says

    def handshake(self) -> LabHandshake:
        """Return how to connect; the model goes into the query unless the address names one."""
        parts = urlsplit(self._options.url)
        query = parts.query
        if self._options.model and "model" not in parse_qs(query):
            query = "&".join(filter(None, (query, urlencode({"model": self._options.model}))))
        headers = {"Authorization": f"Bearer {self._options.key}"} if self._options.key else {}
        return LabHandshake(urlunsplit(parts._replace(query=query)), headers)

    def open(self, at_s: float) -> list[Message]:
        """Return the session's settings; when a turn is over is left to the server, unless the run says how."""
        options = self._options
        output: Body = {"format": _FORMAT, **({"voice": options.voice} if options.voice else {})}
        heard: Body = {"format": _FORMAT}
        if options.turn_detection:
            heard["turn_detection"] = {"type": options.turn_detection}
        session: Body = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "audio": {"input": heard, "output": output},
        }
        if options.instructions:
            session["instructions"] = options.instructions
        if options.tools:
            session["tool_choice"] = "auto"
            session["tools"] = [
                {"type": "function", "name": one.name, "description": one.description, "parameters": NO_ARGUMENTS}
                for one in options.tools
            ]
        return [self._sent(at_s, "session.update", session=session)]

    def say(self, pcm: Pcm, at_s: float) -> list[Message]:
        """Return the message that carries 20 ms of the microphone."""
        sound = base64_text(self._microphone.push(pcm).astype("<i2").tobytes())
        return [json_text({"type": "input_audio_buffer.append", "audio": sound})]

    def due(self, at_s: float) -> list[Message]:
        """Return the results of tools, and the request for a response behind the last of them."""
        if self._created_s is not None and at_s - self._created_s >= UPDATED_S:
            self.ready = True
        sent = []
        for answer in self._tools.due(at_s):
            item = {"type": "function_call_output", "call_id": answer.call_id, "output": answer.output}
            sent.append(self._sent(at_s, "conversation.item.create", item=item))
        self.calling_tool = self._tools.waiting
        # A second response at the same time is an error, and the one that made the call may not be over.
        if self._asks and not self._tools.waiting and not self._running:
            self._asks = False
            sent.append(self._sent(at_s, "response.create"))
        return sent

    def close(self, at_s: float) -> list[Message]:
        """Return nothing: a client closes the connection."""
        return []

    def _sent(self, at_s: float, kind: str, **fields: Any) -> Message:
        self._note_body(at_s, "sent", kind, fields)
        return json_text({"type": kind, **fields})

    # ---- what the server says

    def _all_readers(self) -> dict[str, Reader]:
        sounds: dict[str, Reader] = {}
        for prefix in ("response.output_audio", "response.audio"):  # GA and beta
            sounds[f"{prefix}.delta"] = self._sound
            sounds[f"{prefix}.done"] = self._sound_done
            sounds[f"{prefix}_transcript.delta"] = self._words
            sounds[f"{prefix}_transcript.done"] = self._all_words
        return {
            **sounds,
            "session.created": self._session_created,
            "session.updated": self._session_updated,
            "response.output_text.delta": self._words,
            "response.output_text.done": self._all_words,
            "response.created": self._response_created,
            "response.done": self._response_done,
            "response.output_item.added": self._item_added,
            "response.output_item.done": self._item_done,
            "response.function_call_arguments.done": self._called,
            "input_audio_buffer.speech_started": self._speech_started,
            "error": self._error,
        }

    def _read(self, message: Message, at_s: float) -> list[Message]:
        body = json_body(message)
        kind = body.pop("type", None)
        if not isinstance(kind, str):
            raise NotUnderstood("an event without a type")
        reader = self._readers.get(kind)
        if reader != self._sound:
            body.pop("event_id", None)
            # A session may hold a client's secret: it stays out of the log.
            self._note_body(at_s, "got", kind, {} if kind.startswith("session.") else body)
        return [] if reader is None else reader(body, at_s)

    def _session_created(self, body: Body, at_s: float) -> list[Message]:
        self._created_s = at_s
        return []

    def _session_updated(self, body: Body, at_s: float) -> list[Message]:
        session = fields_as(_OfSession, body, "session.updated").session
        output = session and session.audio and session.audio.output
        if output and isinstance(output.format, dict):
            form = fields_as(_Format, output.format, "session.updated")
            if form.type not in (None, "audio/pcm") or form.rate not in (None, RATE):
                raise NotUnderstood(f"a session whose sound is not PCM at {RATE} Hz")
        self.ready = True
        return []

    def _response_created(self, body: Body, at_s: float) -> list[Message]:
        response = _name(fields_as(_OfResponse, body, "response.created").response.id)
        if response:
            self._running[response] = None
        return []

    def _sound(self, body: Body, at_s: float) -> list[Message]:
        told = fields_as(_Delta, body, "response.output_audio.delta")
        response = self._response(told.response_id, told.item_id)
        pcm = self._joiner.push(response, base64_bytes(told.delta))
        piece = _Piece(_name(told.item_id), told.content_index or 0, self.speaker.length(response))
        pieces = self._pieces.setdefault(response, [])
        if not pieces or (pieces[-1].item, pieces[-1].content) != (piece.item, piece.content):
            pieces.append(piece)
        if response not in self._over:
            self.finished.discard(response)
        self._arrived(response, pcm, at_s, late=response in self._over)
        return []

    def _sound_done(self, body: Body, at_s: float) -> list[Message]:
        told = fields_as(_Done, body, "response.output_audio.done")
        self.finished.add(self._response(told.response_id, told.item_id))
        return []

    def _words(self, body: Body, at_s: float) -> list[Message]:
        told = fields_as(_Delta, body, "transcript")
        if not isinstance(told.delta, str):
            raise NotUnderstood("a transcript that is not a text")
        response = self._response(told.response_id, told.item_id)
        self.texts[response] = self.texts.get(response, "") + told.delta
        return []

    def _all_words(self, body: Body, at_s: float) -> list[Message]:
        """Take a whole transcript from a server that sent no deltas."""
        told = fields_as(_Done, body, "transcript")
        words = told.transcript or told.text
        if words:
            self.texts.setdefault(self._response(told.response_id, told.item_id), words)
        return []

    def _response_done(self, body: Body, at_s: float) -> list[Message]:
        told = fields_as(_OfResponse, body, "response.done").response
        response = _name(told.id) or self._newest()
        self._running.pop(response, None)
        self._over.add(response)
        self.finished.add(response)
        if told.status == "failed" and told.status_details and told.status_details.error:
            self._complain(told.status_details.error)
        return []

    def _speech_started(self, body: Body, at_s: float) -> list[Message]:
        """Stop the loudspeaker, and tell the server what was played."""
        self._asks = False  # the person's turn has a response of its own
        heard = self.speaker.playing or next((one for one in reversed(self._running) if one in self._pieces), None)
        if heard is None or self._options.naive:
            return []
        truncation = self._truncation(heard, at_s)
        self._drop(at_s)
        self._over.update(self._pieces)
        return truncation

    def _truncation(self, response: str, at_s: float) -> list[Message]:
        played = self.speaker.played.get(response, 0)
        reached = [piece for piece in self._pieces[response] if piece.first <= played]
        piece = reached[-1]
        if not piece.item:
            return []
        fields = {
            "item_id": piece.item,
            "content_index": piece.content,
            "audio_end_ms": (played - piece.first) * 1000 // RATE,
        }
        return [self._sent(at_s, "conversation.item.truncate", **fields)]

    # ---- tools

    def _item_added(self, body: Body, at_s: float) -> list[Message]:
        item = fields_as(_OfItem, body, "response.output_item.added").item
        if item.type == "function_call" and item.call_id and item.name:
            self._tool_names[item.call_id] = item.name
        return []

    def _item_done(self, body: Body, at_s: float) -> list[Message]:
        item = fields_as(_OfItem, body, "response.output_item.done").item
        if item.type == "function_call" and item.call_id:
            self._call(item.call_id, item.name, at_s)
        return []

    def _called(self, body: Body, at_s: float) -> list[Message]:
        told = fields_as(_Call, body, "response.function_call_arguments.done")
        self._call(told.call_id, told.name, at_s)
        return []

    def _call(self, call_id: str, name: str | None, at_s: float) -> None:
        if self._tools.call(call_id, name or self._tool_names.get(call_id, ""), at_s):
            self._asks = self.calling_tool = True

    # ---- errors

    def _error(self, body: Body, at_s: float) -> list[Message]:
        fault = fields_as(_Error, body, "error").error or _Fault(message=body.get("message"), code=body.get("code"))
        self._complain(fault)
        if not self.ready and not self.failure:
            self.failure = f"the server refused the session: {self._words_of(fault)}"
        return []

    def _complain(self, fault: _Fault) -> None:
        self.complaint = f"the server says {self._words_of(fault)}"
        if FATAL.intersection(one for one in (fault.code, fault.type) if isinstance(one, str)):
            self.failure = f"the server ended the call: {self._words_of(fault)}"

    def _words_of(self, fault: _Fault) -> str:
        code = fault.code or fault.type
        # Servers repeat a part of a wrong key in their message.
        about_key = isinstance(code, str) and ("key" in code or "auth" in code)
        return self._told(code, None if about_key else fault.message)

    # ---- names

    def _response(self, response: Name, item: Name) -> str:
        """Return the name of a response; of one that is not named, the newest."""
        return _name(response) or self._newest() or _name(item) or "response"

    def _newest(self) -> str:
        return next(reversed(self._running), "")


def _name(given: Name) -> str:
    return "" if given is None else str(given)

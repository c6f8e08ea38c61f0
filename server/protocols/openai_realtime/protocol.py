"""OpenAI Realtime (GA) over WebSocket: JSON text both ways, the server speaks first; docs/openai.md lists the events.

An invalid event is answered with an `error` event and changes nothing. Only a binary message or one over the size limit
ends the connection. Everything from a client is checked before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from voxlane.server import limits
from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import Item, SessionConfig
from voxlane.server.protocols import dialect
from voxlane.server.protocols.dialect import (
    BadMessage,
    Capabilities,
    Complaint,
    Dialect,
    Handshake,
    Hello,
    Incoming,
    Outgoing,
    Packet,
    RateLimits,
)
from voxlane.server.protocols.openai_realtime.exchange import Exchange
from voxlane.server.protocols.openai_realtime.items import KnownItems, read_item, shown_item
from voxlane.server.protocols.openai_realtime.listening import PersonTurns
from voxlane.server.protocols.openai_realtime.packets import Event, packet
from voxlane.server.protocols.openai_realtime.responses import ResponseSettings
from voxlane.server.protocols.openai_realtime.session import (
    FORMATS,
    RealtimeSession,
    configuration,
    shown,
    transcribes,
    usual_session,
)
from voxlane.server.protocols.openai_realtime.update import ResponseOptions, overridden, updated
from voxlane.server.protocols.openai_realtime.values import ItemName, Name, Wrong, parse, read, sound
from voxlane.server.protocols.sound import Microphone

SUBPROTOCOL = "realtime"

BETA_HEADER, BETA_SUBPROTOCOL = "realtime=v1", "openai-beta.realtime-v1"
"""How a client says that it speaks the beta version. Clients of the GA version send neither."""

BETA_REFUSED = (
    "The beta of Realtime is not served: use the GA client (client.realtime, not client.beta.realtime). "
    "Leave out the OpenAI-Beta header; session.audio.input and session.audio.output have what was flat in session, "
    "output_modalities what was in modalities"
)

PIECE_BYTES = 24_000
"""Sound in one Audio event: half a second. Clients may send half a minute at once, which takes 100 ms to convert."""

LONGEST_S = 86_400.0
"""Longer than any reply: a truncation beyond the end cuts nothing."""

EventId = Annotated[str, Meta(max_length=512)]

_REF = "="
"""Prefix of the client's event_id: a fault with a ref comes from a client event, even one without an id."""


class _Truncation(Struct):
    audio_end_ms: Annotated[float, Meta(ge=0, le=LONGEST_S * 1000)]
    content_index: Annotated[float, Meta(ge=0, le=0)] = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The settings that a conversation begins with."""

    session: RealtimeSession
    usual: RealtimeSession  # values for settings that a client sets to null
    base: SessionConfig
    capabilities: Capabilities


_NO_OPENING = Opening(RealtimeSession(), RealtimeSession(), SessionConfig(), Capabilities("", "", "", "", (), (), ()))


def opening(handshake: Handshake, defaults: SessionConfig) -> Hello:
    """Return the Hello of a client from its query and the session of its client secret; refuse the beta version."""
    if BETA_HEADER in handshake.beta or BETA_SUBPROTOCOL in handshake.offered:
        raise BadMessage(BETA_REFUSED)
    capabilities = handshake.capabilities
    try:
        model = read(Name, handshake.query.get("model", ""), "model")
        session = usual = usual_session(defaults, capabilities, model)
        if handshake.query.get("intent") == "transcription":
            session = updated(session, {"type": "transcription"}, usual)
        if handshake.session is not None:
            session = updated(session, dict(handshake.session), usual)
        config = configuration(session, defaults, capabilities)
    except Wrong as wrong:
        raise BadMessage(str(wrong)) from wrong
    return Hello(config=config, opening=Opening(session, usual, defaults, capabilities))


class OpenAIRealtime:
    """One conversation in OpenAI's dialect."""

    def __init__(self, hello: Hello, session_rate: int) -> None:
        begun = hello.opening if isinstance(hello.opening, Opening) else _NO_OPENING
        self._session, self._usual = begun.session, begun.usual
        self._base, self._capabilities = begun.base, begun.capabilities
        self._config = hello.config
        self._name = ""  # the conversation's short name
        self._microphone = Microphone(FORMATS[self._session.input_format])
        self._heard_before_s = 0.0  # seconds of audio in earlier formats
        self._known = KnownItems()
        self._turns = PersonTurns(self._known, self.heard_s)
        self._turns.transcribes, self._turns.policy = transcribes(self._session), self._config.turns
        self._responses = Exchange(self._known, session_rate)
        self._fault: server_events.Fault | None = None  # the fault of a turn that is about to end
        self._made = 0  # number of ids made

    def sound(self, message: bytes) -> None:
        """Return None: messages are texts."""

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds."""
        return self._heard_before_s + self._microphone.seconds

    def session_samples(self, played: client_events.Played) -> client_events.Played:
        """Return the position unchanged: clients of this dialect do not report one."""
        return played

    def write(self, packet: Packet, sequence: int) -> bytes | str:
        """Return a packet's text with its sequence number."""
        event: Any = packet.fields[0]
        return json.dumps({"event_id": f"event_{sequence}", **event}, ensure_ascii=False, separators=(",", ":"))

    # ---- events of the client

    def decode(self, message: bytes | str) -> Iterable[Incoming]:
        """Return the events of a message, a Complaint if it is not valid; raise BadMessage if it is not text."""
        if isinstance(message, bytes):
            raise BadMessage("messages are text")
        event_id = ""
        try:
            event = parse(message)
            event_id = read(EventId | None, event.get("event_id"), "event_id") or ""
            kind = read(Name, event.get("type"), "type")
            if kind not in _READERS:
                raise Wrong("type", "is not that of a client event")
            return _READERS[kind](self, event, _REF + event_id)
        except Wrong as wrong:
            return [Complaint(wrong.code, str(wrong), wrong.param, _REF + event_id)]

    def update(self, event: Event, _: str) -> list[Incoming]:
        """Apply a session update; all of it, or nothing."""
        session = updated(self._session, event.get("session"), self._usual)
        config = configuration(session, self._base, self._capabilities)
        if session.input_format != self._session.input_format:
            self._heard_before_s = self.heard_s()
            self._microphone = Microphone(FORMATS[session.input_format])
        self._session, self._config = session, config
        self._turns.transcribes, self._turns.policy = transcribes(session), config.turns
        return [client_events.ConfigureSession(config)]

    def append(self, event: Event, _: str) -> Iterable[Incoming]:
        """Yield the sound as Audio events, converted lazily piece by piece."""
        data = sound("audio", read(str, event.get("audio"), "audio"))
        if len(data) % 2 and self._session.input_format == "audio/pcm":
            raise Wrong("audio", "has an odd number of bytes, of 16-bit samples")
        return (
            client_events.Audio(pcm)
            for at in range(0, len(data), PIECE_BYTES)
            if (pcm := self._microphone.push(data[at : at + PIECE_BYTES]))
        )

    def place(self, event: Event, ref: str) -> list[Incoming]:
        """Read an item to be placed."""
        item, pcm = read_item("item", event.get("item"), self._new_id("item"), FORMATS[self._session.input_format])
        after = read(Name | None, event.get("previous_item_id"), "previous_item_id")
        return [client_events.PlaceItem(item, "" if after == "root" else after, pcm, ref)]

    def truncate(self, event: Event, ref: str) -> list[Incoming]:
        """Read conversation.item.truncate: where the client stopped playing. replies/editing.py cuts the item."""
        name = self._item(event)
        cut = read(_Truncation, event, "")
        self._responses.truncate(name)
        return [client_events.CutItem(name, cut.audio_end_ms / 1000, ref)]

    def respond(self, event: Event, ref: str) -> list[Incoming]:
        """Read a request for a response."""
        if self._session.type != "realtime":
            raise Wrong("", "A session of type transcription has no responses")
        asked = event.get("response")
        options = read(ResponseOptions, {} if asked is None else asked, "response")
        session = overridden(self._session, options, self._usual)
        config = configuration(session, self._base, self._capabilities, "response")
        aside = options.conversation == "none"
        entries = None if options.input is None else self._input(options.input)
        tag = self._new_id("tag")
        self._responses.ask(tag, ResponseSettings(session, config.speaks, options.metadata, aside))
        return [client_events.Respond(config, tag, aside, entries, ref)]

    def _input(self, given: list[Any]) -> tuple[Item | str, ...]:
        entries: list[Item | str] = []
        for place, entry in enumerate(given):
            at = f"response.input[{place}]"
            if isinstance(entry, dict) and entry.get("type") == "item_reference":
                entries.append(read(ItemName, entry.get("id"), f"{at}.id"))
                continue
            item, pcm = read_item(at, entry, self._new_id("item"), FORMATS[self._session.input_format])
            if pcm:
                raise Wrong(at, "must be text: create an item of the audio and refer to it", "unsupported_parameter")
            entries.append(item)
        return tuple(entries)

    def cancel(self, event: Event, ref: str) -> list[Incoming]:
        """Read a cancel of a response."""
        name = read(Name | None, event.get("response_id"), "response_id")
        if name is None:
            return [client_events.CancelReply(None, ref)] if self._responses.cancel_any() else []
        return [client_events.CancelReply(self._responses.cancel(name), ref)]

    def clear_output(self, _: Event, __: str) -> list[Incoming]:
        """Refuse output_audio_buffer.clear; call_codec.py obeys it."""
        rule = "is for WebRTC only: over a WebSocket the output buffer is the client's"
        raise Wrong("type", rule, "unsupported_event")

    def show(self, event: Event, ref: str) -> list[Incoming]:
        """Read a request to show an item."""
        return [client_events.ShowItem(self._item(event), ref)]

    def drop(self, event: Event, ref: str) -> list[Incoming]:
        """Read a request to delete an item."""
        return [client_events.DropItem(self._item(event), ref)]

    def _item(self, event: Event) -> str:
        name: str = read(Name, event.get("item_id"), "item_id")
        if name not in self._known:  # a reply's item is known from its first word on
            what = event["type"].rpartition(".")[2]
            raise Wrong("item_id", "is not that of an item", f"item_{what}_invalid_item_id")
        return name

    def _new_id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._name}_{self._made}"

    # ---- events to the client

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return the packets for an event."""
        match event:
            case (
                server_events.Speech()
                | server_events.ReplyText()
                | server_events.ToolCalled()
                | server_events.Thought()
                | server_events.SpeechDone()
                | server_events.ReplyDone()
            ):
                return self._responses.encode(event)
            case server_events.ReplyStarted():
                return self._responses.start(event, self._name, ResponseSettings(self._session, self._config.speaks))
            case server_events.Interrupted(epoch):
                closing, aside = self._responses.interrupt(epoch)
                return closing if aside else self._turns.interrupted(closing)
            case server_events.Hold():
                self._turns.hold()
            case server_events.Release():
                self._turns.release()
            case server_events.TurnDone(how=how):
                fault = self._fault
                if how == "failed" and fault is not None and fault.code != "engine_lost":
                    self._fault = None
                return self._turns.encode(event, fault)
            case (
                server_events.SpeechStarted()
                | server_events.SpeechStopped()
                | server_events.UserWords()
                | server_events.UserTurn()
                | server_events.InputCommitted()
                | server_events.IdleTimeout()
            ):
                return self._turns.encode(event)
            case server_events.InputCleared():
                return self._turns.clear()
            case server_events.Fault():
                return self._fail(event)
            case _:
                return self._encode_other(event)
        return []

    def _encode_other(self, event: Outgoing) -> list[Packet]:
        """Return the packets for an event that belongs to neither a turn nor a reply."""
        match event:
            case dialect.SessionReady():
                self._name = event.session.rpartition("-")[2]
                self._turns.session = event.session
                session = shown(self._session, f"sess_{self._name}")
                # Beside the session, not in it: clients send the session back.
                recorded = {"recorded": list(event.recorded)} if event.recorded else {}
                return [packet("session.created", session=session, **recorded)]
            case server_events.Configured():
                return [packet("session.updated", session=shown(self._session, f"sess_{self._name}"))]
            case server_events.ItemPlaced(item, after):
                placed = {"previous_item_id": self._known.add(item.id, after), "item": shown_item(item)}
                return [packet("conversation.item.added", **placed), packet("conversation.item.done", **placed)]
            case server_events.ItemShown(item):
                return [packet("conversation.item.retrieved", item=shown_item(item))]
            case server_events.ItemDropped(name):
                self._known.drop(name)
                return [packet("conversation.item.deleted", item_id=name)]
            case server_events.ItemCut(name, seconds):
                fields = {"item_id": name, "content_index": 0, "audio_end_ms": round(seconds * 1000)}
                return [packet("conversation.item.truncated", **fields)]
            case Complaint(code, message, param, ref):
                return [_error("invalid_request_error", code, message, param, ref)]
            case dialect.ConnectionEnd(kind, code, message):
                return [_error(kind, code, message)]
            case _:  # states, latencies and the like: the dialect has no event for them
                return []

    def _fail(self, fault: server_events.Fault) -> list[Packet]:
        """Return an `error` event only for a fault that a client event caused; others end a response or transcription.

        Some clients take every `error` for the end of the conversation.
        """
        if fault.ref:
            self._responses.refused()
            return [_error("invalid_request_error", fault.code, fault.message, None, fault.ref)]
        if not self._responses.fail(fault):
            self._fault = fault
        return []


def _error(kind: str, code: str, message: str, param: str | None = None, ref: str = "") -> Packet:
    event_id = ref.removeprefix(_REF) or None
    return packet("error", error={"type": kind, "code": code, "message": message, "param": param, "event_id": event_id})


_READERS: dict[str, Callable[[OpenAIRealtime, Event, str], Iterable[Incoming]]] = {
    "session.update": OpenAIRealtime.update,
    "input_audio_buffer.append": OpenAIRealtime.append,
    "input_audio_buffer.commit": lambda _, __, ref: [client_events.CommitInput(ref)],
    "input_audio_buffer.clear": lambda _, __, ___: [client_events.ClearInput()],
    "conversation.item.create": OpenAIRealtime.place,
    "conversation.item.retrieve": OpenAIRealtime.show,
    "conversation.item.delete": OpenAIRealtime.drop,
    "conversation.item.truncate": OpenAIRealtime.truncate,
    "response.create": OpenAIRealtime.respond,
    "response.cancel": OpenAIRealtime.cancel,
    "output_audio_buffer.clear": lambda codec, event, ref: codec.clear_output(event, ref),
}
"""Client event type -> the function that reads it."""

RATE_LIMITS = RateLimits(
    frame_bytes=limits.REALTIME_FRAME_BYTES,
    frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
    frames_burst=limits.REALTIME_FRAMES_BURST,
    bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
    bytes_burst=limits.REALTIME_BYTES_BURST,
    audio_rate=limits.VOICE_AUDIO_RATE,
    audio_burst_s=limits.REALTIME_AUDIO_BURST_SECONDS,
)

REALTIME = Dialect(
    SUBPROTOCOL,
    RATE_LIMITS,
    OpenAIRealtime,
    opening=opening,
    subprotocol_needed=False,
    resumable=False,
    any_voice=True,
    name="realtime",
)

"""OpenAI Realtime (GA) over WebSocket: JSON text both ways, the server speaks first; docs/openai.md says what is in it.

What is wrong with an event is told in an `error` event and changes nothing; only a binary message, or one over the size
limit, ends the connection. Everything is checked before it is believed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from voxlane.server import events, limits
from voxlane.server.events import SessionConfig
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
    Pace,
    Packet,
)
from voxlane.server.protocols.realtime_items import INPUT_ITEMS, KnownItems, read_item, shown_item
from voxlane.server.protocols.realtime_listening import Listening
from voxlane.server.protocols.realtime_packets import Event, packet
from voxlane.server.protocols.realtime_responses import Response, Wish
from voxlane.server.protocols.realtime_session import (
    FORMATS,
    RealtimeSession,
    configuration,
    shown,
    transcribes,
    usual_session,
)
from voxlane.server.protocols.realtime_update import overridden, updated
from voxlane.server.protocols.realtime_values import (
    Wrong,
    choice,
    listing,
    mapping,
    metadata,
    number,
    parse,
    sound,
    text,
)
from voxlane.server.protocols.sound import Microphone

SUBPROTOCOL = "realtime"

PIECE_BYTES = 24_000
"""Of sound, in one event: half a second. Clients may send half a minute at once, which takes 100 ms to convert."""

LONGEST_S = 86_400.0
"""No reply is that long: a truncation beyond the end is one to the end."""

WISHES = 64
"""Responses that were asked for and have not begun; what is older was refused."""

_REF = "="
"""Before the client's event_id, so that what a client did is told from what befell it, also without an id."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a conversation begins with."""

    session: RealtimeSession
    usual: RealtimeSession  # what a null stands for
    base: SessionConfig
    capabilities: Capabilities


_NOBODY = Opening(RealtimeSession(), RealtimeSession(), SessionConfig(), Capabilities("", "", "", "", (), (), ()))


def opening(handshake: Handshake, defaults: SessionConfig) -> Hello:
    """Return how a client wants to converse, from its address and from what its secret stands for."""
    capabilities = handshake.capabilities
    try:
        model = text("model", handshake.query.get("model", ""))
        session = usual = usual_session(defaults, capabilities, model)
        if handshake.query.get("intent") == "transcription":
            session = updated(session, {"type": "transcription"}, usual)
        if handshake.session is not None:
            session = updated(session, dict(handshake.session), usual)
        config = configuration(session, defaults, capabilities)
    except Wrong as wrong:
        raise BadMessage(str(wrong)) from wrong
    return Hello(config=config, wishes=Opening(session, usual, defaults, capabilities))


class OpenAIRealtime:
    """One conversation in OpenAI's dialect."""

    def __init__(self, hello: Hello, session_rate: int) -> None:
        begun = hello.wishes if isinstance(hello.wishes, Opening) else _NOBODY
        self._session, self._usual = begun.session, begun.usual
        self._base, self._capabilities = begun.base, begun.capabilities
        self._config = hello.config
        self._rate = session_rate
        self._name = ""  # of the conversation
        self._microphone = Microphone(FORMATS[self._session.input_format])
        self._heard_before_s = 0.0  # in formats before this one
        self._known = KnownItems()
        self._listening = Listening(self._known, self.heard_s)
        self._listening.transcribes = transcribes(self._session)
        self._responses: dict[int, Response] = {}  # under way, by epoch
        self._wishes: dict[str, Wish] = {}  # by tag
        self._fault: events.Fault | None = None  # what is wrong with a turn that is about to end
        self._cut_short = False  # the last response, by the person
        self._cancels_next = False
        self._made = 0  # ids

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds."""
        return self._heard_before_s + self._microphone.seconds

    def session_samples(self, played: events.Played) -> events.Played:
        """Return a position of the client's player, which this dialect's clients do not tell."""
        return played

    def write(self, packet: Packet, sequence: int) -> str:
        """Return a packet's text under its number."""
        event: Any = packet.fields[0]
        return json.dumps({"event_id": f"event_{sequence}", **event}, ensure_ascii=False, separators=(",", ":"))

    # ---- what a client says

    def decode(self, message: bytes | str) -> Iterable[Incoming]:
        """Return what a client says, be it wrong; raise BadMessage for what is no text."""
        if isinstance(message, bytes):
            raise BadMessage("messages are text")
        event_id = ""
        try:
            event = parse(message)
            if event.get("event_id") is not None:
                event_id = text("event_id", event["event_id"], 512)
            kind = text("type", event.get("type"))
            if kind not in _READERS:
                raise Wrong("type", "is not that of a client event")
            return _READERS[kind](self, event, _REF + event_id)
        except Wrong as wrong:
            return [Complaint(wrong.code, str(wrong), wrong.param, _REF + event_id)]

    def update(self, event: Event, _: str) -> list[Incoming]:
        """Take what is there of an update; all of it, or nothing."""
        session = updated(self._session, event.get("session"), self._usual)
        config = configuration(session, self._base, self._capabilities)
        if session.input_format != self._session.input_format:
            self._heard_before_s = self.heard_s()
            self._microphone = Microphone(FORMATS[session.input_format])
        self._session, self._config = session, config
        self._listening.transcribes = transcribes(session)
        return [events.Configure(config)]

    def append(self, event: Event, _: str) -> Iterable[Incoming]:
        """Take sound, piece by piece as whoever asked comes for it."""
        data = sound("audio", event.get("audio"))
        if len(data) % 2 and self._session.input_format == "audio/pcm":
            raise Wrong("audio", "has an odd number of bytes, of 16-bit samples")
        return (
            events.Audio(pcm)
            for at in range(0, len(data), PIECE_BYTES)
            if (pcm := self._microphone.push(data[at : at + PIECE_BYTES]))
        )

    def place(self, event: Event, ref: str) -> list[Incoming]:
        """Take an item."""
        item, pcm = read_item("item", event.get("item"), self._new_id("item"), FORMATS[self._session.input_format])
        after = event.get("previous_item_id")
        if after is not None:
            after = text("previous_item_id", after)
        return [events.PlaceItem(item, "" if after == "root" else after, pcm, ref)]

    def truncate(self, event: Event, ref: str) -> list[Incoming]:
        """Take it that a reply was heard so far."""
        name = self._item(event)
        number("content_index", event.get("content_index", 0), 0, 0)
        seconds = number("audio_end_ms", event.get("audio_end_ms"), 0, LONGEST_S * 1000) / 1000
        for response in self._responses.values():
            response.cancelled = response.cancelled or response.item == name
        return [events.CutItem(name, seconds, ref)]

    def respond(self, event: Event, ref: str) -> list[Incoming]:
        """Take the wish for a response."""
        if self._session.type != "realtime":
            raise Wrong("", "A session of type transcription has no responses")
        given = {} if event.get("response") is None else mapping("response", event["response"])
        session = overridden(self._session, given, self._usual)
        config = configuration(session, self._base, self._capabilities, "response")
        aside = choice("response.conversation", given.get("conversation") or "auto", ("auto", "none")) == "none"
        about = metadata("response.metadata", given.get("metadata"))
        entries = None if given.get("input") is None else self._input(given["input"])
        tag = self._new_id("wish")
        self._wishes[tag] = Wish(session, config.speaks, about, aside)
        if len(self._wishes) > WISHES:
            del self._wishes[next(iter(self._wishes))]
        return [events.Respond(config, tag, aside, entries, ref)]

    def _input(self, value: object) -> tuple[events.Item | str, ...]:
        entries: list[events.Item | str] = []
        for place, entry in enumerate(listing("response.input", value, INPUT_ITEMS)):
            at = f"response.input[{place}]"
            if isinstance(entry, dict) and entry.get("type") == "item_reference":
                entries.append(text(f"{at}.id", entry.get("id"), least=1))
                continue
            item, pcm = read_item(at, entry, self._new_id("item"), FORMATS[self._session.input_format])
            if pcm:
                raise Wrong(at, "must be text: create an item of the audio and refer to it", "unsupported_parameter")
            entries.append(item)
        return tuple(entries)

    def cancel(self, event: Event, ref: str) -> list[Incoming]:
        """Take it that a response is to end; a wish that crosses the end the server has put to it is no mistake."""
        if event.get("response_id") is None:
            inside = [response for response in self._responses.values() if not response.aside]
            if self._cut_short and not inside and not self._wishes:
                return []
            for response in inside:
                response.cancelled = True
            self._cancels_next = not inside  # one that was asked for and has not begun
            return [events.CancelReply(None, ref)]
        name = text("response_id", event["response_id"])
        for epoch, response in self._responses.items():
            if response.name == name:
                response.cancelled = True
                return [events.CancelReply(epoch, ref)]
        raise Wrong("", "Cancellation failed: no response of this id is under way", "response_cancel_not_active")

    def show(self, event: Event, ref: str) -> list[Incoming]:
        """Take the wish to see an item."""
        return [events.ShowItem(self._item(event), ref)]

    def drop(self, event: Event, ref: str) -> list[Incoming]:
        """Take it that an item is to be forgotten."""
        return [events.DropItem(self._item(event), ref)]

    def _item(self, event: Event) -> str:
        name = text("item_id", event.get("item_id"))
        if name not in self._known:  # it may be that of a reply which has yet to say its first word
            what = event["type"].rpartition(".")[2]
            raise Wrong("item_id", "is not that of an item", f"item_{what}_invalid_item_id")
        return name

    def _new_id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}_{self._name}_{self._made}"

    # ---- what it is told

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return what to write for an event."""
        match event:
            case events.Speech(epoch) if epoch in self._responses:
                return self._responses[epoch].sound(event)
            case events.ReplyStarted():
                return self._start(event)
            case events.ReplyText(epoch, words) if epoch in self._responses:
                return self._responses[epoch].say(words)
            case events.ToolCalled(epoch) if epoch in self._responses:
                return self._responses[epoch].call(event)
            case events.Thought(epoch) if epoch in self._responses:
                return self._responses[epoch].think(event)
            case events.SpeechDone(epoch, samples) if epoch in self._responses:
                return self._finish(epoch, samples)
            case events.ReplyDone(epoch) if epoch in self._responses:  # it was not spoken
                return self._finish(epoch, 0)
            case events.Interrupted(epoch):
                return self._interrupt(epoch)
            case events.Hold():
                self._listening.hold()
            case events.Release():
                self._listening.release()
            case events.TurnDone(how=how):
                fault = self._fault
                if how == "failed" and fault is not None and fault.code != "engine_lost":
                    self._fault = None
                return self._listening.take(event, fault)
            case (
                events.SpeechStarted()
                | events.SpeechStopped()
                | events.UserWords()
                | events.UserTurn()
                | events.InputCommitted()
                | events.IdleTimeout()
            ):
                return self._listening.take(event)
            case events.InputCleared():
                return self._listening.clear()
            case events.Fault():
                return self._fail(event)
            case _:
                return self._tell(event)
        return []

    def _tell(self, event: Outgoing) -> list[Packet]:
        """Return what concerns neither a turn nor a reply."""
        match event:
            case dialect.Ready():
                self._name = event.session.rpartition("-")[2]
                self._listening.session = event.session
                return [packet("session.created", session=shown(self._session, f"sess_{self._name}"))]
            case events.Configured():
                return [packet("session.updated", session=shown(self._session, f"sess_{self._name}"))]
            case events.ItemPlaced(item, after):
                placed = {"previous_item_id": self._known.add(item.id, after), "item": shown_item(item)}
                return [packet("conversation.item.added", **placed), packet("conversation.item.done", **placed)]
            case events.ItemShown(item):
                return [packet("conversation.item.retrieved", item=shown_item(item))]
            case events.ItemDropped(name):
                self._known.drop(name)
                return [packet("conversation.item.deleted", item_id=name)]
            case events.ItemCut(name, seconds):
                told = {"item_id": name, "content_index": 0, "audio_end_ms": round(seconds * 1000)}
                return [packet("conversation.item.truncated", **told)]
            case Complaint(code, message, param, ref):
                return [_error("invalid_request_error", code, message, param, ref)]
            case dialect.Ending(kind, code, message):
                return [_error(kind, code, message)]
            case _:  # states, latencies and the like: the dialect has no words for them
                return []

    def _start(self, event: events.ReplyStarted) -> list[Packet]:
        wish = self._wishes.pop(event.tag, None) or Wish(self._session, self._config.speaks)
        name, item = f"resp_{self._name}_{event.epoch}", event.item or f"item_{self._name}_a{event.epoch}"
        response = Response(name, item, f"conv_{self._name}", wish, self._known, self._rate)
        if not wish.aside:
            self._cut_short = False
            response.cancelled, self._cancels_next = self._cancels_next, False
        self._responses[event.epoch] = response
        return response.created()

    def _finish(self, epoch: int, samples: int) -> list[Packet]:
        response = self._responses.pop(epoch)
        return response.finish(epoch, samples)

    def _interrupt(self, epoch: int) -> list[Packet]:
        response = self._responses.pop(epoch, None)
        closing = [] if response is None else response.cut()
        if response is not None and response.aside:
            return closing
        self._cut_short = response is not None and not response.cancelled
        return self._listening.interrupted(closing)

    def _fail(self, fault: events.Fault) -> list[Packet]:
        """Take what went wrong. What befalls a client is told by how its response or transcription ends.

        Some clients take every `error` for the end of the conversation, which it is not.
        """
        if fault.ref:
            self._cancels_next = False
            return [_error("invalid_request_error", fault.code, fault.message, None, fault.ref)]
        if fault.epoch in self._responses:
            self._responses[fault.epoch].fault = fault
            return []
        self._fault = fault
        if fault.code == "engine_lost":
            for response in self._responses.values():
                response.fault = fault
        return []


def _error(kind: str, code: str, message: str, param: str | None = None, ref: str = "") -> Packet:
    event_id = ref.removeprefix(_REF) or None
    return packet("error", error={"type": kind, "code": code, "message": message, "param": param, "event_id": event_id})


def _no_buffer(_: OpenAIRealtime, __: Event, ___: str) -> list[Incoming]:
    raise Wrong("type", "is for WebRTC only: over a WebSocket the output buffer is the client's", "unsupported_event")


_READERS: dict[str, Callable[[OpenAIRealtime, Event, str], Iterable[Incoming]]] = {
    "session.update": OpenAIRealtime.update,
    "input_audio_buffer.append": OpenAIRealtime.append,
    "input_audio_buffer.commit": lambda _, __, ref: [events.CommitInput(ref)],
    "input_audio_buffer.clear": lambda _, __, ___: [events.ClearInput()],
    "conversation.item.create": OpenAIRealtime.place,
    "conversation.item.retrieve": OpenAIRealtime.show,
    "conversation.item.delete": OpenAIRealtime.drop,
    "conversation.item.truncate": OpenAIRealtime.truncate,
    "response.create": OpenAIRealtime.respond,
    "response.cancel": OpenAIRealtime.cancel,
    "output_audio_buffer.clear": _no_buffer,
}
"""The client events, and what becomes of them."""

PACE = Pace(
    frame_bytes=limits.REALTIME_FRAME_BYTES,
    frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
    frames_burst=limits.REALTIME_FRAMES_BURST,
    bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
    bytes_burst=limits.REALTIME_BYTES_BURST,
    audio_rate=limits.VOICE_AUDIO_RATE,
    audio_burst_s=limits.REALTIME_AUDIO_BURST_SECONDS,
)

REALTIME = Dialect(SUBPROTOCOL, PACE, OpenAIRealtime, opening=opening, subprotocol_needed=False, resumable=False)

"""A planted agent's side of OpenAI Realtime: the events that a client with server VAD needs. Pure.

The sound is PCM at 24 kHz both ways, or G.711 where the session asks for it, as in the GA or in the beta version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from voxlane_lab.agents.acts import (
    Act,
    ClientInput,
    ResponseBegins,
    ResponseCut,
    ResponsePlayed,
    ResponseSent,
    ResponseSound,
    TurnBegins,
    TurnEnds,
)
from voxlane_lab.agents.faces.formats import ALAW, MULAW, ClientSound, SoundFormat
from voxlane_lab.agents.voice import AGENT_RATE, AgentClip
from voxlane_lab.dialects.wire import NotUnderstood, base64_bytes, base64_text, fields_as, json_body, json_text
from voxlane_lab.values import Message

MODEL = "planted"
PCM = SoundFormat()
FORMATS = {
    "audio/pcm": PCM,
    "pcm16": PCM,
    "audio/pcmu": MULAW,
    "g711_ulaw": MULAW,
    "audio/pcma": ALAW,
    "g711_alaw": ALAW,
}

MOST_PAYLOAD = 1 << 20
"""Characters of base64 in one message."""

Event = Mapping[str, Any]


class _Append(Struct):
    audio: Annotated[str, Meta(max_length=MOST_PAYLOAD)]


class _Truncate(Struct):
    item_id: Annotated[str, Meta(max_length=256)]
    audio_end_ms: Annotated[int, Meta(ge=0, le=1 << 40)]


class RealtimeFace:
    """One call in OpenAI Realtime. Response 3 is `resp_3`, and its item is `item_3`."""

    def __init__(self) -> None:
        self.ready = True
        self._sound = ClientSound(PCM)
        self._input = self._output = PCM
        self._session: dict[str, Any] = {"type": "realtime", "object": "realtime.session", "model": MODEL}
        self._events = 0
        self._open: int | None = None  # the response that is not done
        self._turn = (1, 0.0)  # the turn that is heard, and when it began

    def opening(self) -> list[Message]:
        """Return the session."""
        return [self._event("session.created", session={"id": "sess_planted", **self._session})]

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise NotUnderstood if it breaks the rules."""
        body = json_body(message)
        match body.get("type"):
            case "input_audio_buffer.append":
                return self._appended(body)
            case "session.update":
                self._configure(body.get("session"))
                session = {"id": "sess_planted", **self._session}
                return ClientInput((self._event("session.updated", session=session),))
            case "conversation.item.truncate":
                return self._truncated(body)
            case str():
                return ClientInput()
        raise NotUnderstood("an event without a type")

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act."""
        match act:
            case ResponseBegins(response):
                return self._begin(response)
            case ResponseSound():
                return self._piece(act)
            case ResponseSent(response, clip):
                return self._end(response, clip.words, "completed")
            case ResponseCut(response, _, _, _, heard, flush):
                began = self._speech_started() if flush else []
                return [*began, *(self._end(response, heard, "cancelled") if self._open == response else [])]
            case TurnBegins(turn, at_s):
                self._turn = (turn, at_s)
                # A client drops what it plays when speech starts: during a response that is the cut's to say.
                return self._speech_started() if self._open is None else []
            case TurnEnds(turn, at_s):
                return self._turn_ends(turn, at_s)
            case ResponsePlayed():
                return []

    # ---- what the client says

    def _appended(self, body: Event) -> ClientInput:
        data = base64_bytes(fields_as(_Append, body, "input_audio_buffer.append").audio)
        return ClientInput(sound=self._sound.read(data))

    def _configure(self, session: object) -> None:
        if not isinstance(session, dict):
            raise NotUnderstood("a session.update without a session")
        before = self._input
        self._input = _format(session, "input") or self._input
        self._output = _format(session, "output") or self._output
        self._session |= {key: value for key, value in session.items() if key not in ("id", "object", "model")}
        if self._input != before:
            self._sound = ClientSound(self._input)

    def _truncated(self, body: Event) -> ClientInput:
        told = fields_as(_Truncate, body, "conversation.item.truncate")
        number = told.item_id.removeprefix("item_")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise NotUnderstood("the name of an item that there is not")
        answer = self._event(
            "conversation.item.truncated", item_id=told.item_id, content_index=0, audio_end_ms=told.audio_end_ms
        )
        # The client rounds down to milliseconds.
        return ClientInput((answer,), played=(int(number), ((told.audio_end_ms + 1) * AGENT_RATE - 1) // 1000))

    # ---- what the server says

    def _event(self, kind: str, **fields: Any) -> str:
        self._events += 1
        return json_text({"type": kind, "event_id": f"event_{self._events}", **fields})

    def _speech_started(self) -> list[Message]:
        turn, at_s = self._turn
        kind = "input_audio_buffer.speech_started"
        return [self._event(kind, audio_start_ms=round(at_s * 1000), item_id=f"turn_{turn}")]

    def _turn_ends(self, turn: int, at_s: float) -> list[Message]:
        item = f"turn_{turn}"
        return [
            self._event("input_audio_buffer.speech_stopped", audio_end_ms=round(at_s * 1000), item_id=item),
            self._event("input_audio_buffer.committed", previous_item_id=None, item_id=item),
        ]

    def _begin(self, response: int) -> list[Message]:
        self._open = response
        names = _names(response)
        item = {"id": names["item_id"], "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            self._event("response.created", response=_response(response, "in_progress", [])),
            self._event("response.output_item.added", response_id=names["response_id"], output_index=0, item=item),
            self._event("response.content_part.added", **names, part={"type": "audio", "transcript": ""}),
        ]

    def _piece(self, act: ResponseSound) -> list[Message]:
        names = _names(act.response)
        words = "".join(act.clip.words[_after(act.clip, one.start) : one.end] for one in act.words)
        text = [self._event("response.output_audio_transcript.delta", **names, delta=words)] if words else []
        data = base64_text(self._output.written(act))
        return [*text, self._event("response.output_audio.delta", **names, delta=data)]

    def _end(self, response: int, words: str, status: str) -> list[Message]:
        self._open = None
        names = _names(response)
        part = {"type": "audio", "transcript": words}
        done = "completed" if status == "completed" else "incomplete"
        item = {"id": names["item_id"], "type": "message", "role": "assistant", "status": done, "content": [part]}
        return [
            self._event("response.output_audio.done", **names),
            self._event("response.output_audio_transcript.done", **names, transcript=words),
            self._event("response.content_part.done", **names, part=part),
            self._event("response.output_item.done", response_id=names["response_id"], output_index=0, item=item),
            self._event("response.done", response=_response(response, status, [item])),
        ]


def _names(response: int) -> dict[str, Any]:
    return {"response_id": f"resp_{response}", "item_id": f"item_{response}", "output_index": 0, "content_index": 0}


def _response(response: int, status: str, output: list[Any]) -> dict[str, Any]:
    reason = {"type": "cancelled", "reason": "turn_detected"} if status == "cancelled" else None
    return {
        "id": f"resp_{response}",
        "object": "realtime.response",
        "status": status,
        "status_details": reason,
        "output": output,
    }


def _after(clip: AgentClip, start: int) -> int:
    """Return the place behind the word before: what separates two words goes with the second."""
    return max((one.end for one in clip.spans if one.end <= start), default=0)


def _format(session: Event, way: str) -> SoundFormat | None:
    """Return the format that a session asks for, in the words of the GA or the beta version; None: it does not."""
    asked = session.get(f"{way}_audio_format")
    for key in ("audio", way, "format"):
        if asked is None and isinstance(session, dict):
            session = session.get(key) or {}
    if asked is None and isinstance(session, dict):
        asked = session.get("type")
    if asked is None:
        return None
    if not isinstance(asked, str) or asked not in FORMATS:
        raise NotUnderstood("a format other than audio/pcm, audio/pcmu and audio/pcma")
    return FORMATS[asked]

"""A planted agent's side of Twilio Media Streams: sound at 8 kHz, a mark after each piece, and `clear`. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from voxlane_lab.agents.acts import Act, ClientInput, ResponseCut, ResponseSound
from voxlane_lab.agents.faces.formats import MULAW, ClientSound
from voxlane_lab.dialects.twilio import MarkMessage, MediaMessage
from voxlane_lab.dialects.wire import NotUnderstood, base64_bytes, base64_text, fields_as, json_body, json_text
from voxlane_lab.values import Message


class _Start(Struct):
    streamSid: str


class _Started(Struct):
    start: _Start


class TwilioFace:
    """One telephone call. A mark's name is the response and the sample behind the piece: `3:4800`."""

    def __init__(self) -> None:
        self.ready = False
        self._stream = ""
        self._sound = ClientSound(MULAW)
        self._marks: set[str] = set()  # marks that have not come back and whose sound was not dropped

    def opening(self) -> list[Message]:
        """Return nothing: the carrier speaks first."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise NotUnderstood if it breaks the rules."""
        body = json_body(message)
        match body.get("event"):
            case "start":
                self._stream = fields_as(_Started, body, "start").start.streamSid
                self.ready = True
            case "media" if not self.ready:
                raise NotUnderstood("media before the start")
            case "media":
                payload = base64_bytes(fields_as(MediaMessage, body, "media").media.payload)
                return ClientInput(sound=self._sound.read(payload))
            case "mark":
                return self._returned(fields_as(MarkMessage, body, "mark").mark.name)
            case "stop":
                return ClientInput(ended=True)
        return ClientInput()

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act; a carrier knows no turns and no responses."""
        match act:
            case ResponseSound(response, _, _, end):
                mark = f"{response}:{end}"
                self._marks.add(mark)
                sound = {"payload": base64_text(MULAW.written(act))}
                return [self._message("media", media=sound), self._message("mark", mark={"name": mark})]
            case ResponseCut(flush=True):
                # Marks of dropped sound come back at once: they do not say that it was played.
                self._marks.clear()
                return [self._message("clear")]
        return []

    def _message(self, event: str, **fields: Any) -> Message:
        return json_text({"event": event, "streamSid": self._stream, **fields})

    def _returned(self, name: str) -> ClientInput:
        if name not in self._marks:
            return ClientInput()
        self._marks.remove(name)
        response, _, end = name.partition(":")
        return ClientInput(played=(int(response), int(end)))

"""The client's side of `voxlane.v1`, as docs/protocol.md has it: hold, duck, release and interrupted are obeyed. Pure.

A response is a reply; its name is the number of its epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import msgpack
import numpy as np
from msgspec import Meta, Struct

from voxlane_lab.dialects.client_side import NO_ARGUMENTS, ClientSide, ToolTable
from voxlane_lab.dialects.dialect import DialectOptions, LabHandshake
from voxlane_lab.dialects.wire import NotUnderstood, fields_as, json_text, native_message
from voxlane_lab.values import USER_RATE, Message, Pcm

RATE = 24_000
ACK_S = 0.1  # an acknowledgement is due after so much sound, and at once on hold, interrupted and an empty queue
SUBPROTOCOL = "voxlane.v1"

Epoch = Annotated[int, Meta(ge=0)]


class _OfReply(Struct, array_like=True):
    epoch: Epoch


class _Audio(_OfReply):
    offset: Annotated[int, Meta(ge=0)]
    data: Any


class _Duck(_OfReply):
    gain: float


class _Text(_OfReply):
    text: str


class _UserTurn(Struct, array_like=True):
    turn: int
    text: str


class _ToolCall(_OfReply):
    call_id: str
    name: str


class _Error(Struct, array_like=True):
    code: str
    message: str = ""


class _Remembered(Struct):
    role: str
    content: str | None = None


class _Format(Struct, frozen=True):
    codec: str = "pcm16"
    rate: int = RATE


class _ReadyMap(Struct):
    session: str = ""
    output: _Format = _Format()
    history: list[_Remembered] = []


class _Ready(Struct, array_like=True):
    map: _ReadyMap


class NativeClient(ClientSide):
    """One call in the native dialect."""

    name = "native"
    pauses = True

    def __init__(self, options: DialectOptions) -> None:
        super().__init__(options, RATE)
        self._tools = ToolTable(options.tools)
        self._ended = -1  # the newest epoch that is over: nothing of it and of older ones is played
        self._lowered: str | None = None  # the reply that is played with less loudness
        self._acked: dict[str, int] = {}  # of each reply: samples that were acknowledged
        self._readers: dict[str, Callable[[list[Any], float], list[Message]]] = {
            "ready": self._begin,
            "audio": self._sound,
            "reply_text": self._words,
            "audio_done": self._sound_done,
            "duck": self._duck,
            "hold": self._hold,
            "release": self._release,
            "interrupted": self._interrupt,
            "reply_done": self._reply_done,
            "user_turn": self._user_turn,
            "tool_call": self._tool_call,
            "error": self._error,
        }

    # ---- what the client says

    def handshake(self) -> LabHandshake:
        """Return how to connect."""
        key = self._options.key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return LabHandshake(self._options.url, headers, (SUBPROTOCOL,))

    def open(self, at_s: float) -> list[Message]:
        """Return the hello."""
        options = self._options
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": json_text(NO_ARGUMENTS)}
            for tool in options.tools
        ]
        wanted = {"instructions": options.instructions, "voice": options.voice, "tools": tools}
        hello = {
            "input": {"codec": "pcm16", "rate": USER_RATE},
            "output": {"codec": "pcm16", "rate": RATE},
            "config": {key: value for key, value in wanted.items() if value},
        }
        return [self._sent(at_s, "hello", hello)]

    def say(self, pcm: Pcm, at_s: float) -> list[Message]:
        """Return the message that carries 20 ms of the microphone."""
        return [msgpack.packb(("audio", pcm.astype("<i2").tobytes()))]

    def due(self, at_s: float) -> list[Message]:
        """Return acknowledgements and results of tools."""
        self._end_lowering()
        answers = self._tools.due(at_s)
        self.calling_tool = self._tools.waiting
        results = [self._sent(at_s, "tool_result", one.call_id, one.output) for one in answers]
        return [*self._acks(at_s), *results]

    def close(self, at_s: float) -> list[Message]:
        """Return the bye."""
        return [self._sent(at_s, "bye")]

    def _sent(self, at_s: float, name: str, *fields: Any) -> Message:
        self._note(at_s, "sent", name, _shown(fields))
        message: bytes = msgpack.packb((name, *fields))
        return message

    def _acks(self, at_s: float, *, at_once: bool = False) -> list[Message]:
        """Return an acknowledgement for each reply of which enough was played, or anything if it is due at once."""
        sent = []
        for response, played in self.speaker.played.items():
            fresh = played - self._acked.get(response, 0)
            over = at_once or response != self.speaker.playing
            if fresh and (over or fresh >= ACK_S * RATE):
                self._acked[response] = played
                sent.append(self._sent(at_s, "played", int(response), played, self.speaker.queued))
        return sent

    def _end_lowering(self) -> None:
        """Play at full loudness again when the lowered reply is over."""
        lowered = self._lowered
        if lowered is None or self.speaker.playing == lowered:
            return
        if self.speaker.playing is not None or lowered in self.finished:
            self.speaker.lower(1.0)
            self._lowered = None

    # ---- what the server says

    def _read(self, message: Message, at_s: float) -> list[Message]:
        parts = native_message(message)
        name, fields = parts[0], parts[2:]  # between them is the sequence number
        if name != "audio":
            # The map of `ready` holds the token that resumes the conversation: it stays out of the log.
            self._note(at_s, "got", name, "" if name == "ready" else _shown(fields))
        reader = self._readers.get(name)
        return [] if reader is None else reader(fields, at_s)

    def _begin(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Ready, fields, "ready").map
        if (told.output.codec, told.output.rate) != ("pcm16", RATE):
            raise NotUnderstood(f"a session that is not pcm16 at {RATE} Hz")
        self.history += [(one.role, one.content) for one in told.history if one.content]
        self.ready = True
        return []

    def _sound(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Audio, fields, "audio")
        if not isinstance(told.data, bytes):
            raise NotUnderstood("a broken audio: its sound is not bin")
        if len(told.data) % 2:
            raise NotUnderstood("a broken audio: it has half a sample")
        response, have = str(told.epoch), self.speaker.length(str(told.epoch))
        if told.offset != have and told.data:
            self._note(at_s, "got", "audio with a wrong offset", f"epoch {told.epoch}: {told.offset}, not {have}")
        pcm = np.frombuffer(told.data, "<i2").astype(np.int16)
        self._arrived(response, pcm, at_s, late=told.epoch <= self._ended)
        return []

    def _words(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Text, fields, "reply_text")
        response = str(told.epoch)
        self.texts[response] = self.texts.get(response, "") + told.text
        return []

    def _sound_done(self, fields: list[Any], at_s: float) -> list[Message]:
        self.finished.add(str(fields_as(_OfReply, fields, "audio_done").epoch))
        return []

    def _duck(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Duck, fields, "duck")
        if not math.isfinite(told.gain):
            raise NotUnderstood("a broken duck: its gain is not a number")
        if not self._is_past(told.epoch):
            self._lowered = str(told.epoch)
            self.speaker.lower(min(1.0, max(0.0, told.gain)))
            if self.speaker.playing is not None and not self.speaker.held:
                self._note(at_s, "card", "lowered", f"gain {told.gain:.3f}")
        return []

    def _hold(self, fields: list[Any], at_s: float) -> list[Message]:
        if self._is_past(fields_as(_OfReply, fields, "hold").epoch):
            return []
        self.speaker.hold()
        self._note(at_s, "card", "hold")
        return self._acks(at_s, at_once=True)

    def _release(self, fields: list[Any], at_s: float) -> list[Message]:
        fields_as(_OfReply, fields, "release")
        self._go_on()
        self._note(at_s, "card", "release")
        return []

    def _interrupt(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Text, fields, "interrupted")
        acks = self._acks(at_s, at_once=True)
        self._ended = max(self._ended, told.epoch)
        self.finished.add(str(told.epoch))
        self._drop(at_s, [response for response in self.speaker.received if int(response) <= told.epoch])
        self._go_on()
        self._remember("assistant", told.text)
        return acks

    def _reply_done(self, fields: list[Any], at_s: float) -> list[Message]:
        self._remember("assistant", fields_as(_Text, fields, "reply_done").text)
        return []

    def _user_turn(self, fields: list[Any], at_s: float) -> list[Message]:
        self._remember("user", fields_as(_UserTurn, fields, "user_turn").text)
        return []

    def _tool_call(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_ToolCall, fields, "tool_call")
        self._tools.call(told.call_id, told.name, at_s)
        self.calling_tool = self._tools.waiting
        return []

    def _error(self, fields: list[Any], at_s: float) -> list[Message]:
        told = fields_as(_Error, fields, "error")
        self.complaint = f"the server says {self._told(told.code, told.message)}"
        if not self.ready:
            self.failure = f"the server refused the call: {self._told(told.code, told.message)}"
        return []

    def _is_past(self, epoch: int) -> bool:
        """Return whether a reply is over, or a newer one is played already."""
        return epoch <= self._ended or epoch < max(map(int, self.speaker.played), default=0)

    def _go_on(self) -> None:
        self.speaker.release()
        self._lowered = None

    def _remember(self, role: str, text: str) -> None:
        if text:
            self.history.append((role, text))


def _shown(fields: tuple[Any, ...] | list[Any]) -> str:
    return ", ".join(f"{len(one)} bytes" if isinstance(one, bytes) else str(one) for one in fields)

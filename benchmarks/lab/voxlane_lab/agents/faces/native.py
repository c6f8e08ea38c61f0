"""A planted agent's side of the native dialect, `voxlane.v1`. A response is an epoch. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgpack
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
from voxlane_lab.agents.faces.formats import ClientSound, SoundFormat
from voxlane_lab.agents.voice import AGENT_RATE
from voxlane_lab.dialects.wire import NotUnderstood, fields_as, native_message
from voxlane_lab.values import USER_RATE, Message

READY = {
    "session": "planted",
    "token": "planted",
    "resumed": False,
    "state": "listening",
    "capabilities": {
        "server": "planted agent",
        "chat_model": "none",
        "asr_model": "none",
        "tts_model": "none",
        "languages": ["en"],
        "voices": ["planted"],
        "codecs": ["pcm16", "mulaw", "alaw"],
    },
    "limits": {
        "frame_bytes": 65_536,
        "frames_per_s": 1_000.0,
        "bytes_per_s": 1e6,
        "audio_rate": 2.0,
        "audio_burst_s": 10.0,
        "idle_s": 600.0,
        "session_s": 3_600.0,
        "resume_s": 0.0,
    },
    "history": [],
    "played": None,
    "recorded": [],
    "resumable": True,
    "at": "",
}

Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]


class _Offer(Struct, frozen=True):
    codec: str = "pcm16"
    rate: int = 0  # 0: the usual one of this codec and direction


class _Hello(Struct):
    input: _Offer | list[_Offer] = _Offer()
    output: _Offer | list[_Offer] = _Offer()
    config: dict[str, Any] = {}


class _Greeting(Struct, array_like=True):
    hello: _Hello


class _Audio(Struct, array_like=True):
    data: bytes


class _Played(Struct, array_like=True):
    epoch: Count
    samples: Count


class _Ping(Struct, array_like=True):
    mark: Count


class NativeFace:
    """One call."""

    def __init__(self) -> None:
        self.ready = False
        self._output = SoundFormat()
        self._sound = ClientSound(self._output)
        self._heard_s = 0.0
        self._sequence = 0

    def opening(self) -> list[Message]:
        """Return nothing: the client speaks first."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise NotUnderstood if it breaks the rules."""
        name, *fields = native_message(message)
        if not self.ready:
            if name != "hello":
                raise NotUnderstood("another first message than hello")
            return ClientInput((self._greet(fields_as(_Greeting, fields, name).hello),))
        match name:
            case "audio":
                sound = self._sound.read(fields_as(_Audio, fields, name).data)
                self._heard_s += len(sound) / USER_RATE
                return ClientInput(sound=sound)
            case "played":
                told = fields_as(_Played, fields, name)
                return ClientInput(played=(told.epoch, told.samples * AGENT_RATE // self._output.rate))
            case "ping":
                return ClientInput((self._message("pong", fields_as(_Ping, fields, name).mark, self._heard_s),))
            case "bye":
                return ClientInput((self._message("bye"),), ended=True)
        return ClientInput()

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act."""
        match act:
            case ResponseBegins(response, turn, clip):
                return [self._message("reply", response, turn), self._message("reply_text", response, clip.words)]
            case ResponseSound(response, clip, first):
                place = self._output.place
                words = [[one.start, one.end, place(one.start_sample), place(one.end_sample)] for one in act.words]
                return [self._message("audio", response, place(first), self._output.written(act), words)]
            case ResponseSent(response, clip):
                return [self._message("audio_done", response, self._output.place(len(clip.pcm)))]
            case ResponsePlayed(response, turn, clip):
                return [self._message("reply_done", response, clip.words), *self._turn_done(turn, "done")]
            case ResponseCut(response, turn, _, played, heard):
                told = self._message("interrupted", response, heard, self._output.place(played))
                return [told, *self._turn_done(turn, "interrupted")]
            case TurnBegins(turn, at_s):
                return [self._message("speech_started", turn, at_s)]
            case TurnEnds(turn, at_s):
                return [self._message("speech_stopped", turn, at_s)]

    def _greet(self, hello: _Hello) -> Message:
        heard, self._output = _agreed(hello.input, USER_RATE), _agreed(hello.output, AGENT_RATE)
        self._sound = ClientSound(heard)
        self.ready = True
        formats = {"input": asdict(heard), "output": asdict(self._output)}
        return self._message("ready", {**READY, **formats, "config": hello.config})

    def _turn_done(self, turn: int, how: str) -> list[Message]:
        """Return the end of a turn; a greeting and a second answer belong to none."""
        return [self._message("turn_done", turn, how)] if turn else []

    def _message(self, name: str, *fields: object) -> Message:
        self._sequence += 1
        message: bytes = msgpack.packb((name, self._sequence, *fields))
        return message


def _agreed(offers: _Offer | list[_Offer], usual: int) -> SoundFormat:
    """Return the first format of an offer that a planted agent has."""
    for one in [offers] if isinstance(offers, _Offer) else offers:
        match one.codec:
            case "mulaw" | "alaw" if one.rate in (0, 8_000):
                return SoundFormat(one.codec, 8_000)
            case "pcm16" if one.rate in (0, 8_000, 16_000, 24_000, 48_000):
                return SoundFormat("pcm16", one.rate or usual)
    raise NotUnderstood("formats of which a planted agent has none: it has pcm16, mulaw and alaw")

"""A planted agent's side of the native dialect: the true server's codec writes its messages. Pure."""

from __future__ import annotations

import numpy as np

from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import SessionConfig, TurnEnd
from voxlane.server.lab.agents.acts import (
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
from voxlane.server.lab.agents.voice import AGENT_RATE
from voxlane.server.lab.values import Message
from voxlane.server.protocols import dialect, sound
from voxlane.server.protocols.native import Native, read_hello

CAPABILITIES = dialect.Capabilities("planted agent", "none", "none", "none", ("en",), ("planted",), sound.codecs())
BOUNDS = dialect.Bounds(
    frame_bytes=65_536,
    frames_per_s=1_000.0,
    bytes_per_s=1e6,
    audio_rate=2.0,
    audio_burst_s=10.0,
    idle_s=600.0,
    session_s=3_600.0,
    resume_s=0.0,
)


class NativeFace:
    """One call in the native dialect. A response is an epoch."""

    def __init__(self) -> None:
        self.ready = False
        self._codec: Native | None = None
        self._sequence = 0

    def opening(self) -> list[Message]:
        """Return nothing: the client speaks first."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise BadMessage if it breaks the rules."""
        if self._codec is None:
            hello = read_hello(message, SessionConfig())
            self._codec = Native(hello, AGENT_RATE)
            self.ready = True
            ready = dialect.SessionReady("planted", "planted", False, hello.config, CAPABILITIES, BOUNDS, "listening")
            return ClientInput(tuple(self._written(ready)))
        for event in self._codec.decode(message):
            match event:
                case client_events.Audio(pcm):
                    return ClientInput(sound=np.frombuffer(pcm, "<i2").astype(np.int16))
                case client_events.Played():
                    told = self._codec.session_samples(event)
                    return ClientInput(played=(told.epoch, told.samples))
                case dialect.ClientPing(mark):
                    return ClientInput(tuple(self._written(dialect.ServerPong(mark, self._codec.heard_s()))))
                case dialect.Bye():
                    return ClientInput(tuple(self._written(dialect.Farewell())), ended=True)
        return ClientInput()

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act."""
        return [message for event in _events(act) for message in self._written(event)]

    def _written(self, event: dialect.Outgoing) -> list[Message]:
        assert self._codec is not None
        messages: list[Message] = []
        for packet in self._codec.encode(event):
            self._sequence += 1
            messages.append(self._codec.write(packet, self._sequence))
        return messages


def _events(act: Act) -> list[dialect.Outgoing]:
    match act:
        case ResponseBegins(response, turn, clip):
            return [server_events.ReplyStarted(response, turn), server_events.ReplyText(response, clip.words)]
        case ResponseSound(response, clip, first, end):
            pcm = clip.pcm[first:end].astype("<i2").tobytes()
            return [server_events.Speech(response, first, pcm, act.words)]
        case ResponseSent(response, clip):
            return [server_events.SpeechDone(response, len(clip.pcm))]
        case ResponsePlayed(response, turn, clip):
            return [server_events.ReplyDone(response, clip.words), *_turn_done(turn, "done")]
        case ResponseCut(response, turn, _, played, heard):
            return [server_events.Interrupted(response, heard, played), *_turn_done(turn, "interrupted")]
        case TurnBegins(turn, at_s):
            return [server_events.SpeechStarted(turn, at_s)]
        case TurnEnds(turn, at_s):
            return [server_events.SpeechStopped(turn, at_s)]


def _turn_done(turn: int, how: TurnEnd) -> list[dialect.Outgoing]:
    """Return the end of a turn; a greeting and a second answer belong to none."""
    return [server_events.TurnDone(turn, how)] if turn else []

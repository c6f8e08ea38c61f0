"""Servers of each dialect, made of the server's own codecs, and a card that plays what a client is sent."""

from __future__ import annotations

import json
from typing import Protocol

import msgpack
import numpy as np
from realtime_desk import BOUNDS, CAPABILITIES, Desk

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.pcm import quantise
from voxlane.engine.api import SpokenWord
from voxlane.server.conversation import server_events
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols.dialect import Outgoing, SessionReady
from voxlane.server.protocols.native import Native, read_hello
from voxlane.server.protocols.phone.twilio import Twilio
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import DialectOptions, LabDialect
from voxlane_lab.values import Message, Pcm, Pull, Run

KEY = 'sk-se"cret/ключ'
URL = "ws://127.0.0.1:8000/v1/voice"
SAID = "One two three."


def options(**changes: object) -> DialectOptions:
    return DialectOptions(**{"url": URL, "key": KEY, **changes})  # type: ignore[arg-type]


class Face(Protocol):
    """A server as the client sees it: one response after the other, 1, 2, 3."""

    def greet(self, opening: list[Message]) -> list[Message]: ...

    def sound(self, response: int, pcm: Pcm) -> list[Message]: ...

    def stop(self, response: int) -> list[Message]: ...


class NativeFace:
    def __init__(self) -> None:
        self._codec: Native | None = None
        self._sequence = 0
        self._offsets: dict[int, int] = {}

    def greet(self, opening: list[Message]) -> list[Message]:
        hello = read_hello(opening[0], SessionConfig())
        self._codec = Native(hello, 24_000)
        return self.tell(SessionReady("voice-7", "resume-me", False, hello.config, CAPABILITIES, BOUNDS, "listening"))

    def tell(self, *events: Outgoing) -> list[Message]:
        assert self._codec is not None
        written: list[Message] = []
        for event in events:
            for packet in self._codec.encode(event):
                self._sequence += 1
                written.append(self._codec.write(packet, self._sequence))
        return written

    def heard(self, messages: list[Message]) -> list[object]:
        assert self._codec is not None
        return [event for message in messages for event in self._codec.decode(message)]

    def sound(self, response: int, pcm: Pcm) -> list[Message]:
        offset = self._offsets.get(response, 0)
        self._offsets[response] = offset + len(pcm)
        return self.tell(server_events.Speech(response, offset, pcm.tobytes()))

    def stop(self, response: int) -> list[Message]:
        return self.tell(server_events.Interrupted(response, "so far", 0))


class RealtimeFace:
    def __init__(self) -> None:
        self.desk = Desk()
        self._begun: dict[int, int] = {}

    def greet(self, opening: list[Message]) -> list[Message]:
        update = json.loads(opening[0])
        (event,) = self.desk.codec.decode(opening[0])
        assert update["type"] == "session.update"
        return self._texts([self.desk.created, *self.desk.tell(server_events.Configured(event.config))])

    def tell(self, *events: Outgoing) -> list[Message]:
        return self._texts(self.desk.tell(*events))

    def heard(self, messages: list[Message]) -> list[object]:
        return [event for message in messages for event in self.desk.codec.decode(message)]

    def sound(self, response: int, pcm: Pcm) -> list[Message]:
        told = [] if response in self._begun else self.begin(response)
        offset = self._begun[response]
        self._begun[response] += len(pcm)
        words = (SpokenWord(0, len(SAID), 0, len(pcm)),) if told else ()
        return [*told, *self.tell(server_events.Speech(response, offset, pcm.tobytes(), words))]

    def begin(self, response: int) -> list[Message]:
        self._begun[response] = 0
        return self.tell(server_events.ReplyStarted(response, response), server_events.ReplyText(response, SAID))

    def stop(self, response: int) -> list[Message]:
        return self.tell(server_events.SpeechStarted(response, 1.0), server_events.Interrupted(response, "One", 0))

    @staticmethod
    def _texts(events: list[dict[str, object]]) -> list[Message]:
        return [json.dumps(event) for event in events]


class TwilioFace:
    def __init__(self) -> None:
        self.codec = Twilio()

    def greet(self, opening: list[Message]) -> list[Message]:
        self.heard(opening)
        return []

    def heard(self, messages: list[Message]) -> list[object]:
        return [event for message in messages for event in self.codec.read(message)]

    def sound(self, response: int, pcm: Pcm) -> list[Message]:
        return [self.codec.media(encode_mulaw(pcm / 32768))]

    def stop(self, response: int) -> list[Message]:
        return [self.codec.clear()]


class PcmFace:
    def greet(self, opening: list[Message]) -> list[Message]:
        assert opening == []
        return []

    def sound(self, response: int, pcm: Pcm) -> list[Message]:
        return [pcm.tobytes()]

    def stop(self, response: int) -> list[Message]:
        return ['{"type": "clear"}']


FACES: dict[str, type[Face]] = {"native": NativeFace, "realtime": RealtimeFace, "twilio": TwilioFace, "pcm": PcmFace}


class Card:
    """A client that a server has greeted, pulled in ticks."""

    def __init__(self, dialect: str, **changes: object) -> None:
        self.client: LabDialect = make_dialect(dialect, options(**changes))
        self.face = FACES[dialect]()
        self.at_s = 0.0
        self.sent: list[Message] = []
        self.runs: list[Run] = []
        self.played: list[Pcm] = []
        self.get(self.face.greet(self.client.open(0.0)))
        assert self.client.ready, self.client.failure

    def get(self, messages: list[Message]) -> list[Message]:
        """Give messages to the client; return what it answers at once."""
        answers = [answer for message in messages for answer in self.client.receive(message, self.at_s)]
        self.sent += answers
        return answers

    def tick(self, count: int = 1) -> list[Message]:
        """Play 20 ms so many times; return what the client says meanwhile."""
        said: list[Message] = []
        for _ in range(count):
            pulled: Pull = self.client.speaker.pull(self.client.speaker.rate // 50)
            self.runs += pulled.runs
            sounds = sum(run.samples for run in pulled.runs)
            self.played.append(pulled.pcm[:sounds])
            self.at_s += 0.02
            said += self.client.due(self.at_s)
        self.sent += said
        return said

    def play_all(self) -> Pcm:
        """Play until nothing waits; return all that was played so far."""
        while self.client.speaker.queued and not self.client.speaker.held:
            self.tick()
        return self.heard

    @property
    def heard(self) -> Pcm:
        return np.concatenate(self.played) if self.played else np.zeros(0, np.int16)

    def names(self, side: str) -> list[str]:
        """Return what the event log names of a side."""
        return [one.name for one in self.client.occurrences if one.side == side]


def ramp(samples: int, first: int = 1) -> Pcm:
    """Return samples that are all different and never zero."""
    return ((np.arange(samples) + first) % 30_000 + 1).astype(np.int16)


def through_the_line(dialect: str, pcm: Pcm) -> Pcm:
    """Return sound as the client hears it."""
    return quantise(decode_mulaw(encode_mulaw(pcm / 32768))) if dialect == "twilio" else pcm


def unpacked(message: Message) -> list[object]:
    """Return a native message."""
    assert isinstance(message, bytes)
    found: list[object] = msgpack.unpackb(message)
    return found

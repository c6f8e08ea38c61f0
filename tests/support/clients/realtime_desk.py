"""The OpenAI Realtime codec alone: events in and out as a client sees them, each checked by the grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from realtime_grammar import Event, Grammar

from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols.dialect import Bounds, Capabilities, Handshake, Incoming, Outgoing, SessionReady
from voxlane.server.protocols.openai_realtime.protocol import OpenAIRealtime, opening

RATE = 24_000
CAPABILITIES = Capabilities(
    server="voxlane",
    chat_model="smol",
    asr_model="moonshine",
    tts_model="hibari",
    languages=("en",),
    voices=("one", "two", "af_alloy"),
    codecs=("pcm16", "mulaw", "alaw"),
)
BOUNDS = Bounds(1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
DEFAULTS = SessionConfig(instructions="Be brief.")


class Desk:
    """One conversation's codec, without a session behind it."""

    def __init__(
        self,
        session: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        capabilities: Capabilities = CAPABILITIES,
        rate: int = RATE,
        name: str = "voice-7",
        codec: type[OpenAIRealtime] = OpenAIRealtime,
    ) -> None:
        self.grammar = Grammar(webrtc=codec is not OpenAIRealtime)
        self.hello = opening(Handshake(query or {}, session, capabilities), DEFAULTS)
        self.codec = codec(self.hello, rate)
        self._sequence = 0
        ready = SessionReady(name, "", False, self.hello.config, capabilities, BOUNDS, "listening")
        (self.created,) = self.tell(ready)

    @property
    def session(self) -> Event:
        """Return the session object that the client was sent last."""
        shown = [one for one in self.grammar.events if one["type"] in ("session.created", "session.updated")]
        return shown[-1]["session"]

    def say(self, kind: str, **fields: Any) -> list[Incoming]:
        """Decode a client event; return the events it becomes."""
        return list(self.codec.decode(json.dumps({"type": kind, **fields})))

    def tell(self, *told: Outgoing) -> list[Event]:
        """Encode events; return what the client receives, checked and in order."""
        received = []
        for event in told:
            for packet in self.codec.encode(event):
                self._sequence += 1
                text = self.codec.write(packet, self._sequence)
                if isinstance(text, bytes):  # a command to a call's track
                    continue
                received.append(json.loads(text))
                self.grammar.check(received[-1])
        return received

    def update(self, **session: Any) -> SessionConfig:
        """Change the session; return its new configuration."""
        (configure,) = self.say("session.update", session=session)
        assert isinstance(configure, client_events.ConfigureSession), configure
        (event,) = self.tell(server_events.Configured(configure.config))
        assert event["type"] == "session.updated"
        return configure.config


def kinds(received: list[Event]) -> list[str]:
    """Return the types of events."""
    return [event["type"] for event in received]

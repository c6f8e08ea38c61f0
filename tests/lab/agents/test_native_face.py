"""The planted agents' side of the native dialect, beside the server's own codec."""

from __future__ import annotations

import msgpack
import pytest

from voxlane.engine.api import SpokenWord
from voxlane.server.conversation import server_events
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols import dialect, sound
from voxlane.server.protocols.native import Native, read_hello
from voxlane_lab.agents.acts import (
    Act,
    ResponseBegins,
    ResponseCut,
    ResponsePlayed,
    ResponseSent,
    ResponseSound,
    TurnBegins,
    TurnEnds,
)
from voxlane_lab.agents.faces.native import NativeFace
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.dialects.dialect import DialectOptions
from voxlane_lab.dialects.native import NativeClient

HELLO = NativeClient(DialectOptions("ws://x/v1/voice")).open(0.0)[0]
CLIP = AgentVoice.synthetic(1).count
WORDS = tuple(SpokenWord(one.start, one.end, one.start_sample, one.end_sample) for one in CLIP.spans)
PIECE = CLIP.pcm[: CLIP.ends[1]].tobytes()
PLANTED = dialect.Capabilities("planted agent", "none", "none", "none", ("en",), ("planted",), sound.codecs())
BOUNDS = dialect.Bounds(65_536, 1_000.0, 1e6, 2.0, 10.0, 600.0, 3_600.0, 0.0)


def true_codec() -> Native:
    return Native(read_hello(HELLO, SessionConfig()), 24_000)


@pytest.mark.parametrize(
    ("act", "events"),
    [
        (ResponseBegins(3, 2, CLIP), [server_events.ReplyStarted(3, 2), server_events.ReplyText(3, CLIP.words)]),
        (ResponseSound(3, CLIP, 0, CLIP.ends[1]), [server_events.Speech(3, 0, PIECE, WORDS[:2])]),
        (ResponseSent(3, CLIP), [server_events.SpeechDone(3, len(CLIP.pcm))]),
        (ResponsePlayed(3, 2, CLIP), [server_events.ReplyDone(3, CLIP.words), server_events.TurnDone(2, "done")]),
        (ResponsePlayed(3, 0, CLIP), [server_events.ReplyDone(3, CLIP.words)]),
        (
            ResponseCut(3, 2, CLIP, 4_800, "one", flush=True),
            [server_events.Interrupted(3, "one", 4_800), server_events.TurnDone(2, "interrupted")],
        ),
        (TurnBegins(2, 1.5), [server_events.SpeechStarted(2, 1.5)]),
        (TurnEnds(2, 2.5), [server_events.SpeechStopped(2, 2.5)]),
    ],
)
def test_an_act_is_written_as_the_server_writes_it(act: Act, events: list[dialect.Outgoing]) -> None:
    face, codec = NativeFace(), true_codec()
    face.read(HELLO)
    packets = [packet for event in events for packet in codec.encode(event)]
    assert face.write(act) == [codec.write(packet, number) for number, packet in enumerate(packets, 2)]


def test_the_greeting_is_the_servers() -> None:
    hello = read_hello(HELLO, SessionConfig())
    ready = dialect.SessionReady("planted", "planted", False, hello.config, PLANTED, BOUNDS, "listening")
    (packet,) = true_codec().encode(ready)
    theirs = msgpack.unpackb(true_codec().write(packet, 1))[2]
    (told,) = NativeFace().read(HELLO).replies
    assert isinstance(told, bytes)
    ours = msgpack.unpackb(told)[2]
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"config", "capabilities"}:
        assert ours[name] == theirs[name], name
    assert ours["capabilities"].items() <= {**theirs["capabilities"], "codecs": ["pcm16", "mulaw", "alaw"]}.items()


@pytest.mark.parametrize("name", ["bye", "ping"])
def test_what_the_client_asks_is_answered(name: str) -> None:
    face = NativeFace()
    face.read(HELLO)
    face.read(msgpack.packb(("audio", bytes(640))))
    told = face.read(msgpack.packb((name, *([7] if name == "ping" else []))))
    (answer,) = told.replies
    assert isinstance(answer, bytes)
    assert msgpack.unpackb(answer) == (["bye", 2] if name == "bye" else ["pong", 2, 7, 0.02])
    assert told.ended == (name == "bye")


@pytest.mark.parametrize("codec", ["mulaw", "alaw"])
def test_other_formats_are_agreed_to(codec: str) -> None:
    face = NativeFace()
    form = {"codec": codec, "rate": 8_000}
    offer = {"input": [{"codec": "opus"}, form], "output": form}
    (told,) = face.read(msgpack.packb(("hello", offer))).replies
    assert isinstance(told, bytes)
    assert msgpack.unpackb(told)[2]["input"] == form
    (sound_message,) = face.write(ResponseSound(1, CLIP, 480, 960))
    assert isinstance(sound_message, bytes)
    assert msgpack.unpackb(sound_message)[3] == 160
    assert len(msgpack.unpackb(sound_message)[4]) == 160
    assert face.read(msgpack.packb(("played", 1, 160, 0))).played == (1, 480)

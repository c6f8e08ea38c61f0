"""Genesys AudioHook: the messages of its documents, the numbers of both sides, and the test of the connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone.genesys import NO_CONVERSATION, Genesys
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    LineEvent,
    Media,
    MustSend,
    UnknownMessage,
)

from .lines import GENESYS_ID, GENESYS_OPEN, LINES, MULAW, genesys, genesys_open

CONVERSATION = "090eaa2f-72fa-480a-83e0-8667ff89c0ec"
EXTERNAL = {"type": "audio", "format": "PCMU", "channels": ["external"], "rate": 8000}
BOTH = {**EXTERNAL, "channels": ["external", "internal"]}


def sent(event: LineEvent) -> dict[str, Any]:
    assert isinstance(event, MustSend)
    message: dict[str, Any] = json.loads(event.message)
    return message


def ours(kind: str, seq: int, clientseq: int, **parameters: object) -> dict[str, Any]:
    return {
        "version": "2",
        "id": GENESYS_ID,
        "type": kind,
        "seq": seq,
        "clientseq": clientseq,
        "parameters": parameters,
    }


def test_a_call_is_opened_with_the_callers_channel_alone() -> None:
    started, opened = Genesys().read(GENESYS_OPEN)
    facts = CallFacts("genesys", CONVERSATION, "+1-555-555-1234", "+1-800-555-6789", {"queue": "billing"}, "sesame")
    assert started == CallStarted(facts, MULAW, MULAW)
    assert sent(opened) == ours("opened", 1, 1, media=[EXTERNAL])


def test_the_callers_channel_is_taken_out_of_two() -> None:
    codec = Genesys()
    _, opened = codec.read(genesys_open(media=[BOTH]))
    assert sent(opened)["parameters"]["media"] == [BOTH]
    assert codec.read(b"\1\2\3\4") == [Media(b"\1\3", at_ms=0)]
    codec = Genesys()
    codec.read(genesys_open(media=[{**BOTH, "channels": ["internal", "external"]}]))
    assert codec.read(b"\1\2\3\4") == [Media(b"\2\4", at_ms=0)]


@pytest.mark.parametrize(
    "media",
    [[], [{**EXTERNAL, "format": "L16"}], [{**EXTERNAL, "channels": ["internal"]}], [{**EXTERNAL, "rate": 16000}]],
)
def test_without_the_callers_channel_there_is_no_call(media: object) -> None:
    with pytest.raises(BadMessage, match="must offer PCMU at 8000 Hz with the external channel"):
        Genesys().read(genesys_open(media=media))


@pytest.mark.parametrize("media", [[], [EXTERNAL]])
def test_a_test_of_the_connection_is_opened_and_closed_without_a_call(media: list[object]) -> None:
    codec = Genesys()
    (opened,) = codec.read(genesys_open(conversationId=NO_CONVERSATION, media=media))
    assert sent(opened) == ours("opened", 1, 1, media=media)
    assert codec.read(bytes(160)) == []
    closed, ended = codec.read(genesys("close", 2, 1, reason="end"))
    assert sent(closed) == ours("closed", 2, 2)
    assert ended == CallEnded()


def test_what_genesys_sends() -> None:
    codec = LINES["genesys"].started()
    (pong,) = codec.read(genesys("ping", 2, rtt="PT0.05S"))
    assert sent(pong) == ours("pong", 2, 2)
    assert codec.read(bytes(800)) == [Media(bytes(800), at_ms=0)]
    assert codec.read(bytes(804)) == [Media(bytes(804), at_ms=100)]
    assert codec.read(bytes(8)) == [Media(bytes(8), at_ms=200)]
    assert codec.read(b"") == []
    assert codec.read(genesys("dtmf", 3, digit="7")) == [KeyPressed("7")]
    assert codec.read(genesys("playback_started", 4)) == []
    assert codec.read(genesys("playback_completed", 5)) == []
    assert codec.read(genesys("update", 6, language="es-ES")) == []
    assert codec.read(genesys("error", 7, code=429, message="Rate limit exceeded", retryAfter="PT3S")) == [
        UnknownMessage("error 429")
    ]
    assert codec.read(genesys("surprise", 8)) == [UnknownMessage("surprise")]
    closed, ended = codec.read(genesys("close", 9, 2, reason="end"))
    assert sent(closed) == ours("closed", 3, 9)
    assert ended == CallEnded()
    assert codec.read(bytes(8)) == []


@pytest.mark.parametrize("kind", ["discarded", "resumed"])
def test_sound_that_genesys_did_not_send_is_counted(kind: str) -> None:
    codec = LINES["genesys"].started()
    codec.read(bytes(800))
    assert codec.read(genesys("paused", 2)) == []
    assert codec.read(genesys(kind, 3, start="PT0.1S", discarded="PT2.25S")) == []
    assert codec.read(bytes(8)) == [Media(bytes(8), at_ms=2350)]


@pytest.mark.parametrize("duration", ["", "PT-1S", "P1D", "PT1", "1", "PT1e9S", "PT9999999999S", "PT١S"])
def test_a_wrong_duration(duration: str) -> None:
    with pytest.raises(BadMessage):
        LINES["genesys"].started().read(genesys("discarded", 2, start="PT0S", discarded=duration))


def test_what_is_sent_to_genesys() -> None:
    codec = LINES["genesys"].started()
    codec.read(genesys("dtmf", 2, digit="7"))
    assert codec.media(b"\1\2") == b"\1\2"
    assert codec.mark("3") is None
    assert json.loads(codec.clear() or "") == ours("event", 2, 2, entities=[{"type": "barge_in", "data": {}}])
    assert json.loads(codec.hang_up() or "") == ours("disconnect", 3, 2, reason="completed", outputVariables={})
    closed, ended = codec.read(genesys("close", 3, 3, reason="disconnect"))
    assert sent(closed) == ours("closed", 4, 3)
    assert ended == CallEnded()


def test_sound_goes_in_fewer_than_five_messages_a_second() -> None:
    assert Genesys.traits.piece_ms > 200
    assert Genesys.traits.lead_s > Genesys.traits.piece_ms / 1000


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (genesys("ping", 3), "seq must grow by one"),
        (genesys("ping", 1), "seq must grow by one"),
        (genesys("ping", 2, serverseq=2), "serverseq is higher"),
        (GENESYS_OPEN, "open comes twice"),
        (json.dumps({**json.loads(genesys("ping", 2)), "id": "another"}), "id is not that of this session"),
        (json.dumps({**json.loads(genesys("ping", 2)), "version": "3"}), "version must be 2"),
        (json.dumps({**json.loads(genesys("ping", 2)), "parameters": []}), "parameters must be an object"),
        (json.dumps({"version": "2"}), "id must be a string"),
    ],
)
def test_what_breaks_the_rules(message: str, rule: str) -> None:
    with pytest.raises(BadMessage, match=rule):
        LINES["genesys"].started().read(message)


def test_nothing_comes_before_open() -> None:
    for early in (genesys("ping", 1, 0), bytes(160)):
        with pytest.raises(BadMessage, match=r"open"):
            Genesys().read(early)

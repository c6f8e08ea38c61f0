"""Plivo: the messages of its documents, and its headers in all their forms."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    BufferCleared,
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)
from voxlane.server.protocols.phone.plivo import Plivo

from .lines import LINES, MULAW, PCM_16K, PLIVO_START, PLIVO_STREAM, b64, plivo_media, plivo_start

CALL = "12345678-1234-1234-1234-123456789abc"


def test_a_call_starts() -> None:
    facts = CallFacts("plivo", CALL, "", "", {"userId": "12345", "sessionId": "abc-xyz"})
    assert Plivo().read(PLIVO_START) == [CallStarted(facts, MULAW, MULAW)]


def test_what_plivo_sends() -> None:
    codec = LINES["plivo"].started()
    assert codec.read(plivo_media(b"\xff", 41)) == [Media(b"\xff", 41)]
    dtmf = {
        "event": "dtmf",
        "sequenceNumber": 50,
        "streamId": PLIVO_STREAM,
        "dtmf": {"track": "inbound", "digit": "5", "timestamp": "1705312250000"},
        "extra_headers": "{}",
    }
    assert codec.read(json.dumps(dtmf)) == [KeyPressed("5")]
    played = """{
    "event": "playedStream",
    "streamId": "87654321-4321-4321-4321-cba987654321",
    "name": "customer greeting audio"
    }"""
    assert codec.read(played) == [MarkReturned("customer greeting audio")]
    cleared = {"event": "clearedAudio", "sequenceNumber": 80, "streamId": PLIVO_STREAM}
    assert codec.read(json.dumps(cleared)) == [BufferCleared()]
    assert codec.read(json.dumps({"event": "sentDTMF"})) == [UnknownMessage("sentDTMF")]
    assert codec.read(json.dumps({"event": "stop", "streamId": PLIVO_STREAM})) == [CallEnded()]


def test_what_is_sent_to_plivo() -> None:
    codec = LINES["plivo"].started()
    assert json.loads(codec.media(b"\xff\x7f")) == {
        "event": "playAudio",
        "streamId": PLIVO_STREAM,
        "media": {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": "/38="},
    }
    assert json.loads(codec.mark("3") or "") == {"event": "checkpoint", "streamId": PLIVO_STREAM, "name": "3"}
    assert json.loads(codec.clear() or "") == {"event": "clearAudio", "streamId": PLIVO_STREAM}
    assert codec.hang_up() is None


def test_linear_sound() -> None:
    codec = Plivo()
    (started,) = codec.read(plivo_start("audio/x-l16", 16_000))
    assert isinstance(started, CallStarted)
    assert started.input == started.output == PCM_16K
    assert codec.read(plivo_media(b"\1\0", 1)) == [Media(b"\1\0", 1)]
    assert json.loads(codec.media(b"\1\0"))["media"] == {
        "contentType": "audio/x-l16",
        "sampleRate": 16_000,
        "payload": b64(b"\1\0"),
    }
    (started,) = Plivo().read(plivo_start("audio/x-l16;rate=8000", 16_000))
    assert isinstance(started, CallStarted)
    assert started.input == AudioFormat("pcm16", 8_000)


def test_a_format_that_is_not_supported() -> None:
    with pytest.raises(BadMessage, match="set contentType to audio/x-mulaw;rate=8000"):
        Plivo().read(plivo_start("audio/opus", 48_000))


@pytest.mark.parametrize(
    "headers",
    [
        "shop=5;token=ab=c",
        "shop=5,token=ab=c",
        " X-PH-shop = 5 ; X-PH-token = ab=c ;",
        "{X-PH-shop: 5, X-PH-token=ab=c}",
        '{"X-PH-shop": "5", "X-PH-token": "ab=c"}',
        '{"shop": 5, "token": "ab=c"}',
        {"x-ph-shop": "5", "X-PH-token": "ab=c"},
        "{'shop': '5', 'token'='ab=c'}",
    ],
)
def test_headers(headers: object) -> None:
    (started,) = Plivo().read(plivo_start("audio/x-mulaw", 8_000, headers))
    assert isinstance(started, CallStarted)
    assert started.facts.parameters == {"shop": "5"}
    assert started.facts.token == "ab=c"


@pytest.mark.parametrize("headers", ["", "{}", None, 5, [], "null", "[" * 9_000, "====", ";;,,", "5"])
def test_no_headers(headers: object) -> None:
    (started,) = Plivo().read(plivo_start("audio/x-mulaw", 8_000, headers))
    assert isinstance(started, CallStarted)
    assert started.facts.token == ""

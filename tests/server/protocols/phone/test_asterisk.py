"""Asterisk's chan_websocket: messages as Asterisk 22.10 sent them, and the limits of its driver."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.asterisk import Asterisk
from voxlane.server.protocols.phone.line_events import (
    BufferFull,
    BufferReady,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)

from .lines import ASTERISK_CHANNEL, ASTERISK_START, LINES, MULAW, asterisk, asterisk_start


def test_a_call_starts() -> None:
    facts = CallFacts("asterisk", ASTERISK_CHANNEL, "", "", {"FAR": "all levels", "INHERITED": "one level"})
    assert Asterisk().read(ASTERISK_START) == [CallStarted(facts, MULAW, MULAW)]


def test_variables_tell_the_token_and_the_numbers() -> None:
    (started,) = Asterisk().read(asterisk_start("ulaw", 160, __TOKEN="sesame", _caller="+15550100", TO="100"))
    assert isinstance(started, CallStarted)
    assert started.facts.token == "sesame"
    assert (started.facts.caller, started.facts.called) == ("+15550100", "100")
    assert started.facts.parameters == {"caller": "+15550100", "TO": "100"}
    (started,) = Asterisk().read(
        asterisk_start(
            "ulaw", 160, VOXLANE_FROM="+15550100", __VOXLANE_TO="100", VOXLANE_TOKEN="sesame", DIALEDPEER="x"
        )
    )
    assert isinstance(started, CallStarted)
    assert (started.facts.token, started.facts.caller, started.facts.called) == ("sesame", "+15550100", "100")
    assert started.facts.parameters == {"FROM": "+15550100", "TO": "100"}


@pytest.mark.parametrize(
    ("name", "frame", "form"),
    [
        ("ulaw", 160, MULAW),
        ("alaw", 160, AudioFormat("alaw", 8_000)),
        ("slin", 320, AudioFormat("pcm16", 8_000)),
        ("slin16", 640, AudioFormat("pcm16", 16_000)),
        ("slin24", 960, AudioFormat("pcm16", 24_000)),
        ("g722", 160, AudioFormat("g722", 16_000)),
    ],
)
def test_formats(name: str, frame: int, form: AudioFormat) -> None:
    for size in (frame, 2 * frame, 0):
        codec = Asterisk()
        (started,) = codec.read(asterisk_start(name, size))
        assert isinstance(started, CallStarted)
        assert started.input == started.output == form
        assert len(codec.media(b"\1\2")) == (size or frame)
        assert codec.media(bytes(2 * frame)) == bytes(2 * frame)


def test_what_asterisk_sends() -> None:
    codec = LINES["asterisk"].started()
    assert codec.read(bytes(160)) == [Media(bytes(160))]
    assert codec.read(b"") == []
    assert codec.read(asterisk("DTMF_END", digit="5")) == [KeyPressed("5")]
    assert codec.read(asterisk("MEDIA_XOFF")) == [BufferFull()]
    assert codec.read(asterisk("MEDIA_XON")) == [BufferReady()]
    assert codec.read(asterisk("MEDIA_MARK_PROCESSED", correlation_id="12")) == [MarkReturned("12")]
    status = asterisk(
        "STATUS", queue_length=0, xon_level=800, xoff_level=900, queue_full=False, bulk_media=False, media_paused=False
    )
    assert codec.read(status) == []
    assert codec.read(asterisk("QUEUE_DRAINED")) == []
    assert codec.read(asterisk("ERROR", error_text="Unable to parse JSON command")) == [UnknownMessage("ERROR")]


def test_what_is_sent_to_asterisk() -> None:
    codec = LINES["asterisk"].started()
    assert codec.media(bytes(161)) == bytes(161) + b"\xff" * 159
    assert json.loads(codec.mark("12") or "") == {"command": "MARK_MEDIA", "correlation_id": "12"}
    assert json.loads(codec.clear() or "") == {"command": "FLUSH_MEDIA"}
    assert json.loads(codec.hang_up() or "") == {"command": "HANGUP"}
    longest = codec.mark("x" * 80)
    assert longest is not None
    assert len(longest) <= 128  # Asterisk ignores longer texts
    with pytest.raises(AssertionError):
        codec.mark("x" * 100)


@pytest.mark.parametrize("name", ["opus", "slin12", "slin192", "g729", ""])
def test_a_format_that_is_not_supported(name: str) -> None:
    with pytest.raises(BadMessage, match=r"dial with c\(\) and one of ulaw, alaw, slin, slin16, slin24, g722"):
        Asterisk().read(asterisk_start(name, 160))


def test_plain_text_control_is_refused_with_what_to_add() -> None:
    plain = "MEDIA_START connection_id:voxlane channel:WebSocket/voxlane/0x1 channel_id:1.1 format:ulaw"
    with pytest.raises(BadMessage, match=r"add f\(json\) to the dial string"):
        Asterisk().read(plain)

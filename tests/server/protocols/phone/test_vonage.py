"""Vonage: the messages of its documents."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    BufferCleared,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)
from voxlane.server.protocols.phone.vonage import Vonage

from .lines import LINES, PCM_16K, VONAGE_CONNECTED


def test_a_call_starts() -> None:
    facts = CallFacts("vonage", "", "", "", {"prop1": "value1", "prop2": "value2"}, "sesame")
    assert Vonage().read(VONAGE_CONNECTED) == [CallStarted(facts, PCM_16K, PCM_16K)]


def test_the_headers_tell_the_call_and_its_numbers() -> None:
    message = {
        "event": "websocket:connected",
        "content-type": "audio/l16;rate=8000",
        "uuid": "u",
        "from": 4915,
        "to": "1",
    }
    (started,) = Vonage().read(json.dumps(message))
    assert isinstance(started, CallStarted)
    assert (started.facts.call_id, started.facts.caller, started.facts.called) == ("u", "4915", "1")
    assert started.input == AudioFormat("pcm16", 8_000)


def test_what_vonage_sends() -> None:
    codec = LINES["vonage"].started()
    assert codec.read(b"\1\2" * 320) == [Media(b"\1\2" * 320)]
    assert codec.read(b"") == []
    assert codec.read('{"event":"websocket:dtmf","digit":"5","duration":260}') == [KeyPressed("5")]
    assert codec.read('{"event":"websocket:dtmf","dtmf":{"digit":7}}') == [KeyPressed("7")]
    assert codec.read('{"event":"websocket:cleared"}') == [BufferCleared()]
    assert codec.read('{"event":"websocket:notify","payload":{"mark":"12"}}') == [MarkReturned("12")]
    assert codec.read('{"event":"websocket:notify","payload":{"customKey":"customValue"}}') == [
        UnknownMessage("websocket:notify")
    ]
    assert codec.read('{"event":"websocket:media:update","active":true}') == [UnknownMessage("websocket:media:update")]


def test_what_is_sent_to_vonage() -> None:
    codec = LINES["vonage"].started()
    assert codec.media(b"\1\2" * 320) == b"\1\2" * 320
    assert codec.media(b"\1\2") == b"\1\2" + bytes(638)
    assert json.loads(codec.mark("12") or "") == {"action": "notify", "payload": {"mark": "12"}}
    assert json.loads(codec.clear() or "") == {"action": "clear"}
    assert codec.hang_up() is None


@pytest.mark.parametrize("form", ["audio/opus;rate=48000", "audio/l16;rate=44100", "audio/pcmu;rate=8000", "G722", ""])
def test_a_format_that_is_not_supported(form: str) -> None:
    with pytest.raises(BadMessage, match=r"set content-type to audio/l16;rate=8000, 16000 or 24000"):
        Vonage().read(json.dumps({"event": "websocket:connected", "content-type": form}))

"""jambonz: the messages of its documents and of its media server's source."""

from __future__ import annotations

import json

import numpy as np
import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.jambonz import Jambonz
from voxlane.server.protocols.phone.line_events import (
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)

from .lines import JAMBONZ_CALL, LINES, PCM_16K


def call(**changed: object) -> str:
    return json.dumps({**json.loads(JAMBONZ_CALL), **changed})


def test_a_call_starts() -> None:
    facts = CallFacts(
        "jambonz",
        "df09e8d4-7ffd-492b-94d9-51a60318552c",
        "+15083084809",
        "+15083728299",
        {"from": "+15083084809", "to": "+15083728299", "shop": "Paris"},
        "sesame",
    )
    assert Jambonz().read(JAMBONZ_CALL) == [CallStarted(facts, PCM_16K, PCM_16K)]


@pytest.mark.parametrize("key", ["metadata", "customerData"])
def test_parameters_may_be_inside(key: str) -> None:
    (started,) = Jambonz().read(call(token="", **{key: {"token": "open", "shop": "Rome"}}))
    assert isinstance(started, CallStarted)
    assert started.facts.token == "open"
    assert started.facts.parameters["shop"] == "Rome"


def test_the_sound_back_may_have_a_rate_of_its_own() -> None:
    (started,) = Jambonz().read(call(sampleRate="8000", bidirectionalAudio={"enabled": True, "sampleRate": 24000}))
    assert isinstance(started, CallStarted)
    assert (started.input, started.output) == (AudioFormat("pcm16", 8_000), AudioFormat("pcm16", 24_000))


def test_what_jambonz_sends() -> None:
    codec = LINES["jambonz"].started()
    assert codec.read(b"\1\2" * 320) == [Media(b"\1\2" * 320)]
    assert codec.read(b"") == []
    assert codec.read('{"event": "dtmf", "dtmf": "2", "duration": "1600"}') == [KeyPressed("2")]
    assert codec.read('{"type": "mark", "data": {"name":"12", "event": "playout"}}') == [MarkReturned("12")]
    assert codec.read('{"type": "mark", "data": {"name":"12", "event": "cleared"}}') == [MarkReturned("12", False)]
    assert codec.read('{"type": "playDone", "data": {}}') == [UnknownMessage("playDone")]


def test_what_is_sent_to_jambonz() -> None:
    codec = LINES["jambonz"].started()
    assert json.loads(codec.mark("12") or "") == {"type": "mark", "data": {"name": "12"}}
    assert json.loads(codec.clear() or "") == {"type": "killAudio"}
    assert json.loads(codec.hang_up() or "") == {"type": "disconnect"}


def test_no_sample_looks_like_jambonzs_own_marker() -> None:
    samples = np.array([-2, -1, 0, 1, 255, -256], "<i2")
    sent = np.frombuffer(LINES["jambonz"].started().media(samples.tobytes()), "<i2")
    assert sent[:6].tolist() == [-2, 0, 0, 1, 255, -256]


def test_no_sound_waits_for_the_next_in_jambonzs_buffer() -> None:
    codec = LINES["jambonz"].started()
    rate = LINES["jambonz"].form.rate
    assert rate * codec.traits.piece_ms // 1000 >= 640  # it gathers so many samples, and twice as many at first
    assert len(codec.media(b"\1\0")) == 2 * 1280
    assert codec.media(b"\1\0") == b"\1\0" + bytes(1278)
    assert len(codec.media(b"\1\0" * 700)) == 1400


def test_marks_of_jambonz_say_nothing_after_a_clear() -> None:
    codec = LINES["jambonz"].started()
    codec.read('{"type": "mark", "data": {"name":"1", "event": "cleared"}}')
    assert codec.read('{"type": "mark", "data": {"name":"2", "event": "playout"}}') == [MarkReturned("2", False)]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"mixType": "stereo"}, 'set mixType to "mono"'),
        ({"mixType": "mixed"}, 'set mixType to "mono"'),
        ({"sampleRate": 64000}, "set sampleRate to 8000, 16000 or 24000"),
        ({"sampleRate": None}, "sampleRate must be a whole number"),
        ({"bidirectionalAudio": {"sampleRate": 11025}}, "set sampleRate"),
    ],
)
def test_what_is_not_supported(changed: dict[str, object], rule: str) -> None:
    with pytest.raises(BadMessage, match=rule):
        Jambonz().read(call(**changed))

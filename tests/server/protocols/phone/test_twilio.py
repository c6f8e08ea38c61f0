"""Twilio: the messages of its documents."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)
from voxlane.server.protocols.phone.twilio import Twilio

from .lines import LINES, MULAW, STREAM_SID, TWILIO_CONNECTED, TWILIO_START, twilio_media


def test_a_call_starts() -> None:
    codec = Twilio()
    assert codec.read(TWILIO_CONNECTED) == []
    (started,) = codec.read(TWILIO_START)
    parameters = {"FirstName": "Jane", "LastName": "Doe", "RemoteParty": "Bob"}
    facts = CallFacts("twilio", "CA00000000000000000000000000000000", "", "", parameters, "sesame")
    assert started == CallStarted(facts, MULAW, MULAW)


def test_what_twilio_sends() -> None:
    codec = LINES["twilio"].started()
    media = (
        '{"event": "media", "sequenceNumber": "4", "media": {"track": "inbound", "chunk": "2", "timestamp": "5", '
        '"payload": "//79/v7+/v7+"}, "streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0"}'
    )
    assert codec.read(media) == [Media(b"\xff\xfe\xfd\xfe\xfe\xfe\xfe\xfe\xfe", 2, 5)]
    dtmf = (
        '{"event": "dtmf", "streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0", "sequenceNumber": "5", '
        '"dtmf": {"track": "inbound_track", "digit": "1"}}'
    )
    assert codec.read(dtmf) == [KeyPressed("1")]
    mark = (
        '{"event": "mark", "sequenceNumber": "4", "streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0", '
        '"mark": {"name": "my label"}}'
    )
    assert codec.read(mark) == [MarkReturned("my label")]
    stop = (
        '{"event": "stop", "sequenceNumber": "5", "stop": {"accountSid": "AC00000000000000000000000000000000", '
        '"callSid": "CA00000000000000000000000000000000"}, "streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0"}'
    )
    assert codec.read(stop) == [CallEnded()]
    assert codec.read(stop) == []
    assert codec.read(twilio_media(b"1", 9)) == []


def test_what_is_sent_to_twilio() -> None:
    codec = LINES["twilio"].started()
    assert json.loads(codec.media(b"\xff\x7f")) == {
        "event": "media",
        "streamSid": STREAM_SID,
        "media": {"payload": "/38="},
    }
    assert json.loads(codec.mark("7") or "") == {"event": "mark", "streamSid": STREAM_SID, "mark": {"name": "7"}}
    assert json.loads(codec.clear() or "") == {"event": "clear", "streamSid": STREAM_SID}
    assert codec.hang_up() is None


def test_numbers_may_be_numbers() -> None:
    message = json.loads(twilio_media(b"1", 3))
    message["media"] |= {"chunk": 3, "timestamp": 60}
    assert LINES["twilio"].started().read(json.dumps(message)) == [Media(b"1", 3, 60)]


def test_our_own_sound_is_ignored_and_then_the_numbers_are_not_trusted() -> None:
    codec = LINES["twilio"].started()
    message = json.loads(twilio_media(b"1", 3))
    message["media"]["track"] = "outbound"
    assert codec.read(json.dumps(message)) == []
    assert codec.read(twilio_media(b"1", 4)) == [Media(b"1", None, 80)]


@pytest.mark.parametrize("key", list("0123456789*#ABCD"))
def test_keys(key: str) -> None:
    codec = LINES["twilio"].started()
    assert codec.read(json.dumps({"event": "dtmf", "dtmf": {"digit": key.lower()}})) == [KeyPressed(key)]


@pytest.mark.parametrize("key", ["", "E", "12", "١", "ß", "\n", "x" * 1000])
def test_what_is_no_key(key: str) -> None:
    codec = LINES["twilio"].started()
    assert codec.read(json.dumps({"event": "dtmf", "dtmf": {"digit": key}})) == [UnknownMessage("dtmf")]


def test_an_unknown_message_goes_by_a_short_name() -> None:
    assert Twilio().read(json.dumps({"event": "x" * 1000})) == [UnknownMessage("x" * 40)]


def test_numbers_of_the_call_from_its_parameters() -> None:
    start = json.loads(TWILIO_START)
    start["start"]["customParameters"] = {"From": "+15550100", "called": "+15550199"}
    (started,) = Twilio().read(json.dumps(start))
    assert isinstance(started, CallStarted)
    assert (started.facts.caller, started.facts.called) == ("+15550100", "+15550199")
    assert started.facts.parameters == {"From": "+15550100", "called": "+15550199"}


def test_parameters_have_limits() -> None:
    start = json.loads(TWILIO_START)
    given: dict[str, object] = {f"k{n}": n for n in range(100)}
    start["start"]["customParameters"] = {
        "x" * 513: "1",
        "long": "x" * 513,
        "list": [1],
        "object": {},
        "none": None,
        "flag": True,
        **given,
        "token": "late",
    }
    (started,) = Twilio().read(json.dumps(start))
    assert isinstance(started, CallStarted)
    assert started.facts.parameters == {"flag": "true", **{f"k{n}": str(n) for n in range(63)}}
    assert started.facts.token == "late"


@pytest.mark.parametrize("parameters", [None, [], 5, "token=1", [1], [{"name": 1}], [{}]])
def test_parameters_of_another_shape_are_none(parameters: object) -> None:
    start = json.loads(TWILIO_START)
    start["start"]["customParameters"] = parameters
    (started,) = Twilio().read(json.dumps(start))
    assert isinstance(started, CallStarted)
    assert started.facts.parameters == {}

"""Which telephone system speaks is told from its first messages, and the query adds to the facts of a call."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone.line_events import CallFacts, CallStarted, LineCodec, Message
from voxlane.server.protocols.phone.systems import SYSTEMS, accepted_subprotocol, recognise, with_query

from .lines import JAMBONZ_CALL, LINES, TWILIO_CONNECTED, TWILIO_START

WEB = [name for name in LINES if name != "audiosocket"]


@pytest.mark.parametrize("name", WEB)
def test_each_system_is_recognised_when_its_call_starts(name: str) -> None:
    opening = LINES[name].opening
    for count in range(len(opening)):
        assert recognise(opening[:count], []) is None
    codec = recognise(opening, [])
    assert codec is not None
    assert codec.traits.name == name
    assert type(codec) is LINES[name].make
    events = [event for message in opening for event in codec.read(message)]
    assert any(isinstance(event, CallStarted) for event in events)


def test_a_systems_name_is_that_of_its_codec() -> None:
    assert set(SYSTEMS) == set(WEB)
    assert {name: system.codec().traits.name for name, system in SYSTEMS.items()} == {name: name for name in SYSTEMS}


def test_a_codec_is_new_each_time() -> None:
    opening = (TWILIO_CONNECTED, TWILIO_START)
    first, second = (recognise(opening, []) for _ in range(2))
    assert first is not None
    assert first is not second


def test_what_the_protocol_requires_is_there() -> None:
    for line in LINES.values():
        codec: LineCodec = line.started()
        assert (codec.clear() is None) == (not codec.traits.clears)
        assert (codec.mark("1") is None) == (not codec.traits.marks)
        assert codec.traits.lead_s * 1000 > codec.traits.piece_ms


@pytest.mark.parametrize("offered", [["audio.jambonz.org"], ["x", "audio.drachtio.org"]])
def test_jambonz_is_known_by_its_subprotocol(offered: list[str]) -> None:
    codec = recognise([], offered)
    assert codec is not None
    assert codec.traits.name == "jambonz"
    assert codec.read(JAMBONZ_CALL)


@pytest.mark.parametrize(
    ("offered", "accepted"),
    [([], None), (["voxlane.v1"], None), (["media"], "media"), (["other", "audio.jambonz.org"], "audio.jambonz.org")],
)
def test_the_subprotocol_to_accept(offered: list[str], accepted: str | None) -> None:
    assert accepted_subprotocol(offered) == accepted


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([b"\0" * 160], "sound comes before"),
        ([TWILIO_CONNECTED, b"\0"], "sound comes before"),
        ([TWILIO_CONNECTED] * 3, "no telephone system"),
        (['{"event": "hello"}'] * 3, "no telephone system"),
        (['{"event": "hello"}', "{}"], "has its name in event"),
        (['{"event": "media", "streamSid": "MZ"}'], "media comes before start"),
        ([TWILIO_CONNECTED, '{"event": "stop"}'], "stop comes before start"),
        (['{"event": "start"}'], "start must be an object"),
        (['{"event": "start", "start": []}'], "start must be an object"),
        (['{"event": "start", "start": {"callSid": "CA"}}'], "no telephone system"),
        (["{}"], "has its name in event"),
        (['{"event": 5}'], "has its name in event"),
        (["[]"], "a message is a JSON object"),
        (["hello"], "not JSON"),
        (["[" * 1000 + "]" * 1000], "not JSON, or nested too deeply"),
        (["x" * 200_000], "at most 131072 characters"),
    ],
)
def test_what_begins_no_call(messages: list[Message], rule: str) -> None:
    for count in range(len(messages)):
        assert recognise(messages[:count], []) is None
    with pytest.raises(BadMessage, match=rule):
        recognise(messages, [])


def test_asterisk_with_plain_text_is_told_what_to_add() -> None:
    plain = "MEDIA_START connection_id:voxlane format:ulaw"
    codec = recognise([plain], ["media"])
    assert codec is not None
    with pytest.raises(BadMessage, match=r"f\(json\)"):
        codec.read(plain)


def test_the_query_adds_to_the_facts_but_does_not_change_them() -> None:
    query = {"token": "from query", "from": "+15550100", "to": "100", "shop": "Rome", "lang": "it"}
    bare = with_query(CallFacts("asterisk", "1.1", parameters={"shop": "Paris"}), query)
    assert (bare.token, bare.caller, bare.called) == ("from query", "+15550100", "100")
    assert bare.parameters == {"from": "+15550100", "to": "100", "shop": "Paris", "lang": "it"}
    full = CallFacts("twilio", "CA", "+1", "+2", {"shop": "Paris"}, "own")
    both = with_query(full, {"TOKEN": "x", **query})
    assert (both.token, both.caller, both.called, both.parameters["shop"]) == ("own", "+1", "+2", "Paris")
    assert "TOKEN" not in both.parameters
    assert with_query(full, {}) == full
    assert with_query(full, {"k": "x" * 513}) == full
    json.dumps(dict(both.parameters))

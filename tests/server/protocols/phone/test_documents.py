"""Documents for telephone systems: Twilio's own library writes the same, and every text stays a text."""

from __future__ import annotations

import json
from xml.etree.ElementTree import Element, fromstring, tostring

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from twilio.twiml.voice_response import Connect, Dial, Stream, VoiceResponse

from voxlane.server.protocols.phone.documents import JSON, XML, Document, NextStep, StreamOrder
from voxlane.server.protocols.phone.plivo import plivo_next, plivo_xml
from voxlane.server.protocols.phone.telnyx import texml
from voxlane.server.protocols.phone.twilio import twiml, twiml_next
from voxlane.server.protocols.phone.vonage import ncco, ncco_next

ORDER = StreamOrder(
    "wss://example.org/v1/phone", "abc123", "https://example.org/v1/phone/twiml/next?ticket=0&x=<1>", "4930123456"
)
NUMBER, SIP = NextStep("+4930111111", "4930123456"), NextStep("sip:desk@example.org;transport=tls")


def root(document: Document) -> Element:
    assert document.kind == XML
    assert document.body.startswith(b"<?xml version='1.0' encoding='utf-8'?>")
    return fromstring(document.body)


def same(document: Document, theirs: VoiceResponse) -> bool:
    return tostring(root(document)) == tostring(fromstring(str(theirs)))


def test_twilio_writes_the_same_document() -> None:
    theirs = VoiceResponse()
    connect = Connect(action=ORDER.next_url, method="POST")
    stream = Stream(url=ORDER.stream_url)
    stream.parameter(name="token", value=ORDER.token)
    connect.append(stream)
    theirs.append(connect)
    assert same(twiml(ORDER), theirs)


def test_twilio_writes_the_same_ends() -> None:
    hang_up, number, sip = VoiceResponse(), VoiceResponse(), VoiceResponse()
    hang_up.hangup()
    assert same(twiml_next(None), hang_up)
    dial = Dial()
    dial.number(NUMBER.target)
    number.append(dial)
    assert same(twiml_next(NUMBER), number)
    dial = Dial()
    dial.sip(SIP.target)
    sip.append(dial)
    assert same(twiml_next(SIP), sip)


def test_telnyx_plays_what_it_is_sent_and_asks_afterwards() -> None:
    response = root(texml(ORDER))
    assert [one.tag for one in response] == ["Connect", "Redirect"]
    stream = response[0][0]
    assert stream.get("url") == "wss://example.org/v1/phone?token=abc123"
    assert stream.get("bidirectionalMode") == "rtp"
    assert (stream.get("codec"), stream.get("bidirectionalCodec")) == ("PCMU", "PCMU")
    assert stream[0].attrib == {"name": "token", "value": "abc123"}
    assert response[1].text == ORDER.next_url


def test_plivo_keeps_the_call_and_asks_afterwards() -> None:
    response = root(plivo_xml(ORDER))
    assert [one.tag for one in response] == ["Stream", "Redirect"]
    assert response[0].attrib == {
        "bidirectional": "true",
        "keepCallAlive": "true",
        "contentType": "audio/x-mulaw;rate=8000",
        "extraHeaders": "token=abc123",
    }
    assert response[0].text == ORDER.stream_url
    assert response[1].text == ORDER.next_url
    assert tostring(root(plivo_next(NUMBER))) == b"<Response><Dial><Number>+4930111111</Number></Dial></Response>"
    assert root(plivo_next(SIP))[0][0].tag == "User"
    assert tostring(root(plivo_next(None))) == b"<Response><Hangup /></Response>"


def test_vonage_connects_and_asks_afterwards() -> None:
    document = ncco(ORDER)
    assert document.kind == JSON
    (connect,) = json.loads(document.body)
    assert connect["endpoint"] == [
        {
            "type": "websocket",
            "uri": ORDER.stream_url,
            "content-type": "audio/l16;rate=16000",
            "headers": {"token": "abc123"},
        }
    ]
    assert (connect["eventType"], connect["eventUrl"], connect["from"]) == (
        "synchronous",
        [ORDER.next_url],
        "4930123456",
    )
    assert json.loads(ncco_next(None).body) == []
    (dialled,) = json.loads(ncco_next(NUMBER).body)
    assert dialled == {
        "action": "connect",
        "from": "4930123456",
        "endpoint": [{"type": "phone", "number": "4930111111"}],
    }
    (dialled,) = json.loads(ncco_next(SIP).body)
    assert dialled == {"action": "connect", "endpoint": [{"type": "sip", "uri": SIP.target}]}


@pytest.mark.parametrize("called", ["", "anonymous", "1", "+49 30", "1" * 16])
def test_a_caller_that_is_no_number_is_left_out(called: str) -> None:
    order = StreamOrder(ORDER.stream_url, ORDER.token, ORDER.next_url, called)
    assert "from" not in json.loads(ncco(order).body)[0]


@settings(max_examples=examples(200), deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"]), min_size=1))
def test_a_text_cannot_become_a_command(text: str) -> None:
    for write in (twiml_next, plivo_next):
        response = root(write(NextStep(text)))
        assert [one.tag for one in response.iter()] == [
            "Response",
            "Dial",
            "Number" if not text.startswith(("sip:", "sips:")) else response[0][0].tag,
        ]
        assert response[0][0].text == text
    order = StreamOrder(text, text, text)
    stream = root(twiml(order))[0][0]
    assert (stream.get("url"), stream[0].get("value")) == (text, text)
    assert json.loads(ncco(order).body)[0]["endpoint"][0]["uri"] == text

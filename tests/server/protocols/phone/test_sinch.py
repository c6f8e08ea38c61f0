"""Sinch: the messages, documents and signatures of its documents."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.documents import StreamOrder
from voxlane.server.protocols.phone.line_events import CallFacts, CallStarted, Media, MustSend, UnknownMessage
from voxlane.server.protocols.phone.signing import SignedRequest
from voxlane.server.protocols.phone.sinch import SINCH, Sinch, svaml

from .lines import LINES, PCM_16K, SINCH_CONNECT

SECRET = "BeIukql3pTKJ8RGL5zo0DA=="
NOW = 1_411_556_381.0
BODY = (
    b'{"event":"ace","callid":"822aa4b7-05b4-4d83-87c7-1f835ee0b6f6_257",'
    b'"timestamp":"2014-09-24T10:59:41Z","version":1}'
)


def request(**changes: str | bytes) -> SignedRequest:
    """Return the request that Sinch's documents show, signed with the secret that they show."""
    body, stamp = b"", changes.get("stamp", "2014-09-24T10:59:41Z")
    digest = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    text = f"POST\n{digest}\napplication/json\nx-timestamp:{stamp}\n/sinch/callback/ace"
    mac = base64.b64encode(hmac.new(base64.b64decode(SECRET), text.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "authorization": f"{changes.get('scheme', 'application')} 669E367E-6BBA-48AB-AF15-266871C28135:{mac}",
        "x-timestamp": str(stamp),
        "content-type": "application/json",
    }
    body = changes.get("body", BODY)
    assert isinstance(body, bytes)
    return SignedRequest("POST", "https://callbacks.yourdomain.com/sinch/callback/ace", headers, body=body)


def mark(request: SignedRequest, secret: str = SECRET, now: float = NOW) -> str:
    assert SINCH.requests is not None
    return SINCH.requests.mark(secret, request, now) if SINCH.requests.shown(request.headers) else ""


def test_the_request_of_the_documents_is_signed() -> None:
    assert mark(request()) == "Tg6fMyo8mj9pYfWQ9ssbx3Tc1BNC87IEygAfLbJqZb4="


def test_other_requests_are_not() -> None:
    assert not mark(request(body=BODY + b" "))
    assert not mark(request(scheme="basic"))
    assert not mark(request(), secret=base64.b64encode(b"another").decode())
    assert not mark(request(), now=NOW + 301)
    for stamp in ("2014-09-24T10:59:41+00:00", "yesterday", ""):
        assert not mark(request(stamp=stamp))


def test_a_secret_is_base64() -> None:
    assert SINCH.key is not None
    SINCH.key.check(SECRET)
    for wrong in ("", "secret"):
        with pytest.raises(ValueError, match="base64"):
            SINCH.key.check(wrong)


def test_documents() -> None:
    documents = SINCH.documents
    assert documents is not None
    order = json.loads(svaml(StreamOrder("wss://example.org/v1/phone", "abc", "")).body)
    assert order["action"]["destination"] == {"type": "Websocket", "endpoint": "wss://example.org/v1/phone"}
    assert order["action"]["callHeaders"] == [{"key": "token", "value": "abc"}]
    assert json.loads(documents.busy().body) == {"action": {"name": "hangup"}}
    assert [documents.announces({"event": event}) for event in ("ice", "ace", "dice")] == [True, False, False]


@pytest.mark.parametrize(
    "headers", [{"token": "sesame", "shop": "5"}, [{"key": "token", "value": "sesame"}, {"key": "shop", "value": "5"}]]
)
def test_a_call_starts(headers: object) -> None:
    facts = CallFacts("sinch", "a-call", "", "", {"shop": "5"}, "sesame")
    events = Sinch().read(json.dumps({**json.loads(SINCH_CONNECT), "callHeaders": headers}))
    assert events == [CallStarted(facts, PCM_16K, PCM_16K), MustSend('{"command":"answer"}')]


def test_what_sinch_sends_and_gets() -> None:
    codec = LINES["sinch"].started()
    assert codec.read(b"\1\2" * 320) == [Media(b"\1\2" * 320)]
    assert codec.read(b"") == []
    assert codec.read('{"command":"other"}') == [UnknownMessage("other")]
    assert codec.media(b"\1\2") == b"\1\2"
    assert codec.mark("1") is codec.hang_up() is None
    assert json.loads(codec.clear() or "") == {"command": "clear"}
    with pytest.raises(BadMessage, match="twice"):
        codec.read(SINCH_CONNECT)


def test_formats() -> None:
    (started, _) = Sinch().read(SINCH_CONNECT.replace("16000", "8000"))
    assert isinstance(started, CallStarted)
    assert started.output == AudioFormat("pcm16", 8_000)
    with pytest.raises(BadMessage, match="set sampleRate to one of 8000, 16000, 24000"):
        Sinch().read(SINCH_CONNECT.replace("16000", "44100"))
    with pytest.raises(BadMessage, match="sound comes before connect"):
        Sinch().read(b"\0\0")

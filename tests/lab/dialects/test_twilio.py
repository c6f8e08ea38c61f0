"""The carrier against the server's own codec: the opening, marks, clear, and numbers that count up."""

from __future__ import annotations

import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import CallEnded, CallStarted, MarkReturned, Media
from voxlane.server.protocols.phone.twilio import Twilio
from voxlane_lab.dialects.choice import make_dialect

from .faces import KEY, Card, TwilioFace, options, ramp


class Line(Card):
    """A card whose server is a TwilioFace."""

    face: TwilioFace

    def __init__(self, **changes: object) -> None:
        super().__init__("twilio", **changes)

    def marks(self, ticks: int = 0) -> list[str]:
        """Return the marks that come back in so many ticks."""
        return [one.name for one in self.face.heard(self.tick(ticks)) if isinstance(one, MarkReturned)]

    def mark(self, name: str) -> list[str]:
        """Send a mark; return those that come back at once."""
        return [one.name for one in self.face.heard(self.get([self.face.codec.mark(name)]))]  # type: ignore[attr-defined]


def test_the_server_understands_the_opening() -> None:
    client, codec = make_dialect("twilio", options(), "call 1"), Twilio()
    connected, start = client.open(0.0)
    assert codec.read(connected) == []
    (started,) = codec.read(start)
    assert isinstance(started, CallStarted)
    assert started.input == started.output == AudioFormat("mulaw", 8_000)
    assert started.facts.token == KEY
    assert started.facts.call_id.startswith("CA")
    assert client.ready
    assert client.handshake().headers == {}
    other = json.loads(make_dialect("twilio", options(), "call 2").open(0.0)[1])
    assert other["start"]["callSid"] != started.facts.call_id


def test_messages_are_numbered_as_twilio_does() -> None:
    line = Line()
    for place in range(3):
        (message,) = line.client.say(ramp(320), 0.0)
        body = json.loads(message)
        assert body["sequenceNumber"] == str(place + 2)
        assert body["media"]["chunk"] == str(place + 1)
        assert body["media"]["timestamp"] == str(20 * place)
        (media,) = line.face.heard([message])
        assert isinstance(media, Media)
        assert (len(media.data), media.order, media.at_ms) == (160, place + 1, 20 * place)
    (stop,) = line.client.close(1.0)
    assert json.loads(stop)["sequenceNumber"] == "5"
    assert line.face.heard([stop]) == [CallEnded()]


def test_a_mark_comes_back_when_the_sound_before_it_was_played() -> None:
    line = Line()
    line.get(line.face.sound(1, ramp(400)))
    assert line.mark("a") == []
    line.get(line.face.sound(1, ramp(400)))
    assert line.mark("b") == []
    assert line.marks(2) == []
    assert line.marks(1) == ["a"]
    assert line.marks(1) == []
    assert line.marks(1) == ["b"]


def test_a_mark_behind_nothing_comes_back_at_once() -> None:
    assert Line().mark("a") == ["a"]


def test_clear_returns_all_marks_at_once() -> None:
    line = Line()
    line.get(line.face.sound(1, ramp(800)))
    line.mark("a")
    line.mark("b")
    line.tick(1)
    returned = line.face.heard(line.get(line.face.stop(1)))
    assert [one.name for one in returned if isinstance(one, MarkReturned)] == ["a", "b"]
    line.get(line.face.sound(2, ramp(160)))
    assert line.mark("c") == []
    assert line.marks(1) == ["c"]


def test_a_naive_carrier_returns_marks_when_it_has_played() -> None:
    line = Line(naive=True)
    line.get(line.face.sound(1, ramp(320)))
    line.mark("a")
    assert line.get(line.face.stop(1)) == []
    assert line.marks(1) == []
    assert line.marks(1) == ["a"]


def test_sound_has_no_response() -> None:
    line = Line()
    line.get(line.face.sound(1, ramp(320)))
    line.get(line.face.sound(2, ramp(320)))
    line.play_all()
    assert {run.response for run in line.runs} == {""}
    assert [one.offset for one in line.client.arrivals] == [0, 320]
    assert not line.client.names_responses


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\0", "binary message"),
        ("hello", "not JSON"),
        ('{"media": {}}', "without an event"),
        ('{"event": "media"}', "broken media"),
        ('{"event": "media", "media": {"payload": "%%%%"}}', "not base64"),
        ('{"event": "media", "streamSid": "MZother", "media": {"payload": "//8="}}', "another streamSid"),
        ('{"event": "mark", "mark": {"name": 7}}', "broken mark"),
    ],
)
def test_garbage_is_one_clear_sentence(message: bytes | str, said: str) -> None:
    line = Line()
    assert line.get([message]) == []
    assert said in line.client.failure
    assert line.client.failure.startswith("the server ")


def test_what_is_unknown_is_noted_and_ignored() -> None:
    line = Line()
    line.get(['{"event": "dance", "how": "slowly"}'])
    assert line.client.failure == ""
    assert line.names("got") == ["dance"]

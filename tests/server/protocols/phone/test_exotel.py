"""Exotel: the messages of its documents, and sound in whole blocks."""

from __future__ import annotations

import base64
import json

import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.exotel import Exotel
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
)

from .lines import EXOTEL_CONNECTED, EXOTEL_START, EXOTEL_STREAM, LINES, PCM_8K, exotel_media, exotel_start


def test_a_call_starts() -> None:
    codec = Exotel()
    assert codec.read(EXOTEL_CONNECTED) == []
    facts = CallFacts("exotel", "CAxxxxxxxxxxxxxxxxxxxxxxxx", "+919876543210", "+918047491899", {"key1": "value1"})
    assert codec.read(EXOTEL_START) == [CallStarted(facts, PCM_8K, PCM_8K)]


def test_what_exotel_sends() -> None:
    codec = LINES["exotel"].started()
    assert codec.read(exotel_media(b"\1\2", 2)) == [Media(b"\1\2", 2, 200)]
    dtmf = (
        '{"event": "dtmf", "sequence_number": "7", "stream_sid": "MZxxxxxxxxxxxxxxxxxxxxxxxx", '
        '"dtmf": {"digit": "5", "duration": "100"}}'
    )
    assert codec.read(dtmf) == [KeyPressed("5")]
    mark = {"event": "mark", "sequence_number": "15", "stream_sid": EXOTEL_STREAM, "mark": {"name": "m"}}
    assert codec.read(json.dumps(mark)) == [MarkReturned("m")]
    stop = {
        "event": "stop",
        "sequence_number": "25",
        "stream_sid": EXOTEL_STREAM,
        "stop": {"call_sid": "CAxxx", "account_sid": "ACxxx", "reason": "stopped"},
    }
    assert codec.read(json.dumps(stop)) == [CallEnded()]


def test_what_is_sent_to_exotel() -> None:
    codec = LINES["exotel"].started()
    message = json.loads(codec.media(b"\1\2" * 161))
    assert message["event"] == "media"
    assert message["stream_sid"] == EXOTEL_STREAM
    assert base64.b64decode(message["media"]["payload"]) == b"\1\2" * 161 + bytes(318)
    assert json.loads(codec.mark("3") or "") == {"event": "mark", "stream_sid": EXOTEL_STREAM, "mark": {"name": "3"}}
    assert json.loads(codec.clear() or "") == {"event": "clear", "stream_sid": EXOTEL_STREAM}
    assert codec.hang_up() is None


@pytest.mark.parametrize(
    ("encoding", "rate", "form"),
    [
        ("base64", "8000", PCM_8K),
        ("raw/slin", "16000", AudioFormat("pcm16", 16_000)),
        ("audio/L16;rate=24000", "24000", AudioFormat("pcm16", 24_000)),
        ("audio/x-mulaw;rate=8000", "8000", AudioFormat("mulaw", 8_000)),
    ],
)
def test_a_piece_of_sound_is_as_large_as_exotel_wants_it(encoding: str, rate: str, form: AudioFormat) -> None:
    codec = Exotel()
    (started,) = codec.read(exotel_start(encoding, rate))
    assert isinstance(started, CallStarted)
    assert started.input == started.output == form
    assert codec.traits.piece_ms == (200 if form.rate == 8_000 else 100)
    size = form.rate * codec.traits.piece_ms // 1000 * (2 if form.codec == "pcm16" else 1)
    assert size % 320 == 0
    assert size >= (3_200 if form.codec == "pcm16" else 1_600)
    assert codec.traits.lead_s > codec.traits.piece_ms / 1000
    assert Exotel.traits.piece_ms == 200


def test_a_rate_that_is_not_supported() -> None:
    with pytest.raises(BadMessage, match="set sample-rate to 8000, 16000 or 24000"):
        Exotel().read(exotel_start("base64", "44100"))

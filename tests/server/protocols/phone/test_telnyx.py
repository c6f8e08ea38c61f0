"""Telnyx: the messages of its documents, its codecs, and the byte order that it does not name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.byte_order import ByteOrder, swapped
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    MarkReturned,
    Media,
    UnknownMessage,
)
from voxlane.server.protocols.phone.telnyx import Telnyx

from .lines import LINES, MULAW, PCM_16K, TELNYX_CONNECTED, TELNYX_START, TELNYX_STREAM, b64, telnyx_media, telnyx_start

ALAW = AudioFormat("alaw", 8_000)
G722 = AudioFormat("g722", 16_000)


def voice(samples: int, level: float) -> bytes:
    """Return a vowel: harmonics of 120 Hz at 16 kHz."""
    at = np.arange(samples) / 16_000
    wave = sum(np.sin(2 * np.pi * 120 * n * at) / n for n in range(1, 20))
    return (level * np.asarray(wave)).astype("<i2").tobytes()


def started(encoding: str, rate: int, **parameters: object) -> tuple[Telnyx, CallStarted]:
    codec = Telnyx()
    (event,) = codec.read(telnyx_start(encoding, rate, **parameters))
    assert isinstance(event, CallStarted)
    return codec, event


def test_a_call_starts() -> None:
    codec = Telnyx()
    assert codec.read(TELNYX_CONNECTED) == []
    call = "v2:T02llQxIyaRkhfRKxgAP8nY511EhFLizdvdUKJiSw8d6A9BborherQ"
    facts = CallFacts("telnyx", call, "+13122010094", "+13122123456", {"customer_id": "customer_123"})
    assert codec.read(TELNYX_START) == [CallStarted(facts, MULAW, MULAW)]


@pytest.mark.parametrize(
    "connected",
    [
        {"event": "connected", "x-telnyx-streaming-auth-token": "sesame"},
        {"event": "connected", "connected": {"x-telnyx-streaming-auth-token": "sesame"}},
    ],
)
def test_the_streaming_auth_token_is_a_token(connected: dict[str, object]) -> None:
    codec = Telnyx()
    codec.read(json.dumps(connected))
    (event,) = codec.read(TELNYX_START)
    assert isinstance(event, CallStarted)
    assert event.facts.token == "sesame"


def test_parameters_may_be_a_list_of_names_and_values() -> None:
    start = json.loads(TELNYX_START)
    start["start"]["custom_parameters"] = [{"name": "token", "value": "sesame"}, {"name": "shop", "value": 5}]
    (event,) = Telnyx().read(json.dumps(start))
    assert isinstance(event, CallStarted)
    assert (event.facts.token, event.facts.parameters) == ("sesame", {"shop": "5"})


def test_what_telnyx_sends() -> None:
    codec = LINES["telnyx"].started()
    assert codec.read(telnyx_media(b"\xff\xfe", 2)) == [Media(b"\xff\xfe", 2, 40)]
    assert codec.read(telnyx_media(b"\xff\xfe", 2, track="outbound")) == []
    dtmf = {
        "event": "dtmf",
        "stream_id": TELNYX_STREAM,
        "occurred_at": "2025-06-05T08:54:19.698408Z",
        "sequence_number": "5",
        "dtmf": {"digit": "#"},
    }
    assert codec.read(json.dumps(dtmf)) == [KeyPressed("#")]
    mark = {"event": "mark", "stream_id": TELNYX_STREAM, "sequence_number": "6", "mark": {"name": "3"}}
    assert codec.read(json.dumps(mark)) == [MarkReturned("3")]
    error = {
        "event": "error",
        "stream_id": TELNYX_STREAM,
        "payload": {"code": 100003, "title": "invalid_media", "detail": "The media provided was not base64 encoded."},
    }
    assert codec.read(json.dumps(error)) == [UnknownMessage("error 100003")]
    stop = {
        "event": "stop",
        "sequence_number": "5",
        "stop": {"user_id": "3E6F995F-85F7-4705-9741-53B116D28237", "call_control_id": "v2:T02llQxI"},
        "stream_id": TELNYX_STREAM,
    }
    assert codec.read(json.dumps(stop)) == [CallEnded()]


def test_what_is_sent_to_telnyx() -> None:
    codec = LINES["telnyx"].started()
    sound = bytes(range(160))
    assert json.loads(codec.media(sound)) == {"event": "media", "media": {"payload": b64(sound)}}
    assert json.loads(codec.mark("3") or "") == {"event": "mark", "mark": {"name": "3"}}
    assert json.loads(codec.clear() or "") == {"event": "clear"}
    assert codec.hang_up() is None


def test_a_short_end_is_filled_up_to_20_ms() -> None:
    assert json.loads(LINES["telnyx"].started().media(b"\x10"))["media"]["payload"] == b64(b"\x10" + b"\xff" * 159)


@pytest.mark.parametrize(
    ("encoding", "rate", "codec", "output"),
    [
        ("PCMU", 8_000, "", MULAW),
        ("PCMA", 8_000, "", MULAW),
        ("PCMA", 8_000, "PCMA", ALAW),
        ("G722", 8_000, "", MULAW),
        ("G722", 8_000, "G722", G722),
        ("PCMU", 8_000, "L16/16000", PCM_16K),
        ("L16", 16_000, "", PCM_16K),
        ("L16", 24_000, "", AudioFormat("pcm16", 24_000)),
        ("L16", 16_000, "L16/24000", AudioFormat("pcm16", 24_000)),
        ("L16", 16_000, "L16", PCM_16K),
        ("L16", 16_000, "pcmu/8000", MULAW),
    ],
)
def test_each_direction_has_its_codec(encoding: str, rate: int, codec: str, output: AudioFormat) -> None:
    _, event = started(encoding, rate, **({"codec": codec} if codec else {}))
    names = {"PCMU": MULAW, "PCMA": ALAW, "G722": G722, "L16": AudioFormat("pcm16", rate)}
    assert (event.input, event.output) == (names[encoding], output)
    assert "codec" not in event.facts.parameters


@pytest.mark.parametrize(
    ("encoding", "rate"), [("OPUS", 16_000), ("AMR-WB", 16_000), ("L16", 22_050), ("PCMU", 16_000)]
)
def test_a_codec_that_is_not_supported_is_refused_with_what_to_set(encoding: str, rate: int) -> None:
    with pytest.raises(BadMessage, match="set stream_codec and stream_bidirectional_codec to PCMU, PCMA"):
        started(encoding, rate)
    with pytest.raises(BadMessage, match="set stream_codec"):
        started("PCMU", 8_000, codec=f"{encoding}/{rate}")


def test_g722_needs_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxlane.server.protocols.phone.reading.find_spec", lambda _: None)
    with pytest.raises(BadMessage, match="needs PyAV"):
        started("G722", 8_000)


@pytest.mark.parametrize("level", [3, 300, 9_000])
@pytest.mark.parametrize("big", [False, True])
def test_the_byte_order_of_linear_sound_is_heard(level: float, big: bool) -> None:
    codec, _ = started("L16", 16_000)
    said = voice(640, level)
    silence, wire = bytes(640), swapped(said) if big else said
    assert codec.read(telnyx_media(silence, 1)) == [Media(silence, 1, 20)]
    assert codec.read(telnyx_media(wire, 2)) == [Media(said, 2, 40)]
    assert json.loads(codec.media(said))["media"]["payload"] == b64(wire)


def test_noise_of_full_scale_says_nothing_of_the_byte_order() -> None:
    order = ByteOrder()
    noise = np.random.default_rng(0).integers(-32768, 32768, 320).astype("<i2").tobytes()
    said = voice(640, 300)
    assert order.incoming(noise) == noise
    assert order.incoming(swapped(said)) == said
    assert order.incoming(noise) == swapped(noise)

"""Our codecs of telephone systems beside pipecat's serializers, which were written by others from the same documents.

Both are given the same messages of a system, and both write the same sound and an interruption. pipecat is in an
environment of its own: `make soak` and `make test-clients` set it up.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxlane.codecs.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallStarted,
    KeyPressed,
    LineCodec,
    LineEvent,
    Media,
    Message,
    MustSend,
    UnknownMessage,
)
from voxlane.server.protocols.phone.systems import recognise

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent.parent / ".venv-clients" / "openai_2_54"
PYTHON = ENVIRONMENT / "bin" / "python"

GENESYS_ID = "e160e428-53e2-487c-977d-96989bf5c99d"
KEYS = "0123456789*#"
PIECES = 12
PIECE_S = 0.2  # whole blocks of every system


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---- what the systems send


def twilio_start(_: AudioFormat) -> list[Any]:
    start = {
        "accountSid": "AC0",
        "streamSid": "MZ1",
        "callSid": "CA1",
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {},
    }
    return [
        {"event": "connected", "protocol": "Call", "version": "1.0.0"},
        {"event": "start", "sequenceNumber": "1", "start": start, "streamSid": "MZ1"},
    ]


def telnyx_start(form: AudioFormat) -> list[Any]:
    encoding = "PCMA" if form.codec == "alaw" else "PCMU"
    start = {
        "call_control_id": "v2:1",
        "from": "+13122010094",
        "to": "+13122123456",
        "custom_parameters": {"codec": encoding},
        "media_format": {"encoding": encoding, "sample_rate": 8000, "channels": 1},
    }
    return [
        {"event": "connected", "version": "1.0.0"},
        {"event": "start", "sequence_number": "1", "start": start, "stream_id": "S1"},
    ]


def plivo_start(_: AudioFormat) -> list[Any]:
    form = {"encoding": "audio/x-mulaw", "sampleRate": 8000}
    start = {"callId": "C1", "streamId": "S1", "accountId": "MA", "tracks": ["inbound"], "mediaFormat": form}
    return [{"event": "start", "sequenceNumber": 1, "start": start, "extra_headers": "{}"}]


def exotel_start(form: AudioFormat) -> list[Any]:
    sound = {"encoding": "base64", "sample_rate": str(form.rate), "bit_rate": "128kbps"}
    start = {"stream_sid": "S1", "call_sid": "C1", "account_sid": "A1", "media_format": sound}
    return [
        {"event": "connected"},
        {"event": "start", "sequence_number": "1", "stream_sid": "S1", "start": start},
    ]


def vonage_start(form: AudioFormat) -> list[Any]:
    return [{"event": "websocket:connected", "content-type": f"audio/l16;rate={form.rate}"}]


def genesys_message(kind: str, seq: int, serverseq: int, **parameters: object) -> dict[str, Any]:
    return {
        "version": "2",
        "id": GENESYS_ID,
        "type": kind,
        "seq": seq,
        "serverseq": serverseq,
        "position": f"PT{seq}.5S",
        "parameters": parameters,
    }


def genesys_start(_: AudioFormat, channels: tuple[str, ...] = ("external",)) -> list[Any]:
    return [
        genesys_message(
            "open",
            1,
            0,
            organizationId="d7934305-0972-4844-938e-9060eef73d05",
            conversationId="090eaa2f-72fa-480a-83e0-8667ff89c0ec",
            participant={"id": "883efee8", "ani": "+1-555-555-1234", "aniName": "", "dnis": "+1-800-555-6789"},
            media=[{"type": "audio", "format": "PCMU", "channels": channels, "rate": 8000}],
        )
    ]


def in_json(chunk: int, payload: bytes, **around: object) -> dict[str, Any]:
    media = {"track": "inbound", "chunk": str(chunk), "timestamp": str(20 * chunk), "payload": b64(payload)}
    return {"event": "media", "media": media, **around}


def key_in_json(key: str, **around: object) -> dict[str, Any]:
    return {"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": key}, **around}


@dataclass(frozen=True)
class System:
    """One system in one format, as both sides are set up for it."""

    form: AudioFormat
    start: Callable[[AudioFormat], list[Any]]
    media: Callable[[int, bytes], Any]
    key: Callable[[str, int], Any]  # the key, and the number of the text among all texts
    arguments: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    serializer: str = ""


def raw(_: int, data: bytes) -> bytes:
    return data


MULAW, ALAW = AudioFormat("mulaw", 8_000), AudioFormat("alaw", 8_000)
NO_HANG_UP = {"auto_hang_up": False}


def telnyx(form: AudioFormat, name: str) -> System:
    return System(
        form,
        telnyx_start,
        lambda n, data: in_json(n, data, stream_id="S1", sequence_number=str(n + 1)),
        lambda key, _: key_in_json(key, stream_id="S1"),
        {"stream_id": "S1", "outbound_encoding": name, "inbound_encoding": name},
        NO_HANG_UP,
        "telnyx",
    )


def linear(rate: int) -> AudioFormat:
    return AudioFormat("pcm16", rate)


def exotel(rate: int) -> System:
    return System(
        linear(rate),
        exotel_start,
        lambda n, data: in_json(n, data, stream_sid="S1"),
        lambda key, _: key_in_json(key, stream_sid="S1"),
        {"stream_sid": "S1"},
        {"exotel_sample_rate": rate},
        "exotel",
    )


def vonage(rate: int) -> System:
    return System(
        linear(rate),
        vonage_start,
        raw,
        lambda key, _: {"event": "websocket:dtmf", "digit": key, "duration": 260},
        {},
        {"vonage_sample_rate": rate},
        "vonage",
    )


SYSTEMS = {
    "twilio": System(
        MULAW,
        twilio_start,
        lambda n, data: in_json(n, data, streamSid="MZ1"),
        lambda key, _: key_in_json(key, streamSid="MZ1"),
        {"stream_sid": "MZ1"},
        NO_HANG_UP,
    ),
    "telnyx PCMU": telnyx(MULAW, "PCMU"),
    "telnyx PCMA": telnyx(ALAW, "PCMA"),
    "plivo": System(
        MULAW,
        plivo_start,
        lambda n, data: in_json(n, data, streamId="S1"),
        lambda key, _: key_in_json(key, streamId="S1"),
        {"stream_id": "S1"},
        NO_HANG_UP,
    ),
    "exotel 8k": exotel(8_000),
    "exotel 16k": exotel(16_000),
    "vonage 8k": vonage(8_000),
    "vonage 16k": vonage(16_000),
    "vonage 24k": vonage(24_000),
    "genesys": System(MULAW, genesys_start, raw, lambda key, n: genesys_message("dtmf", n, 1, digit=key)),
}


# ---- both sides


def wire(value: Any) -> Message:
    return value if isinstance(value, bytes) else json.dumps(value)


def ours(system: System) -> tuple[LineCodec, list[LineEvent]]:
    """Return our codec after the start of a call, and the events of that."""
    first = [wire(one) for one in system.start(system.form)]
    codec = recognise(first, [])
    assert codec is not None
    return codec, [event for message in first for event in codec.read(message)]


@cache
def sounds(form: AudioFormat) -> tuple[bytes, ...]:
    """Return pieces of noise in a format. Every code of G.711 is in them but negative zero, which no encoder writes."""
    count = round(form.rate * PIECE_S)
    random = np.random.default_rng(5)
    if form.codec == "pcm16":
        return tuple(random.integers(-32768, 32768, count).astype("<i2").tobytes() for _ in range(PIECES))
    codes = [code for code in range(256) if (form.codec, code) != ("mulaw", 0x7F)]
    return tuple(bytes(random.choice(codes, count).tolist()) for _ in range(PIECES))


def pcm(data: bytes, form: AudioFormat) -> bytes:
    """Return sound as 16-bit samples."""
    decode = {"mulaw": decode_mulaw, "alaw": decode_alaw}.get(form.codec)
    return data if decode is None else encode_pcm16(decode(data))


def coded(data: bytes, form: AudioFormat) -> bytes:
    """Return 16-bit samples in a format."""
    encode = {"mulaw": encode_mulaw, "alaw": encode_alaw}.get(form.codec)
    return data if encode is None else encode(decode_pcm16(data))


def script(name: str) -> list[tuple[str, Any]]:
    """Return the steps of a call: its start, sound, keys, a key that there is not, sound of ours, an interruption."""
    system = SYSTEMS[name]
    start = system.start(system.form)
    reads = [*start, *(system.media(n + 1, data) for n, data in enumerate(sounds(system.form)))]
    keys = [system.key(key, len(start) + 1 + n) for n, key in enumerate([*KEYS, "!"])]
    writes = [("write", b64(pcm(data, system.form))) for data in sounds(system.form)]
    return [*(("read", one) for one in [*reads, *keys]), *writes, ("interrupt", None)]


@pytest.fixture(scope="module")
def theirs() -> dict[str, list[Any]]:
    """What pipecat's serializers make of every script, by its name."""
    if not (ENVIRONMENT / ".ready").exists():
        pytest.skip("pipecat is not installed: make clients")
    stereo = {"genesys stereo": [("read", one) for one in stereo_script()]}
    session = {"genesys session": SESSION}
    cases = {**{name: script(name) for name in SYSTEMS}, **stereo, **session}
    asked = [case(SYSTEMS[name if name in SYSTEMS else "genesys"], name, steps) for name, steps in cases.items()]
    done = subprocess.run(
        [PYTHON, HERE / "phone_serializers.py"],
        input=json.dumps(asked),
        env={"LOGURU_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cases, json.loads(done.stdout), strict=True))


def case(system: System, name: str, steps: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a case as phone_serializers.py reads it."""
    packed = [
        (kind, {"bytes": b64(value)} if isinstance(value, bytes) else wire(value) if kind == "read" else value)
        for kind, value in steps
    ]
    return {
        "system": system.serializer or name.split()[0],
        "arguments": system.arguments,
        "params": system.params,
        "rate": system.form.rate,
        "steps": packed,
    }


# ---- the comparison


def in_their_words(event: LineEvent, form: AudioFormat) -> Any:
    match event:
        case Media():
            return {"sound": b64(pcm(event.data, form))}
        case KeyPressed(key):
            return {"key": key}
        case _:
            return None


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_a_system_sends_is_read_alike(name: str, theirs: dict[str, list[Any]]) -> None:
    system = SYSTEMS[name]
    codec, events = ours(system)
    (started,) = (event for event in events if isinstance(event, CallStarted))
    assert started.input == started.output == system.form
    begun = len(system.start(system.form))
    compared = {"sound": 0, "key": 0, "nothing": 0}
    steps = zip(script(name)[begun:], theirs[name][begun:], strict=True)
    for (_, value), their in [one for one in steps if one[0][0] == "read"]:
        (event,) = codec.read(wire(value))
        assert in_their_words(event, system.form) == their
        assert their is not None or event in (UnknownMessage("dtmf"), UnknownMessage("websocket:dtmf"))
        compared[next(iter(their)) if their else "nothing"] += 1
    assert compared == {"sound": PIECES, "key": len(KEYS), "nothing": 1}


def meaning(message: Any) -> Any:
    """Return a message of a server without what may differ: numbers, positions, ids that a system does not need."""
    if isinstance(message, bytes):
        return message
    body = json.loads(message)
    return {key: value for key, value in body.items() if key not in ("seq", "clientseq", "position")}


@pytest.mark.parametrize("name", SYSTEMS)
def test_sound_and_interruptions_are_written_alike(name: str, theirs: dict[str, list[Any]]) -> None:
    system = SYSTEMS[name]
    codec, _ = ours(system)
    compared = 0
    for (kind, value), their in zip(script(name), theirs[name], strict=True):
        if kind == "read":
            continue
        their = base64.b64decode(their["bytes"]) if isinstance(their, dict) else their
        mine = codec.clear() if kind == "interrupt" else codec.media(coded(base64.b64decode(value), system.form))
        assert meaning(mine) == meaning(their)
        compared += 1
    assert compared == PIECES + 1


def stereo_script() -> list[Any]:
    """Return a call on Genesys with both channels: the caller's samples come first."""
    sound = bytes(code for code in range(256) if code != 0x7F) * 4
    mixed = bytes(value for code in sound for value in (code, 0xFF))
    return [*genesys_start(MULAW, ("external", "internal")), mixed]


def test_genesys_with_two_channels(theirs: dict[str, list[Any]]) -> None:
    opening, mixed = stereo_script()
    codec = recognise([wire(opening)], [])
    assert codec is not None
    codec.read(wire(opening))
    (event,) = codec.read(mixed)
    assert in_their_words(event, MULAW) == theirs["genesys stereo"][1]


SESSION: list[tuple[str, Any]] = [
    ("read", genesys_start(MULAW)[0]),
    ("read", genesys_message("ping", 2, 1)),
    ("interrupt", None),
    ("read", genesys_message("ping", 3, 3, rtt="PT0.1S")),
    ("end", None),
    ("read", genesys_message("close", 4, 5, reason="disconnect")),
]


def test_a_session_of_genesys_is_answered_alike(theirs: dict[str, list[Any]]) -> None:
    codec = recognise([wire(SESSION[0][1])], [])
    assert codec is not None
    answered = []
    for (kind, value), their in zip(SESSION, theirs["genesys session"], strict=True):
        if kind == "read":
            events = codec.read(wire(value))
            (mine,) = (event.message for event in events if isinstance(event, MustSend))
            their = their["message"]
        else:
            mine = codec.clear() if kind == "interrupt" else codec.hang_up()
            events, their = [], json.loads(their)
        assert isinstance(mine, str)
        written = json.loads(mine)
        assert written["version"] == their["version"]
        for key in ("id", "type", "seq", "clientseq"):
            assert written[key] == their[key]
        if written["type"] == "opened":
            assert written["parameters"]["media"] == their["parameters"]["media"]
        if written["type"] == "disconnect":
            assert written["parameters"]["reason"] == their["parameters"]["reason"]
        answered.append(written["type"])
    assert answered == ["opened", "pong", "event", "pong", "disconnect", "closed"]
    assert events[-1] == CallEnded()

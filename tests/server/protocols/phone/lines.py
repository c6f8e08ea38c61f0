"""The telephone systems as their documents show them: their first messages, and readers that do not use our code."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.asterisk import Asterisk
from voxlane.server.protocols.phone.audiosocket import AudioSocket
from voxlane.server.protocols.phone.exotel import Exotel
from voxlane.server.protocols.phone.genesys import Genesys
from voxlane.server.protocols.phone.jambonz import Jambonz
from voxlane.server.protocols.phone.line_events import CallStarted, LineCodec, Message
from voxlane.server.protocols.phone.plivo import Plivo
from voxlane.server.protocols.phone.sinch import Sinch
from voxlane.server.protocols.phone.telnyx import Telnyx
from voxlane.server.protocols.phone.twilio import Twilio
from voxlane.server.protocols.phone.vonage import Vonage

MULAW = AudioFormat("mulaw", 8_000)
PCM_8K = AudioFormat("pcm16", 8_000)
PCM_16K = AudioFormat("pcm16", 16_000)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# ---- Twilio

STREAM_SID = "MZ18ad3ab5a668481ce02b83e7395059f0"
TWILIO_CONNECTED = '{"event": "connected", "protocol": "Call", "version": "1.0.0"}'
TWILIO_START = (
    '{"event": "start", "sequenceNumber": "1", "start": {"accountSid": "AC00000000000000000000000000000000", '
    '"streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0", "callSid": "CA00000000000000000000000000000000", '
    '"tracks": ["inbound"], "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}, '
    '"customParameters": {"FirstName": "Jane", "LastName": "Doe", "RemoteParty": "Bob", "token": "sesame"}}, '
    '"streamSid": "MZ18ad3ab5a668481ce02b83e7395059f0"}'
)


def twilio_media(data: bytes, chunk: int) -> str:
    return json.dumps(
        {
            "event": "media",
            "sequenceNumber": str(chunk + 2),
            "media": {"track": "inbound", "chunk": str(chunk), "timestamp": str(20 * chunk), "payload": b64(data)},
            "streamSid": STREAM_SID,
        }
    )


# ---- Telnyx

TELNYX_STREAM = "32DE0DEA-53CB-4B21-89A4-9E1819C043BC"
TELNYX_CONNECTED = '{"event": "connected", "version": "1.0.0"}'
TELNYX_START = (
    '{"event": "start", "sequence_number": "1", "stream_id": "32DE0DEA-53CB-4B21-89A4-9E1819C043BC", '
    '"start": {"user_id": "3E6F995F-85F7-4705-9741-53B116D28237", '
    '"call_control_id": "v2:T02llQxIyaRkhfRKxgAP8nY511EhFLizdvdUKJiSw8d6A9BborherQ", '
    '"call_session_id": "ff55a038-6f5d-11ef-9692-02420aeffb1f", "from": "+13122010094", "to": "+13122123456", '
    '"tags": ["TAG1", "TAG2"], "client_state": "aGF2ZSBhIG5pY2UgZGF5ID1d", '
    '"custom_parameters": {"customer_id": "customer_123"}, "media_format": {"encoding": "PCMU", '
    '"sample_rate": 8000, "channels": 1}}}'
)


def telnyx_start(encoding: str, rate: int, **parameters: object) -> str:
    start = json.loads(TELNYX_START)
    start["start"]["media_format"] |= {"encoding": encoding, "sample_rate": rate}
    start["start"]["custom_parameters"] |= parameters
    return json.dumps(start)


def telnyx_media(data: bytes, chunk: int, track: str = "inbound") -> str:
    return json.dumps(
        {
            "event": "media",
            "sequence_number": str(chunk + 3),
            "stream_id": TELNYX_STREAM,
            "media": {"track": track, "chunk": str(chunk), "timestamp": str(20 * chunk), "payload": b64(data)},
        }
    )


# ---- Plivo

PLIVO_STREAM = "87654321-4321-4321-4321-cba987654321"
PLIVO_START = (
    '{"event": "start", "sequenceNumber": 1, "start": {"callId": "12345678-1234-1234-1234-123456789abc", '
    '"streamId": "87654321-4321-4321-4321-cba987654321", "accountId": "MAXXXXXXXXXXXXXXXXXX", '
    '"tracks": ["inbound"], "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000}}, '
    '"extra_headers": "userId=12345;sessionId=abc-xyz"}'
)


def plivo_start(encoding: str, rate: int, headers: object = "") -> str:
    start = json.loads(PLIVO_START)
    start["start"]["mediaFormat"] = {"encoding": encoding, "sampleRate": rate}
    return json.dumps({**start, "extra_headers": headers})


def plivo_media(data: bytes, chunk: int) -> str:
    return json.dumps(
        {
            "event": "media",
            "sequenceNumber": chunk + 1,
            "streamId": PLIVO_STREAM,
            "media": {
                "track": "inbound",
                "timestamp": str(1705312200000 + 20 * chunk),
                "chunk": chunk,
                "payload": b64(data),
            },
            "extra_headers": "userId=12345;sessionId=abc-xyz",
        }
    )


# ---- Exotel

EXOTEL_STREAM = "MZxxxxxxxxxxxxxxxxxxxxxxxx"
EXOTEL_CONNECTED = '{ "event": "connected" }'
EXOTEL_START = (
    '{"event": "start", "sequence_number": "1", "stream_sid": "MZxxxxxxxxxxxxxxxxxxxxxxxx", '
    '"start": {"stream_sid": "MZxxxxxxxxxxxxxxxxxxxxxxxx", "call_sid": "CAxxxxxxxxxxxxxxxxxxxxxxxx", '
    '"account_sid": "ACxxxxxxxxxxxxxxxxxxxxxxxx", "from": "+919876543210", "to": "+918047491899", '
    '"custom_parameters": {"key1": "value1"}, "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", '
    '"bit_rate": "16"}}}'
)


def exotel_start(encoding: str, rate: str) -> str:
    start = json.loads(EXOTEL_START)
    start["start"]["media_format"] = {"encoding": encoding, "sample_rate": rate, "bit_rate": "128kbps"}
    return json.dumps(start)


def exotel_media(data: bytes, chunk: int) -> str:
    return json.dumps(
        {
            "event": "media",
            "sequence_number": str(chunk + 1),
            "stream_sid": EXOTEL_STREAM,
            "media": {"chunk": str(chunk), "timestamp": str(100 * chunk), "payload": b64(data)},
        }
    )


# ---- Vonage

SINCH_CONNECT = (
    '{"command":"connect","version":1,"callId":"a-call","applicationKey":"669E367E","codec":"PCM",'
    '"sampleRate":16000,"callHeaders":{}}'
)

VONAGE_CONNECTED = (
    '{"event": "websocket:connected", "content-type": "audio/l16;rate=16000", "prop1": "value1", '
    '"prop2": "value2", "token": "sesame"}'
)


# ---- Genesys

GENESYS_ID = "e160e428-53e2-487c-977d-96989bf5c99d"
GENESYS_OPEN = (
    '{"version": "2", "id": "e160e428-53e2-487c-977d-96989bf5c99d", "type": "open", "seq": 1, "serverseq": 0, '
    '"position": "PT0S", "parameters": {"organizationId": "d7934305-0972-4844-938e-9060eef73d05", '
    '"conversationId": "090eaa2f-72fa-480a-83e0-8667ff89c0ec", '
    '"participant": {"id": "883efee8-3d6c-4537-b500-6d7ca4b92fa0", "ani": "+1-555-555-1234", '
    '"aniName": "John Doe", "dnis": "+1-800-555-6789"}, "media": [{"type": "audio", "format": "PCMU", '
    '"channels": ["external", "internal"], "rate": 8000}, {"type": "audio", "format": "PCMU", '
    '"channels": ["external"], "rate": 8000}, {"type": "audio", "format": "PCMU", "channels": ["internal"], '
    '"rate": 8000}], "language": "en-US", "inputVariables": {"queue": "billing", "token": "sesame"}}}'
)


def genesys(kind: str, seq: int, serverseq: int = 1, **parameters: object) -> str:
    return json.dumps(
        {
            "version": "2",
            "id": GENESYS_ID,
            "type": kind,
            "seq": seq,
            "serverseq": serverseq,
            "position": "PT10.5S",
            "parameters": parameters,
        }
    )


def genesys_open(**changed: object) -> str:
    message = json.loads(GENESYS_OPEN)
    message["parameters"] |= changed
    return json.dumps(message)


# ---- jambonz

JAMBONZ_CALL = (
    '{"sampleRate": 16000, "mixType": "mono", "callSid": "df09e8d4-7ffd-492b-94d9-51a60318552c", '
    '"direction": "inbound", "from": "+15083084809", "to": "+15083728299", '
    '"callId": "f0414693-bdb6-1238-6185-06d91d68c9b0", "sipStatus": 200, "callStatus": "in-progress", '
    '"callerId": "f0414693-bdb6-1238-6185-06d91d68c9b0", "accountSid": "fef61e75-cec3-496c-a7bc-8368e4d02a04", '
    '"applicationSid": "0e0681b0-d49f-4fb8-b973-b5a3c6758de1", "shop": "Paris", "token": "sesame"}'
)


# ---- Asterisk

ASTERISK_CHANNEL = "1794926604.1"
ASTERISK_START = (
    '{"event":"MEDIA_START","connection_id":"voxlane","channel":"WebSocket/voxlane/0xffff640056f8",'
    '"channel_id":"1794926604.1","format":"ulaw","optimal_frame_size":160,"ptime":20,"channel_variables":'
    '{"DIALEDPEERNUMBER":"voxlane/c(ulaw)f(json)v(from=%2B15550100,to=100)","MEDIA_WEBSOCKET_CONNECTION_ID":"voxlane",'
    '"MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE":"160","__FAR":"all levels","INHERITED":"one level"}}'
)


def asterisk_start(form: str, frame: int, **variables: str) -> str:
    start = json.loads(ASTERISK_START)
    return json.dumps({**start, "format": form, "optimal_frame_size": frame, "channel_variables": variables})


def asterisk(event: str, **fields: object) -> str:
    return json.dumps({"event": event, "channel_id": ASTERISK_CHANNEL, **fields})


# ---- all of them


@dataclass(frozen=True)
class Line:
    """One system for the tests that all of them share."""

    make: Callable[[], LineCodec]
    opening: tuple[Message, ...]  # up to the message that starts the call
    form: AudioFormat
    media: Callable[[bytes, int], Message]  # sound from the caller
    sound: Callable[[Message], bytes]  # the sound of a message of ours
    foreign: Message | None = None  # a message with another call's id

    def started(self) -> LineCodec:
        codec = self.make()
        events = [event for message in self.opening for event in codec.read(message)]
        assert any(isinstance(event, CallStarted) for event in events)
        return codec


def _payload(message: Message) -> bytes:
    return base64.b64decode(json.loads(message)["media"]["payload"], validate=True)


def _binary(message: Message) -> bytes:
    assert isinstance(message, bytes)
    return message


def _audiosocket(message: Message) -> bytes:
    assert isinstance(message, bytes)
    assert message[0] == 0x10
    assert int.from_bytes(message[1:3], "big") == len(message) - 3
    return message[3:]


def _audiosocket_media(data: bytes, _: int) -> bytes:
    return b"\x10" + len(data).to_bytes(2, "big") + data


def _raw(data: bytes, _: int) -> bytes:
    return data


def _other(message: str, key: str) -> str:
    body: dict[str, Any] = json.loads(message)
    return json.dumps({**body, key: "another"})


UUID_FRAME = b"\x01\x00\x10" + bytes(range(16))

LINES = {
    "twilio": Line(
        Twilio,
        (TWILIO_CONNECTED, TWILIO_START),
        MULAW,
        twilio_media,
        _payload,
        _other(twilio_media(b"1", 1), "streamSid"),
    ),
    "telnyx": Line(
        Telnyx,
        (TELNYX_CONNECTED, TELNYX_START),
        MULAW,
        telnyx_media,
        _payload,
        _other(telnyx_media(b"1", 1), "stream_id"),
    ),
    "plivo": Line(
        Plivo, (PLIVO_START,), MULAW, plivo_media, _payload, _other(plivo_media(b"1", 1), "streamId")
    ),
    "exotel": Line(
        Exotel,
        (EXOTEL_CONNECTED, EXOTEL_START),
        PCM_8K,
        exotel_media,
        _payload,
        _other(exotel_media(b"12", 1), "stream_sid"),
    ),
    "vonage": Line(Vonage, (VONAGE_CONNECTED,), PCM_16K, _raw, _binary),
    "sinch": Line(Sinch, (SINCH_CONNECT,), PCM_16K, _raw, _binary),
    "genesys": Line(Genesys, (GENESYS_OPEN,), MULAW, _raw, _binary, _other(genesys("ping", 2), "id")),
    "jambonz": Line(Jambonz, (JAMBONZ_CALL,), PCM_16K, _raw, _binary),
    "asterisk": Line(
        Asterisk, (ASTERISK_START,), MULAW, _raw, _binary, _other(asterisk("MEDIA_XOFF"), "channel_id")
    ),
    "audiosocket": Line(AudioSocket, (UUID_FRAME,), PCM_8K, _audiosocket_media, _audiosocket),
}  # fmt: skip

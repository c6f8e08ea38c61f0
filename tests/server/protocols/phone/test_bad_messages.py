"""What all telephone systems refuse, and what no input may do; sound goes through byte for byte."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone.line_events import Media, Message
from voxlane.server.protocols.phone.systems import recognise

from .lines import LINES, Line, asterisk, exotel_media, genesys, plivo_media, telnyx_media, twilio_media

JSON_SOUND = {"twilio": twilio_media, "telnyx": telnyx_media, "plivo": plivo_media, "exotel": exotel_media}
TEXTS = [name for name in LINES if name != "audiosocket"]


def refusal(line: Line, message: Message, *, started: bool = True) -> str:
    """Return why a message is refused: one short sentence."""
    codec = line.started() if started else line.make()
    with pytest.raises(BadMessage) as caught:
        codec.read(message)
    text = str(caught.value)
    assert text
    assert len(text) < 200
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", LINES)
def test_sound_before_the_start(name: str) -> None:
    assert "before" in refusal(LINES[name], LINES[name].media(b"12", 1), started=False) or name == "audiosocket"


@pytest.mark.parametrize("name", LINES)
def test_a_second_start(name: str) -> None:
    last = LINES[name].opening[-1]
    if name == "jambonz":  # what looks like its first text has no name
        assert refusal(LINES[name], last) == "a message has its name in type"
    else:
        assert "twice" in refusal(LINES[name], last)


@pytest.mark.parametrize("name", [name for name in LINES if LINES[name].foreign is not None])
def test_the_id_of_another_call(name: str) -> None:
    foreign = LINES[name].foreign
    assert foreign is not None
    assert "is not that of this" in refusal(LINES[name], foreign)


@pytest.mark.parametrize("name", JSON_SOUND)
def test_a_payload_of_a_megabyte(name: str) -> None:
    assert "at most" in refusal(LINES[name], JSON_SOUND[name](bytes(1_000_000), 1))


@pytest.mark.parametrize("name", JSON_SOUND)
def test_the_largest_payload(name: str) -> None:
    (event,) = LINES[name].started().read(JSON_SOUND[name](bytes(64 * 1024), 1))
    assert isinstance(event, Media)
    assert len(event.data) == 64 * 1024
    assert "at most 65536 bytes of sound" in refusal(LINES[name], JSON_SOUND[name](bytes(64 * 1024 + 2), 1))


@pytest.mark.parametrize("name", ["vonage", "genesys", "jambonz", "asterisk"])
def test_a_megabyte_of_binary_sound(name: str) -> None:
    assert "at most 65536 bytes of sound" in refusal(LINES[name], bytes(1_000_000))


@pytest.mark.parametrize("name", ["vonage", "jambonz", "exotel", "audiosocket"])
def test_half_a_sample(name: str) -> None:
    assert "odd number of bytes" in refusal(LINES[name], LINES[name].media(b"123", 1))


@pytest.mark.parametrize("name", JSON_SOUND)
@pytest.mark.parametrize("payload", ["***", "AAA", "AA==AA==", "AAAA\n", " AAAA", "AAA\u00e9", "A===", "AA-_", "AAAA="])
def test_wrong_base64(name: str, payload: str) -> None:
    message = json.loads(JSON_SOUND[name](b"12", 1))
    message["media"]["payload"] = payload
    assert refusal(LINES[name], json.dumps(message)) == "the payload is not base64"


@pytest.mark.parametrize("name", JSON_SOUND)
@pytest.mark.parametrize(
    "media",
    [
        None,
        [],
        "x",
        {},
        {"payload": None},
        {"payload": 5},
        {"payload": ["AA=="]},
        {"payload": "AAAA", "chunk": -1},
        {"payload": "AAAA", "chunk": 1.5},
        {"payload": "AAAA", "chunk": "one"},
        {"payload": "AAAA", "chunk": True},
        {"payload": "AAAA", "chunk": 10**30},
        {"payload": "AAAA", "timestamp": []},
        {"payload": "AAAA", "track": 5},
    ],
)
def test_wrong_media(name: str, media: object) -> None:
    message = json.loads(JSON_SOUND[name](b"12", 1))
    assert refusal(LINES[name], json.dumps({**message, "media": media})).startswith("media")


@pytest.mark.parametrize("name", JSON_SOUND)
def test_a_message_without_sound_is_nothing(name: str) -> None:
    assert LINES[name].started().read(JSON_SOUND[name](b"", 1)) == []


MARKS = {
    "twilio": lambda name: {"event": "mark", "mark": {"name": name}},
    "telnyx": lambda name: {"event": "mark", "mark": {"name": name}},
    "exotel": lambda name: {"event": "mark", "mark": {"name": name}},
    "plivo": lambda name: {"event": "playedStream", "name": name},
    "vonage": lambda name: {"event": "websocket:notify", "payload": {"mark": name}},
    "jambonz": lambda name: {"type": "mark", "data": {"name": name, "event": "playout"}},
    "asterisk": lambda name: json.loads(asterisk("MEDIA_MARK_PROCESSED", correlation_id=name)),
}


@pytest.mark.parametrize("name", MARKS)
def test_marks_have_names_of_at_most_200_characters(name: str) -> None:
    assert len(LINES[name].started().read(json.dumps(MARKS[name]("x" * 200)))) == 1
    assert "a string of up to 200 characters" in refusal(LINES[name], json.dumps(MARKS[name]("x" * 201)))
    for wrong in (None, 5, []):
        assert "200 characters" in refusal(LINES[name], json.dumps(MARKS[name](wrong)))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "message",
    [
        "",
        "hello",
        "null",
        "5",
        '"event"',
        "[]",
        '[{"event": "media"}]',
        "{",
        '{"event": "media"',
        "{'event': 'media'}",
        '{"event": NaN}',
        '{"event": "media\ud800"}',
        "[" * 1000 + "]" * 1000,
        '{"event": ' * 1000 + "1" + "}" * 1000,
        '{"event": "media", "media": ' + "[" * 100_000,
        '{"sequence": ' + "1" * 5000 + "}",
        "{}",
        '{"event": null}',
        '{"event": []}',
        '{"event": ""}',
    ],
    ids=lambda message: message[:20],
)
def test_wrong_json(name: str, message: str) -> None:
    refusal(LINES[name], message)
    refusal(LINES[name], message, started=False)
    with suppress(BadMessage):
        recognise([message], [])


@pytest.mark.parametrize("name", ["twilio", "telnyx", "plivo", "exotel"])
def test_no_binary_messages(name: str) -> None:
    assert refusal(LINES[name], b"{}") == "this message must be text"


# ---- properties

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NAMES = st.sampled_from(
    [
        "event", "type", "start", "stop", "media", "mark", "dtmf", "connected", "payload", "streamSid", "stream_sid",
        "streamId", "stream_id", "callSid", "call_control_id", "mediaFormat", "media_format", "encoding", "sampleRate",
        "sample_rate", "customParameters", "custom_parameters", "extra_headers", "chunk", "timestamp", "track", "name",
        "digit", "content-type", "version", "id", "seq", "serverseq", "parameters", "conversationId", "participant",
        "inputVariables", "data", "mixType", "metadata", "format", "optimal_frame_size", "channel_id", "channels",
        "channel_variables", "correlation_id", "from", "to", "token", "rate", "discarded", "code",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "start", "media", "mark", "dtmf", "stop", "connected", "error", "playedStream", "clearedAudio", "open", "ping",
        "close", "update", "discarded", "resumed", "websocket:connected", "websocket:dtmf", "websocket:notify",
        "MEDIA_START", "MEDIA_XOFF", "DTMF_END", "MEDIA_MARK_PROCESSED", "STATUS", "PCMU", "PCMA", "L16", "G722",
        "audio/x-mulaw", "audio/l16;rate=16000", "ulaw", "slin16", "mono", "external", "2", "8000", "AAAA", "outbound",
        "PT1.5S", "00000000-0000-0000-0000-000000000000", "5",
    ]
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | WORDS | st.sampled_from([8000, 16000, 1, 2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=8),
    max_leaves=20,
)


def mutated(name: str) -> st.SearchStrategy[list[Message]]:
    """Return calls of a system, each with parts of its messages replaced."""
    opening = [json.loads(message) for message in LINES[name].opening]
    more = [json.loads(JSON_SOUND[name](b"1234", 1))] if name in JSON_SOUND else []
    more += [json.loads(genesys("discarded", 2, start="PT1S", discarded="PT1S"))] if name == "genesys" else []

    def spoil(body: dict[str, Any]) -> st.SearchStrategy[Message]:
        inside = [key for key, value in body.items() if isinstance(value, dict)]
        return st.tuples(st.sampled_from(list(body)), st.sampled_from([*inside, ""]), NAMES, VALUES, VALUES).map(
            lambda change: json.dumps(
                {
                    **body,
                    change[0]: change[3],
                    **({change[1]: {**body[change[1]], change[2]: change[4]}} if change[1] else {}),
                }
            )
        )

    bodies = [st.just(json.dumps(body)) | spoil(body) for body in (*opening, *more)]
    return st.tuples(*bodies).map(list)


def read_all(line: Line, messages: list[Message]) -> None:
    codec = line.make()
    for message in messages:
        with suppress(BadMessage):
            codec.read(message)


@pytest.mark.property
@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_no_json_raises_anything_but_bad_message(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES)
    line = LINES[name]
    codec = line.started()
    for one in (codec, line.make()):
        with suppress(BadMessage):
            one.read(json.dumps(value))
    with suppress(BadMessage):
        recognise([json.dumps(value)], [])
    read_all(line, data.draw(mutated(name)))


@pytest.mark.property
@pytest.mark.parametrize("name", LINES)
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text(max_size=40) | st.binary(max_size=40), max_size=4))
def test_no_bytes_and_no_text_raise_anything_but_bad_message(name: str, messages: list[Message]) -> None:
    read_all(LINES[name], messages)
    read_all(LINES[name], [*LINES[name].opening, *messages])


@pytest.mark.property
@pytest.mark.parametrize("name", LINES)
@settings(max_examples=examples(120), deadline=None)
@given(st.binary(min_size=1, max_size=2_000))
def test_sound_goes_through_byte_for_byte(name: str, data: bytes) -> None:
    line = LINES[name]
    sound = data * 2 if line.form.codec == "pcm16" else data
    codec = line.started()
    (heard,) = codec.read(line.media(sound, 1))
    assert isinstance(heard, Media)
    assert heard.data == sound
    if name == "jambonz":  # it would take such a sample for a marker of its own
        sound = b"".join(sound[at : at + 2].replace(b"\xff\xff", b"\0\0") for at in range(0, len(sound), 2))
    wire = line.sound(codec.media(sound))
    assert wire[: len(sound)] == sound
    rest = wire[len(sound) :]
    silence = b"\xff" if line.form.codec == "mulaw" else b"\0"
    assert rest == silence * len(rest)  # filled up where the system wants whole blocks
    assert len(rest) < (2_560 if name == "jambonz" else 640)

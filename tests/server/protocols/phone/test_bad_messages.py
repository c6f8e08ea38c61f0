"""What all telephone systems refuse, and what no input may do; sound goes through byte for byte."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import SOAK, examples
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


def test_sound_before_the_start_and_a_second_start() -> None:
    for name, line in LINES.items():
        assert "before" in refusal(line, line.media(b"12", 1), started=False) or name == "audiosocket", name
        # what looks like jambonz's first text has no name
        twice = "a message has its name in type" if name == "jambonz" else "twice"
        assert twice in refusal(line, line.opening[-1]), name


def test_the_id_of_another_call() -> None:
    foreign = [line for line in LINES.values() if line.foreign is not None]
    assert len(foreign) == 6
    for line in foreign:
        assert line.foreign is not None
        assert "is not that of this" in refusal(line, line.foreign)


@pytest.mark.parametrize("name", JSON_SOUND)
def test_how_much_sound_a_message_may_hold(name: str) -> None:
    line, media = LINES[name], JSON_SOUND[name]
    assert line.started().read(media(b"", 1)) == []
    (event,) = line.started().read(media(bytes(64 * 1024), 1))
    assert isinstance(event, Media)
    assert len(event.data) == 64 * 1024
    assert "at most 65536 bytes of sound" in refusal(line, media(bytes(64 * 1024 + 2), 1))
    assert "at most" in refusal(line, media(bytes(1_000_000), 1))


def test_binary_sound() -> None:
    for name in ("vonage", "genesys", "jambonz", "asterisk"):
        assert "at most 65536 bytes of sound" in refusal(LINES[name], bytes(1_000_000)), name
    for name in ("vonage", "jambonz", "exotel", "audiosocket"):
        assert "odd number of bytes" in refusal(LINES[name], LINES[name].media(b"123", 1)), name
    for name in JSON_SOUND:
        assert refusal(LINES[name], b"{}") == "this message must be text", name


WRONG_MEDIA: list[Any] = [
    *(None, [], "x", {}, {"payload": None}, {"payload": 5}, {"payload": ["AA=="]}),
    *({"payload": "AAAA", "chunk": chunk} for chunk in (-1, 1.5, "one", True, 10**30)),
    *({"payload": "AAAA", "timestamp": []}, {"payload": "AAAA", "track": 5}),
]
NO_BASE64 = ("***", "AAA", "AA==AA==", "AAAA\n", " AAAA", "AAA\u00e9", "A===", "AA-_", "AAAA=")


@pytest.mark.parametrize("name", JSON_SOUND)
def test_wrong_media_and_wrong_base64(name: str) -> None:
    message = json.loads(JSON_SOUND[name](b"12", 1))
    for media in WRONG_MEDIA:
        assert refusal(LINES[name], json.dumps({**message, "media": media})).startswith("media"), media
    for payload in NO_BASE64:
        message["media"]["payload"] = payload
        assert refusal(LINES[name], json.dumps(message)) == "the payload is not base64", payload


MARKS = {
    "twilio": lambda name: {"event": "mark", "mark": {"name": name}},
    "telnyx": lambda name: {"event": "mark", "mark": {"name": name}},
    "exotel": lambda name: {"event": "mark", "mark": {"name": name}},
    "plivo": lambda name: {"event": "playedStream", "name": name},
    "vonage": lambda name: {"event": "websocket:notify", "payload": {"mark": name}},
    "jambonz": lambda name: {"type": "mark", "data": {"name": name, "event": "playout"}},
    "asterisk": lambda name: json.loads(asterisk("MEDIA_MARK_PROCESSED", correlation_id=name)),
}


def test_marks_have_names_of_at_most_200_characters() -> None:
    for name, mark in MARKS.items():
        assert len(LINES[name].started().read(json.dumps(mark("x" * 200)))) == 1, name
        for wrong in ("x" * 201, None, 5, []):
            assert "a string of up to 200 characters" in refusal(LINES[name], json.dumps(mark(wrong))), name


WRONG_JSON = (
    *("", "hello", "null", "5", '"event"', "[]", '[{"event": "media"}]', "{", '{"event": "media"'),
    *("{'event': 'media'}", '{"event": NaN}', '{"event": "media\ud800"}', "[" * 1000 + "]" * 1000),
    *('{"event": ' * 1000 + "1" + "}" * 1000, '{"event": "media", "media": ' + "[" * 100_000),
    *('{"sequence": ' + "1" * 5000 + "}", "{}", '{"event": null}', '{"event": []}', '{"event": ""}'),
)


@pytest.mark.parametrize("name", TEXTS)
def test_wrong_json(name: str) -> None:
    for message in WRONG_JSON:
        refusal(LINES[name], message)
        refusal(LINES[name], message, started=False)
        with suppress(BadMessage):
            recognise([message], [])


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
@settings(max_examples=300 * len(TEXTS) if SOAK else 60, deadline=None)
@given(name=st.sampled_from(TEXTS), data=st.data())
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
@settings(max_examples=examples(200 * len(LINES)), deadline=None)
@given(name=st.sampled_from(list(LINES)), messages=st.lists(st.text(max_size=40) | st.binary(max_size=40), max_size=4))
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

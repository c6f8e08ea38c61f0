"""The native dialect: bytes to events and back, sound exactly, and nothing unknown gets through."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgpack
import msgspec
import msgspec.inspect
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from voxlane.codecs.opus import OpusDecoder, OpusEncoder
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler, resample
from voxlane.engine.api import ChatMessage, SpokenWord, Tool, ToolUse
from voxlane.server import errors
from voxlane.server.client import FIELDS
from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols import dialect, native, settings
from voxlane.server.protocols.dialect import (
    AudioFormat,
    BadMessage,
    Bounds,
    Capabilities,
    Hello,
    OpusPacket,
    Packet,
    SessionReady,
)
from voxlane.server.protocols.native import Native, read_hello
from voxlane.server.protocols.settings import as_map, configured
from voxlane.server.protocols.sound import Loudspeaker

RATE = 24_000
FORMATS = [
    AudioFormat("pcm16", 8_000),
    AudioFormat("pcm16", 16_000),
    AudioFormat("pcm16", 24_000),
    AudioFormat("pcm16", 48_000),
    AudioFormat("mulaw", 8_000),
    AudioFormat("alaw", 8_000),
    AudioFormat("opus", 48_000),
]


def codec(**hello: Any) -> Native:
    return Native(Hello(**hello), RATE)


def said(*message: Any) -> list[Any]:
    return codec().decode(msgpack.packb(message))


def hello(values: Any) -> Hello:
    return read_hello(msgpack.packb(("hello", values)), SessionConfig())


# ---- what a client says


def test_every_client_message() -> None:
    assert said("audio", b"\1\0\2\0") == [client_events.Audio(b"\1\0\2\0")]
    assert said("text", "hi") == [client_events.TextTurn("hi")]
    assert said("start") == [client_events.StartTurn()]
    assert said("end") == [client_events.EndTurn()]
    assert said("played", 3, 4800, 20) == [client_events.Played(3, 4800)]
    assert said("played", 3, 4800, 0) == [client_events.Played(3, 4800), dialect.Starved(3)]
    assert said("stop") == [client_events.Stop()]
    assert said("tool_result", "c1", "42") == [client_events.ToolResult("c1", "42")]
    assert said("ping", 9) == [dialect.ClientPing(9)]
    assert said("bye") == [dialect.Bye()]
    (update,) = said("config", {"temperature": 1, "turns": {"mode": "manual"}})
    assert update.config.temperature == 1.0
    assert update.config.turns.mode == "manual"


@pytest.mark.parametrize(
    "message",
    [
        "text",
        b"",
        b"\xc1",
        b"\x93\x01",
        msgpack.packb("hello"),
        msgpack.packb([]),
        msgpack.packb([1]),
        msgpack.packb(["audio"]),
        msgpack.packb(["audio", b"1"]),
        msgpack.packb(["audio", "12"]),
        msgpack.packb(["audio", b"12", 1]),
        msgpack.packb(["text", b"12"]),
        msgpack.packb(["text", "x" * 16_001]),
        msgpack.packb(["played", 1, 2]),
        msgpack.packb(["played", 1, -2, 0]),
        msgpack.packb(["played", 1, 2.0, 0]),
        msgpack.packb(["played", True, 2, 0]),
        msgpack.packb(["played", 1, 1 << 60, 0]),
        msgpack.packb(["ping", "1"]),
        msgpack.packb(["ping", msgpack.Timestamp(1)]),
        msgpack.packb(["start", None]),
        msgpack.packb(["config", []]),
        msgpack.packb(["config", {"instructions": 5}]),
        msgpack.packb(["config", {"secret": 5}]),
        msgpack.packb(["config", {"turns": {"secret": 5}}]),
        msgpack.packb(["config", {"turns": None}]),
        msgpack.packb(["config", {"turns": {"mode": "loud"}}]),
        msgpack.packb(["config", {"turns": {"mode": ["auto"]}}]),
        msgpack.packb(["config", {"turns": {"min_wait_s": 5.0, "max_wait_s": 1.0}}]),
        msgpack.packb(["config", {"temperature": math.nan}]),
        msgpack.packb(["config", {"temperature": math.inf}]),
        msgpack.packb(["config", {"temperature": True}]),
        msgpack.packb(["config", {"max_tokens": 1.5}]),
        msgpack.packb(["config", {"speaks": 1}]),
        msgpack.packb(["config", {"speed": None}]),
        msgpack.packb(["config", {"tools": {}}]),
        msgpack.packb(["config", {"tools": [{"name": "a b"}]}]),
        msgpack.packb(["config", {"tools": [{"name": "a"}, {"name": "a"}]}]),
        msgpack.packb(["config", {"tools": [{"name": "a", "extra": 1}]}]),
        msgpack.packb(["config", {"tool_choice": "a"}]),
        msgpack.packb(["config", {"barge_in": {"stop_phrases": "stop"}}]),
        msgpack.packb(["tool_result", "x" * 257, ""]),
        msgpack.packb(["nobody"]),
        msgpack.packb(["text", "x"] + [0] * 300),
        b"\x91" * 1025,
        bytes(65_537),
    ],
)
def test_bad_messages_are_refused_in_our_words(message: bytes | str) -> None:
    with pytest.raises(BadMessage) as refused:
        codec().decode(message)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (["config", 3], "config must be an object"),
        (["config", {"speed": 3}], "config.speed must be a number from 0.5 to 2"),
        (["config", {"turns": {"mode": "loud"}}], "config.turns.mode must be one of auto, buffer, manual"),
        (["config", {"turns": {"max_wait_s": 0.2}}], "config.turns.max_wait_s is below turns.min_wait_s"),
        (["config", {"tools": [{"name": "a"}, {}]}], "config.tools[1].name must be 1 to 64 letters, digits"),
        (["config", {"tools": [{"name": "a\n"}]}], "config.tools[0].name must be 1 to 64 letters, digits"),
        (["config", {"tools": [{"name": "a", "b": 1}]}], "config.tools[0].b is not known; known are name, desc"),
        (["config", {"turns": {"sp eed": 1}}], 'config.turns."sp eed" is not known; known are mode, eagerness'),
        (["played", 1, -1, 0], "samples must be a whole number from 0 to 9007199254740991"),
        (["text", "x" * 16_001], "text must be a string of up to 16000 characters"),
        (["ping", 1, 2], "ping has 1 fields"),
        (["hello", {"key": 5}], "hello.key must be a string of up to 512 characters"),
        (["hello", {"output": [{"rate": 0}]}], "hello.output[0].rate must be a whole number from 1 to 192000"),
        (["hello", {"played": [1]}], "hello.played must be a list of epoch and samples"),
        (["hello", {"config": {"seed": -1}}], "config.seed must be a whole number from 0 to 4294967295"),
    ],
)
def test_an_error_names_the_place_and_the_rule(message: list[Any], told: str) -> None:
    def read(data: bytes) -> object:
        return read_hello(data, SessionConfig()) if message[0] == "hello" else codec().decode(data)

    with pytest.raises(BadMessage) as refused:
        read(msgpack.packb(message))
    assert str(refused.value).startswith(told)


def test_every_number_and_text_of_the_configuration_has_limits() -> None:
    def unlimited(kind: msgspec.inspect.Type, path: str) -> list[str]:
        match kind:
            case msgspec.inspect.Metadata(type=inner):
                return unlimited(inner, path)
            case msgspec.inspect.UnionType(types=options):
                return [one for option in options for one in unlimited(option, path)]
            case msgspec.inspect.StructType(fields=fields):
                return [one for field in fields for one in unlimited(field.type, f"{path}.{field.name}")]
            case msgspec.inspect.VarTupleType(item_type=item, max_length=most):
                return unlimited(item, f"{path}[]") + ([path] if most is None else [])
            case msgspec.inspect.IntType(ge=least, le=most) | msgspec.inspect.FloatType(ge=least, le=most):
                return [path] if least is None or most is None else []
            case msgspec.inspect.StrType(max_length=most, pattern=pattern):
                return [path] if most is None and pattern is None else []
            case msgspec.inspect.BoolType() | msgspec.inspect.LiteralType() | msgspec.inspect.NoneType():
                return []
        return [f"{path}: what is {kind}?"]

    assert unlimited(msgspec.inspect.type_info(settings._changes(SessionConfig)), "config") == []


def test_what_the_operator_has_set_is_not_judged_by_the_limits_of_clients() -> None:
    base = SessionConfig(greeting="x" * 5000)
    assert configured(base, {"voice": "one"}) == replace(base, voice="one")
    assert configured(base, {"turns": {"threshold": 1}}).turns == replace(base.turns, threshold=1.0)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=20,
)


@given(st.binary() | values.map(msgpack.packb))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    for read in (codec().decode, lambda message: read_hello(message, SessionConfig())):
        with suppress(BadMessage):
            read(data)


_FIELD = st.sampled_from([*msgspec.to_builtins(SessionConfig()), "turns", "barge_in"])


@hypothesis_settings(max_examples=examples(300))
@given(st.sampled_from([*native._READERS, "audio"]), st.lists(values | st.dictionaries(_FIELD, values), max_size=4))
def test_no_fields_do_anything_else(name: str, fields: list[Any]) -> None:
    with suppress(BadMessage):
        codec().decode(msgpack.packb((name, *fields)))


def test_hello() -> None:
    assert hello({}) == Hello()
    whole = hello(
        {
            "input": {"codec": "mulaw", "rate": 8000},
            "output": {"rate": 48_000},
            "config": {"voice": "one", "seed": 3, "barge_in": {"stop_phrases": ["halt"]}},
            "key": "k",
            "resume": "t",
            "last_seq": 17,
            "played": [2, 300],
        }
    )
    assert whole.input == AudioFormat("mulaw", 8000)
    assert whole.output == AudioFormat("pcm16", 48_000)
    assert (whole.config.voice, whole.config.seed, whole.config.barge_in.stop_phrases) == ("one", 3, ("halt",))
    assert (whole.key, whole.resume, whole.last_seq, whole.played) == ("k", "t", 17, client_events.Played(2, 300))


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"input": "pcm16"},
        {"input": {"codec": "mulaw", "rate": 16_000}},
        {"input": {"codec": "opus", "rate": 16_000}},
        {"input": {"codec": "gsm"}},
        {"input": []},
        {"input": [None]},
        {"input": [{"codec": "gsm"}, {"codec": "speex", "rate": 8000}]},
        {"output": [{}, "pcm16"]},
        {"output": [{}, {"surprise": 1}]},
        {"output": [{}, [{}]]},
        {"output": [{}] * 5},
        {"output": {"rate": 44_100}},
        {"output": {"rate": 0}},
        {"played": [1]},
        {"played": "1"},
        {"last_seq": -1},
        {"key": "x" * 513},
        {"surprise": 1},
    ],
)
def test_a_bad_hello(values: Any) -> None:
    with pytest.raises(BadMessage):
        hello(values)


OPUS = {"codec": "opus", "rate": 48_000}


def test_of_several_formats_the_first_that_the_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [{"codec": "gsm"}, {"codec": "opus", "rate": 44_100}, OPUS, {"codec": "pcm16", "rate": 8000}]
    assert hello({"input": offered}).input == AudioFormat("opus", 48_000)
    assert hello({"output": offered}).output == AudioFormat("opus", 48_000)
    assert hello({"output": [{}]}).output == AudioFormat("pcm16", 24_000)
    monkeypatch.setattr("voxlane.server.protocols.sound.find_spec", lambda _: None)
    assert hello({"input": offered}).input == AudioFormat("pcm16", 8000)
    with pytest.raises(BadMessage, match="has the codecs pcm16, mulaw, alaw"):
        hello({"input": [OPUS]})


def test_configuration_survives_the_journey() -> None:
    tools = (Tool("a", "b", "{}"),)
    config = SessionConfig(voice="x", tools=tools, tool_choice="a", seed=5, interruptible=False)
    plain = msgpack.unpackb(msgpack.packb(as_map(config)), use_list=False)
    assert configured(SessionConfig(), plain) == config


# ---- what a client is told


def ready() -> SessionReady:
    history = (ChatMessage("assistant", "", (ToolUse("c", "f", "{}"),)), ChatMessage("tool", "x", call_id="c"))
    return SessionReady(
        "voice-1",
        "token",
        True,
        SessionConfig(),
        Capabilities("voxlane", "m", "a", "t", ("en",), ("one",), ("pcm16",)),
        Bounds(65_536, 200, 1e5, 1.25, 2.0, 600, 3600, 30),
        "listening",
        history,
        client_events.Played(4, 96_000),
    )


EVENTS: list[Any] = [
    server_events.FloorState("listening"),
    server_events.SpeechStarted(1, 0.5),
    server_events.SpeechStopped(1, 1.5),
    server_events.UserWords(1, "a ", "b"),
    server_events.UserTurn(1, "a b"),
    server_events.ReplyStarted(1, 1),
    server_events.ReplyText(1, "hi"),
    server_events.Speech(1, 0, bytes(96), (SpokenWord(0, 2, 0, 40),)),
    server_events.SpeechDone(1, 48),
    server_events.Hold(1),
    server_events.Release(1),
    server_events.Interrupted(1, "h", 20),
    server_events.ReplyDone(1, "hi"),
    server_events.TurnDone(1, "done"),
    server_events.ToolCalled(1, "c", "f", "{}"),
    server_events.Latency(1, 1.0, 2.0, 3.0, 4.0, -1.0),
    server_events.Duck(1, 0.178),
    server_events.BargeIn(1, 40.0, 300.0, True, 120.0, 90.0),
    server_events.HardToHear(),
    server_events.Fault("engine_lost", "sorry", True),
    server_events.Configured(SessionConfig()),
    dialect.ServerPong(1, 2.0),
    dialect.GoAway(60.0, "session_limit"),
    dialect.Farewell(),
    ready(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_written_as_the_client_reads_it(event: Any) -> None:
    one = codec()
    for packet in one.encode(event):
        name, sequence, *fields = msgpack.unpackb(one.write(packet, 77))
        assert sequence == 77
        if name == "ready":
            assert fields[0]["played"] == [4, 96_000]
            assert fields[0]["history"][0]["tool_calls"] == [{"call_id": "c", "name": "f", "arguments": "{}"}]
        else:
            assert len(fields) == len(FIELDS[name])


def test_a_frame_of_20_ms_is_little_more_than_its_sound() -> None:
    one = codec()
    (packet,) = one.encode(server_events.Speech(1, 0, bytes(960)))
    assert len(one.write(packet, 1000)) <= 960 + 24
    assert packet == Packet(("audio", 1, 0, bytes(960), []), 1, 480, 0.02)


# ---- sound


def tone(samples: int, rate: int) -> Any:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(samples) / rate)).astype(np.float32)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.codec}-{form.rate}")
@hypothesis_settings(max_examples=examples(200))
@given(cuts=st.lists(st.integers(1, 2000), max_size=8), extra=st.integers(1, 3000))
def test_pieces_leave_no_gap_and_the_last_ack_is_the_end(form: AudioFormat, cuts: list[int], extra: int) -> None:
    speaker = Loudspeaker(form, RATE)
    total = sum(cuts) + extra
    sound = encode_pcm16(tone(total, RATE))
    pieces, offset = [], 0
    for count in [*cuts, extra]:
        pcm = sound[2 * offset : 2 * (offset + count)]
        pieces += speaker.push(
            server_events.Speech(5, offset, pcm, (SpokenWord(offset, offset + 1, offset, offset + count),))
        )
        offset += count
    last, length = speaker.finish(5, total)
    pieces += last
    made = 0
    for piece in pieces:
        assert piece.epoch == 5
        assert piece.offset == made
        made += piece.samples
        for word in piece.words:
            assert word.start_sample < made
    assert length == math.ceil(total * form.rate / RATE)
    assert made >= length if form.codec == "opus" else made == length
    assert sum(len(piece.words) for piece in pieces) == len(cuts) + 1
    assert speaker.session_samples(length) >= total
    assert speaker.session_samples(length) < total + math.ceil(RATE / form.rate)
    if form.codec == "pcm16":
        played = decode_pcm16(b"".join(piece.data for piece in pieces))
        assert np.array_equal(played, decode_pcm16(encode_pcm16(resample(decode_pcm16(sound), RATE, form.rate))))


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.codec}-{form.rate}")
def test_words_that_come_when_all_sound_has_left_are_told(form: AudioFormat) -> None:
    speaker = Loudspeaker(form, RATE)
    pieces = speaker.push(server_events.Speech(5, 0, encode_pcm16(tone(2400, RATE))))
    pieces += speaker.push(
        server_events.Speech(5, 2400, b"", (SpokenWord(0, 5, 9, 2400), SpokenWord(6, 8, 2400, 2400)))
    )
    pieces += speaker.finish(5, 2400)[0]
    assert [word.end for piece in pieces for word in piece.words] == [5, 8]
    assert all((piece.packet is not None) == (form.codec == "opus") for piece in pieces), "Opus is never empty"


def test_a_new_reply_begins_at_nothing() -> None:
    speaker = Loudspeaker(AudioFormat("pcm16", 16_000), RATE)
    speaker.push(server_events.Speech(1, 0, encode_pcm16(tone(2400, RATE))))
    (piece,) = speaker.push(server_events.Speech(2, 0, encode_pcm16(tone(2400, RATE))))
    assert piece.offset == 0
    assert piece.epoch == 2


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.codec}-{form.rate}")
def test_the_session_hears_what_was_said(form: AudioFormat) -> None:
    decoder, resampler = OpusDecoder(), Resampler(48_000, 16_000)

    def listened(event: Any) -> bytes:
        if isinstance(event, OpusPacket):  # what the process that decodes does with it
            return encode_pcm16(resampler.push(decoder.decode(event.data)))
        return event.pcm

    speaker, sound = Loudspeaker(form, RATE), encode_pcm16(tone(24_000, RATE))
    pieces = [
        piece
        for start in range(0, 24_000, 480)
        for piece in speaker.push(server_events.Speech(1, start, sound[2 * start : 2 * start + 960]))
    ]
    sent = [bytes(piece.packet or piece.data) for piece in pieces + speaker.finish(1, 24_000)[0]]
    one = codec(input=form)
    heard = b"".join(listened(event) for data in sent for event in one.decode(msgpack.packb(("audio", data))))
    assert one.heard_s() == pytest.approx(1.0, abs=0.05)
    samples = decode_pcm16(heard)
    assert len(samples) == pytest.approx(16_000, abs=800)
    spectrum = np.abs(np.fft.rfft(samples[2000:14_000]))
    assert np.argmax(spectrum) == pytest.approx(440 * 12_000 / 16_000, abs=1)


def test_an_opus_reply_lies_where_its_numbers_say() -> None:
    form, total = AudioFormat("opus", RATE), 10_000
    hiss = np.convolve(np.random.default_rng(1).normal(0, 0.1, total), np.full(4, 0.25), "same").astype(np.float32)
    speaker, decoder = Loudspeaker(form, RATE), OpusDecoder()
    pieces = speaker.push(server_events.Speech(1, 0, encode_pcm16(hiss)))
    last, length = speaker.finish(1, total)
    assert length == total
    heard = np.concatenate([decoder.decode(bytes(piece.packet)) for piece in pieces + last if piece.packet])[312:]
    wanted = resample(hiss, RATE, 48_000)
    assert len(heard) >= len(wanted)
    shifts = [np.dot(heard[at : at + 18_000], wanted[100:18_100]) for at in range(200)]
    assert np.argmax(shifts) == pytest.approx(100, abs=2)


def test_opus_is_encoded_when_it_is_written_and_once() -> None:
    one = codec(output=AudioFormat("opus", RATE))
    packets = one.encode(server_events.Speech(1, 0, encode_pcm16(tone(4800, RATE)))) + one.encode(
        server_events.SpeechDone(1, 4800)
    )
    *sound, done = packets
    assert (len(sound), done.fields) == (11, ("audio_done", 1, 4800))
    encoder = OpusEncoder(RATE)
    wanted = encoder.push(decode_pcm16(encode_pcm16(tone(4800, RATE)))) + encoder.push(np.zeros(480))
    for _ in range(2):  # the second time to a client that comes back
        written = [msgpack.unpackb(one.write(packet, place)) for place, packet in enumerate(sound)]
        assert [data for _, _, _, _, data, _ in written] == wanted
        assert [offset for _, _, _, offset, _, _ in written] == list(range(0, 5280, 480))


def test_a_broken_opus_packet_is_refused() -> None:
    one = codec(input=AudioFormat("opus", 48_000))
    with pytest.raises(BadMessage):
        one.decode(msgpack.packb(("audio", b"")))


def test_the_specification_names_everything() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert named >= {*FIELDS, *native._READERS, "hello", "ready"}
    config = msgspec.to_builtins(SessionConfig())
    assert named >= {*config, *config["turns"], *config["barge_in"]}  # type: ignore[misc]
    (packet,) = codec().encode(ready())
    told: Any = packet.fields[1]
    assert named >= {*told, *told["limits"], *told["capabilities"]}
    codes = {error.close_code for error in vars(errors).values() if isinstance(error, type) and error is not Exception}
    assert set(map(int, re.findall(r"^\| (\d{4}) \|", page, re.MULTILINE))) >= codes - {4403}


def _read_or_refused(read: Any, message: bytes) -> Any:
    try:
        return read(message)
    except BadMessage as error:
        return str(error)


@given(
    st.binary(max_size=40)
    | st.builds(
        lambda data, rest: msgpack.packb(("audio", data)) + rest, st.binary(max_size=700), st.just(b"") | st.binary()
    )
    | st.builds(lambda data: b"\x92\xa5audio" + data, st.binary(max_size=12)),
    st.sampled_from([AudioFormat(), AudioFormat("mulaw", 8_000), AudioFormat("pcm16", 24_000)]),
)
def test_the_short_way_of_sound_reads_what_the_long_way_reads(message: bytes, form: AudioFormat) -> None:
    """Where it returns sound, `decode` returns the same; what it does not read, `decode` reads or refuses."""
    short, long = Native(Hello(input=form), 24_000), Native(Hello(input=form), 24_000)
    wanted, sound = (_read_or_refused(read, message) for read in (long.decode, short.sound))
    if isinstance(sound, str):
        assert sound == wanted
        return
    if sound is None:
        assert short.heard_s() == 0.0, "a message was counted that has to be read again"
        assert not (isinstance(wanted, list) and wanted and wanted[0].pcm), "sound took the long way"
        return
    assert [sound] == wanted or (not sound.pcm and wanted == [])
    assert short.heard_s() == long.heard_s()


def test_opus_takes_the_long_way() -> None:
    pytest.importorskip("av")
    one = Native(Hello(input=AudioFormat("opus", 48_000)), 24_000)
    assert one.sound(msgpack.packb(("audio", b"\xf8\xff\xfe"))) is None

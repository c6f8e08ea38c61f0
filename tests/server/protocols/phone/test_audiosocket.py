"""AudioSocket: frames under any cut of the bytes, and the call that they carry."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone.audiosocket import AudioSocket, AudioSocketFrame, AudioSocketParser
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    Media,
    UnknownMessage,
)

from .lines import LINES, PCM_8K, UUID_FRAME


def frame(kind: int, data: bytes = b"") -> bytes:
    return bytes((kind, len(data) >> 8, len(data) & 255)) + data


def test_a_call() -> None:
    codec = AudioSocket()
    facts = CallFacts("audiosocket", "00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert codec.read(UUID_FRAME) == [CallStarted(facts, PCM_8K, PCM_8K)]
    assert codec.read(frame(0x10, b"\1\2" * 160)) == [Media(b"\1\2" * 160)]
    assert codec.read(frame(0x10)) == []
    assert codec.read(frame(0x03, b"#") + frame(0x03, b"!")) == [KeyPressed("#"), UnknownMessage("dtmf")]
    assert codec.read(frame(0x42, b"1")) == [UnknownMessage("kind 0x42")]
    assert codec.read(frame(0x00)) == [CallEnded()]
    assert codec.read(frame(0x10, b"\1\2") + frame(0x00)) == []


def test_an_error_ends_the_call() -> None:
    assert LINES["audiosocket"].started().read(frame(0xFF, b"\1")) == [UnknownMessage("error 01"), CallEnded()]


def test_what_is_sent() -> None:
    codec = AudioSocket()
    assert codec.media(b"\1\2" * 160) == b"\x10\x01\x40" + b"\1\2" * 160
    assert codec.hang_up() == b"\0\0\0"
    assert codec.mark("1") is None
    assert codec.clear() is None


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (frame(0x10, b"12"), "the first frame is the call's UUID"),
        (frame(0x03, b"1"), "the first frame is the call's UUID"),
        (frame(0x01, b"12"), "16 bytes"),
        (UUID_FRAME + UUID_FRAME, "twice"),
        (UUID_FRAME + frame(0x10, b"123"), "odd number"),
        (UUID_FRAME + frame(0x12, b"1234"), r"8 kHz: use the application AudioSocket, or c\(slin\)"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" * 1000, "the first frame is the call's UUID"),
    ],
)
def test_what_breaks_the_rules(data: bytes, rule: str) -> None:
    with pytest.raises(BadMessage, match=rule):
        AudioSocket().read(data)


def test_there_is_no_text() -> None:
    with pytest.raises(BadMessage, match="no text"):
        AudioSocket().read("hello")


FRAMES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=700)), max_size=8)


@pytest.mark.property
@settings(max_examples=examples(300), deadline=None)
@given(FRAMES, st.lists(st.floats(0, 1), max_size=12), st.integers(0, 5))
def test_any_cut_gives_the_same_frames(frames: list[tuple[int, bytes]], cuts: list[float], lost: int) -> None:
    stream = b"".join(frame(kind, data) for kind, data in frames)
    stream = stream[: len(stream) - lost]
    edges = [0, *sorted(round(cut * len(stream)) for cut in cuts), len(stream)]
    parser = AudioSocketParser()
    found = [one for a, b in pairwise(edges) for one in parser.feed(stream[a:b])]
    whole = AudioSocketParser().feed(stream)
    assert found == whole
    assert [(one.kind, one.data) for one in whole] == frames[: len(whole)]
    if not lost:
        assert len(whole) == len(frames)
    assert b"".join(map(bytes, whole)) == stream[: sum(3 + len(one.data) for one in whole)]


def test_bytes_one_at_a_time() -> None:
    parser = AudioSocketParser()
    largest = frame(0x10, bytes(65_535))
    found = [one for at in range(len(largest)) for one in parser.feed(largest[at : at + 1])]
    assert found == [AudioSocketFrame(0x10, bytes(65_535))]

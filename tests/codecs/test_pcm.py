"""16-bit PCM: exact there and back, clipped and rounded as stated."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from voxlane.codecs.errors import InvalidAudio
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16


def test_every_word_comes_back() -> None:
    words = np.arange(-32768, 32768).astype("<i2").tobytes()
    floats = decode_pcm16(words)
    assert floats.dtype == np.float32
    assert floats.min() == -1.0
    assert floats.max() == np.float32(32767 / 32768)
    assert encode_pcm16(floats) == words


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=50))
def test_the_nearest_word_is_chosen_and_nothing_wraps(values: list[float]) -> None:
    words = np.frombuffer(encode_pcm16(values), dtype="<i2")
    exact = [max(-32768, min(32767, round(value * 32768))) for value in values]  # round() is half to even too
    assert words.tolist() == exact


def test_halves_go_to_even() -> None:
    assert np.frombuffer(encode_pcm16(np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / 32768), dtype="<i2").tolist() == [
        0, 2, 2, 0, -2,
    ]  # fmt: skip


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_samples_are_refused(bad: float) -> None:
    with pytest.raises(InvalidAudio, match="not finite"):
        encode_pcm16([0.0, bad, 0.1])


def test_half_a_word_is_refused() -> None:
    with pytest.raises(InvalidAudio, match="odd number"):
        decode_pcm16(b"\0\0\0")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    assert decode_pcm16(kind(b"\0\x40")).tolist() == [0.5]
    assert len(decode_pcm16(kind(b""))) == 0

"""G.722: any cut of a stream gives the bytes and samples that libav makes of the whole, and tones survive."""

from __future__ import annotations

import io
from itertools import pairwise

import av
import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.codecs.errors import CodecMissing, InvalidAudio
from voxlane.codecs.g722 import FRAME_SAMPLES, RATE, SAMPLES_PER_BYTE, G722Decoder, G722Encoder

from .signals import decibels, libav_file, noise, rms, tone


def whole_file(samples: np.ndarray) -> bytes:
    """Return the bytes of a G.722 file as libav writes it in one go."""
    return libav_file((samples * np.float32(32768 / 32767)).astype(np.float32), RATE, "g722", "g722", "s16")


def whole_decode(data: bytes) -> np.ndarray:
    """Return the samples as libav's own demuxer and decoder read them."""
    with av.open(io.BytesIO(data), "r", format="g722") as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)]) / 32768


def encoded(samples: np.ndarray) -> bytes:
    encoder = G722Encoder()
    return encoder.push(samples) + encoder.flush()


def test_it_is_what_libav_writes_and_reads() -> None:
    sent = (0.7 * tone(440, RATE, seconds=0.4) + noise(6_400, level=0.05)).astype(np.float32)
    sent = np.rint(sent * 32767) / 32768  # whole 16-bit steps, so that both sides round alike
    data = encoded(sent)
    assert data == whole_file(sent)
    assert len(data) == len(sent) // SAMPLES_PER_BYTE
    assert (G722Decoder().decode(data) == whole_decode(data).astype(np.float32)).all()


@pytest.mark.parametrize("frequency", [300, 1_000, 3_000, 6_000])
def test_a_tone_survives(frequency: int) -> None:
    sent = tone(frequency, RATE, seconds=0.5)
    heard = G722Decoder().decode(encoded(sent))
    assert len(heard) == len(sent)
    ours = heard[2_000:6_000]
    best = max(
        decibels(rms(sent[2_000 - late : 6_000 - late]) / rms(ours - sent[2_000 - late : 6_000 - late]))
        for late in range(40)  # the filter banks delay the sound by 22 samples
    )
    assert best > 25


@pytest.mark.property
@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=900), st.lists(st.floats(0, 1), max_size=6))
def test_any_split_of_the_bytes_gives_the_same_samples(data: bytes, cuts: list[float]) -> None:
    decoder = G722Decoder()
    edges = [0, *sorted(round(cut * len(data)) for cut in cuts), len(data)]
    pieces = [decoder.decode(data[a:b]) for a, b in pairwise(edges)]
    whole = G722Decoder().decode(data)
    assert len(whole) == SAMPLES_PER_BYTE * len(data)
    assert (np.concatenate(pieces) == whole).all()


@pytest.mark.property
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 900), max_size=8))
def test_any_split_of_the_samples_gives_the_same_bytes(cuts: list[int]) -> None:
    samples = noise(sum(cuts))
    encoder, whole = G722Encoder(), G722Encoder()
    data = b"".join(encoder.push(piece) for piece in np.split(samples, np.cumsum(cuts)))
    assert data == whole.push(samples)
    assert len(data) == len(samples) // FRAME_SAMPLES * FRAME_SAMPLES // SAMPLES_PER_BYTE
    assert encoder.flush() == whole.flush()


def test_the_last_frame_is_filled_with_silence_and_the_encoder_goes_on() -> None:
    samples = noise(2 * FRAME_SAMPLES)
    encoder, padded = G722Encoder(), G722Encoder()
    cut = encoder.push(samples[:10]) + encoder.flush() + encoder.flush() + encoder.push(samples[10:])
    silence = np.zeros(FRAME_SAMPLES - 10)
    assert cut == padded.push(np.concatenate((samples[:10], silence, samples[10:])))


def test_samples_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidAudio, match="finite"):
        G722Encoder().push([np.nan])


def test_without_pyav_the_error_names_the_extra(without_pyav: None) -> None:
    for make in (G722Decoder, G722Encoder):
        with pytest.raises(CodecMissing, match=r"\.\[opus\]"):
            make()

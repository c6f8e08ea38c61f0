"""Speech as files: any cut of the samples gives the same bytes, and other programs can read them."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.codecs import encode
from voxlane.codecs.container import decode_audio
from voxlane.codecs.encode import SpeechFormat, encoder, formats
from voxlane.codecs.errors import CodecMissing, InvalidAudio, UnsupportedAudio
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16

from .signals import noise, tone

ALL: tuple[SpeechFormat, ...] = ("wav", "pcm", "mp3", "opus", "flac", "aac")
SIGNAL = tone(1_000, 24_000, seconds=0.4)


def encoded(kind: SpeechFormat, rate: int, samples: np.ndarray, cuts: list[int] | None = None) -> bytes:
    one = encoder(kind, rate)
    pieces = np.split(samples, np.cumsum(cuts or []))
    return b"".join([*(one.push(piece) for piece in pieces), one.finish()])


def decoded(kind: SpeechFormat, file: bytes) -> tuple[np.ndarray, int]:
    return (decode_pcm16(file), 24_000) if kind == "pcm" else decode_audio(file)


@pytest.mark.parametrize("kind", ALL)
def test_the_tone_is_in_the_file(kind: SpeechFormat) -> None:
    samples, rate = decoded(kind, encoded(kind, 24_000, SIGNAL))
    assert len(samples) / rate == pytest.approx(0.4, abs=0.1)
    middle = samples[rate // 10 : rate // 5]
    assert np.argmax(np.abs(np.fft.rfft(middle * np.hanning(len(middle))))) == 100
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kind", ["wav", "pcm", "flac"])
def test_lossless_kinds_hold_the_16_bit_words(kind: SpeechFormat) -> None:
    samples, _ = decoded(kind, encoded(kind, 24_000, SIGNAL))
    assert encode_pcm16(samples) == encode_pcm16(SIGNAL)


@settings(max_examples=examples(40))
@given(st.sampled_from(ALL), st.sampled_from([24_000, 22_050, 16_000]), st.lists(st.integers(0, 2_000), max_size=5))
def test_any_cut_gives_the_same_sound(kind: SpeechFormat, rate: int, cuts: list[int]) -> None:
    samples = noise(sum(cuts) + 5_000)
    whole, cut = (encoded(kind, rate, samples, how) for how in ([], cuts))
    # Ogg draws a stream number by chance, so that files are compared by what they decode to.
    assert np.array_equal(decoded(kind, whole)[0], decoded(kind, cut)[0])


@pytest.mark.parametrize("kind", ALL)
def test_sound_leaves_before_the_end(kind: SpeechFormat) -> None:
    one = encoder(kind, 24_000)
    early = b"".join(one.push(SIGNAL[start : start + 480]) for start in range(0, len(SIGNAL), 480))
    assert len(early) > len(early + one.finish()) / 3


def test_opus_leaves_within_40_ms() -> None:
    one = encoder("opus", 24_000)
    header = one.push(SIGNAL[:480])
    assert header.startswith(b"OggS")
    assert len(one.push(SIGNAL[480:960])) > 28


@pytest.mark.parametrize(
    ("kind", "rate", "written"), [("opus", 22_050, 48_000), ("mp3", 96_000, 48_000), ("aac", 9_000, 11_025)]
)
def test_rates_that_a_format_lacks_are_converted(kind: SpeechFormat, rate: int, written: int) -> None:
    samples, decoded_rate = decode_audio(encoded(kind, rate, tone(1_000, rate, seconds=0.5)))
    assert decoded_rate == written
    middle = samples[written // 5 : written * 2 // 5]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * written / len(middle) == pytest.approx(1_000, abs=6)


@pytest.mark.parametrize("kind", ALL)
def test_silence_of_no_length_is_still_a_file(kind: SpeechFormat) -> None:
    file = encoded(kind, 24_000, noise(0))
    assert file.startswith({"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS"}.get(kind, b""))


@pytest.mark.parametrize("kind", ALL)
def test_non_finite_samples_are_refused(kind: SpeechFormat) -> None:
    with pytest.raises(InvalidAudio, match="finite"):
        encoder(kind, 24_000).push([0.0, np.nan])


@pytest.mark.parametrize("kind", ALL)
def test_huge_samples_are_clipped(kind: SpeechFormat) -> None:
    samples, _ = decoded(kind, encoded(kind, 24_000, np.float32(3e38) * np.sign(SIGNAL)))
    assert 0.9 < np.abs(samples).max() < 2.0  # a lossy coder overshoots at the edges of a square wave


def test_unknown_formats_and_rates_are_refused() -> None:
    with pytest.raises(UnsupportedAudio, match="wav, pcm, mp3"):
        encoder("wma", 24_000)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedAudio, match="sample rate"):
        encoder("wav", 0)


def test_an_encoder_that_this_pyav_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encode._TARGETS, "mp3", replace(encode._TARGETS["mp3"], codec="no-such-encoder"))
    with pytest.raises(CodecMissing, match="cannot write mp3"):
        encoder("mp3", 24_000)


def test_all_formats_are_offered() -> None:
    assert formats() == ALL


def test_without_pyav_the_plain_ones_are_left(without_pyav: None) -> None:
    assert formats() == ("wav", "pcm")
    assert encoder("wav", 24_000).finish().startswith(b"RIFF")
    with pytest.raises(CodecMissing, match=r"writing mp3 needs PyAV: .*\.\[opus\]"):
        encoder("mp3", 24_000)

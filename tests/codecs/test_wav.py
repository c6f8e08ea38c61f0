"""WAV: every sample format against another writer, and headers that lie."""

from __future__ import annotations

import io
import struct
import tracemalloc
import wave

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from voxlane.codecs.errors import AudioError, InvalidAudio, TooMuchAudio, UnsupportedAudio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.wav import MAX_CHUNKS, decode_wav, encode_wav, wav_stream_header

from .signals import ALAW, FLOAT, MULAW, PCM, chunk, fmt, fmt_extensible, noise, riff, stdlib_wav

WORDS = np.array([0, 1, -1, 12345, -12345, 32767, -32768], dtype="<i2")
DATA = chunk(b"data", WORDS.tobytes())
SMALL = AudioLimits(seconds=1.0, decoded_bytes=100_000, channels=4)


# What is read


@pytest.mark.parametrize(
    ("width", "values", "body"),
    [
        (1, [-1.0, 0.0, 127 / 128], bytes([0, 128, 255])),
        (2, [-1.0, 0.0, 0.5], struct.pack("<3h", -32768, 0, 16384)),
        (3, [-1.0, -(2**-23), 0.5], b"\x00\x00\x80" + b"\xff\xff\xff" + b"\x00\x00\x40"),
        (4, [-1.0, -(2**-31), 0.5], struct.pack("<3i", -(2**31), -1, 2**30)),
    ],
)
def test_pcm_of_every_width(width: int, values: list[float], body: bytes) -> None:
    samples, rate = decode_wav(stdlib_wav(body, width=width, rate=22_050))
    assert rate == 22_050
    assert samples.dtype == np.float32
    assert samples.tolist() == np.float32(values).tolist()


@pytest.mark.parametrize("code", ["f", "d"])
def test_floats_pass_unchanged(code: str) -> None:
    body = struct.pack(f"<4{code}", 0.25, -1.0, 1.5, 0.0)
    samples, _ = decode_wav(riff(fmt(FLOAT, 8 * struct.calcsize(code)), chunk(b"data", body)))
    assert samples.tolist() == [0.25, -1.0, 1.5, 0.0]


def test_telephone_codes() -> None:
    assert decode_wav(riff(fmt(MULAW, 8), chunk(b"data", b"\xff\x80")))[0].tolist() == [0.0, 32124 / 32768]
    assert decode_wav(riff(fmt(ALAW, 8), chunk(b"data", b"\xd5\xaa")))[0].tolist() == [8 / 32768, 32256 / 32768]


def test_the_extensible_format() -> None:
    samples, _ = decode_wav(riff(fmt_extensible(PCM, 16), DATA))
    assert samples.tolist() == (WORDS / 32768).tolist()
    floats = struct.pack("<2f", 0.5, -0.5)
    assert decode_wav(riff(fmt_extensible(FLOAT, 32), chunk(b"data", floats)))[0].tolist() == [0.5, -0.5]
    with pytest.raises(UnsupportedAudio, match="encoding"):
        decode_wav(riff(fmt_extensible(PCM, 16, tail=bytes(14)), DATA))


def test_bits_between_bytes_lie_at_the_top() -> None:
    samples, _ = decode_wav(riff(fmt(PCM, 12), chunk(b"data", struct.pack("<h", 0x4000))))
    assert samples.tolist() == [0.5]


@given(hnp.arrays("<i2", st.tuples(st.integers(0, 20), st.integers(1, 8))))
def test_channels_are_kept_or_mixed(words: np.ndarray) -> None:
    file = stdlib_wav(words.tobytes(), width=2, channels=words.shape[1])
    apart, _ = decode_wav(file, mono=False)
    assert np.array_equal(apart * 32768, words)
    mixed, _ = decode_wav(file)
    assert mixed == pytest.approx(words.mean(axis=1) / 32768 if len(words) else np.zeros(0), abs=1e-6)


def test_other_chunks_are_stepped_over() -> None:
    odd = chunk(b"LIST", b"abc")
    samples, _ = decode_wav(riff(odd, fmt(PCM, 16), odd, odd, DATA, chunk(b"LIST", b"noise after")))
    assert len(samples) == len(WORDS)


# What is written


@given(hnp.arrays(np.int16, st.integers(0, 200)), st.sampled_from([8_000, 22_050, 48_000]))
def test_our_files_are_read_by_others_and_by_us(words: np.ndarray, rate: int) -> None:
    file = encode_wav(words / 32768, rate)
    with wave.open(io.BytesIO(file)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, rate)
        assert reader.readframes(1000) == words.astype("<i2").tobytes()
    samples, read_rate = decode_wav(file)
    assert read_rate == rate
    assert np.array_equal(samples * 32768, words)


def test_stereo_is_written_interleaved() -> None:
    apart, _ = decode_wav(encode_wav([[0.5, -0.5], [0.25, -0.25]], 16_000), mono=False)
    assert apart.tolist() == [[0.5, -0.5], [0.25, -0.25]]


def test_a_stream_without_length_is_read_to_its_end() -> None:
    samples, rate = decode_wav(wav_stream_header(24_000) + WORDS.tobytes())
    assert (len(samples), rate) == (len(WORDS), 24_000)
    assert wav_stream_header(24_000, channels=2)[22:24] == b"\x02\0"


# Headers that lie


@pytest.mark.parametrize("declared", [0x7FFFFFFF, 0xFFFFFFFF, 100_000_000, 15])
@pytest.mark.parametrize("whole", [0, 36, 0xFFFFFFFF, 100_000_036])
def test_too_large_a_length_gives_what_is_there(declared: int, whole: int) -> None:
    file = riff(fmt(PCM, 16), chunk(b"data", WORDS.tobytes(), declared), declared=whole)
    assert len(decode_wav(file)[0]) == len(WORDS)


def test_a_shorter_length_is_obeyed() -> None:
    assert len(decode_wav(riff(fmt(PCM, 16), chunk(b"data", WORDS.tobytes(), 6)))[0]) == 3


@pytest.mark.parametrize("whole", [0, 36, 0xFFFFFFFF])
def test_a_header_never_completed_is_a_stream(whole: int) -> None:
    file = riff(fmt(PCM, 16), chunk(b"data", WORDS.tobytes(), 0), declared=whole)
    assert len(decode_wav(file)[0]) == len(WORDS)


def test_an_empty_data_chunk_before_others_is_empty() -> None:
    assert len(decode_wav(riff(fmt(PCM, 16), chunk(b"data", b""), chunk(b"LIST", b"tags")))[0]) == 0


def test_half_a_frame_at_the_end_is_dropped() -> None:
    file = riff(fmt(PCM, 16, channels=3), chunk(b"data", bytes(6 * 4 + 5)))
    assert len(decode_wav(file)[0]) == 4


def test_every_truncation_is_an_error_or_shorter_audio() -> None:
    file = riff(chunk(b"LIST", b"abc"), fmt(PCM, 16), DATA)
    begin = len(file) - len(WORDS) * 2
    for end in range(begin):
        with pytest.raises(InvalidAudio):
            decode_wav(file[:end])
    lengths = [len(decode_wav(file[:end])[0]) for end in range(begin, len(file))]
    assert lengths == [count // 2 for count in range(len(WORDS) * 2)]


def test_a_huge_header_on_a_small_file_allocates_nothing() -> None:
    file = riff(fmt(PCM, 16), chunk(b"data", bytes(1_000), 100_000_000), declared=100_000_036)
    tracemalloc.start()
    try:
        decode_wav(file)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "empty"),
        (b"RIFF", "not a WAV"),
        (b"RIFX" + bytes(8) + b"WAVE", "not a WAV"),
        (b"RIFF\0\0\0\0AVI " + bytes(50), "not a WAV"),
        (riff(), "no data"),
        (riff(fmt(PCM, 16)), "no data"),
        (riff(chunk(b"LIST", b"", 0xFFFFFFF0), fmt(PCM, 16), DATA), "no data"),
        (riff(DATA), "no format"),
        (riff(chunk(b"fmt ", bytes(15)), DATA), "cut short"),
        (riff(chunk(b"fmt ", struct.pack("<HHIIHH", 0xFFFE, 1, 16_000, 32_000, 2, 16)), DATA), "cut short"),
        (riff(fmt(PCM, 16, channels=0), DATA), "contradicts"),
        (riff(fmt(PCM, 16, block=3), DATA), "contradicts"),
        (riff(fmt(PCM, 16, block=0), DATA), "contradicts"),
        (riff(*[chunk(b"junk", b"")] * MAX_CHUNKS, fmt(PCM, 16), DATA), "no data"),
        (riff(fmt(FLOAT, 32), chunk(b"data", struct.pack("<f", np.nan))), "finite"),
        (riff(fmt(FLOAT, 64), chunk(b"data", struct.pack("<d", 1e300))), "finite"),
        (riff(fmt(FLOAT, 32, channels=2), chunk(b"data", struct.pack("<2f", np.inf, -np.inf))), "finite"),
    ],
)
def test_broken_files_say_why(file: bytes, reason: str) -> None:
    with pytest.raises(InvalidAudio, match=reason):
        decode_wav(file)


@pytest.mark.parametrize(
    ("format_chunk", "reason"),
    [
        (fmt(PCM, 0), "encoding"),
        (fmt(PCM, 40), "encoding"),
        (fmt(FLOAT, 16), "encoding"),
        (fmt(MULAW, 16), "encoding"),
        (fmt(0x55, 16), "encoding"),
        (fmt(PCM, 16, rate=0), "rate"),
        (fmt(PCM, 16, rate=192_001), "rate"),
        (fmt(PCM, 16, channels=9), "channels"),
    ],
)
def test_unsupported_files_say_why(format_chunk: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedAudio, match=reason):
        decode_wav(riff(format_chunk, DATA))


def test_limits_hold_before_anything_is_decoded() -> None:
    second = stdlib_wav(bytes(2 * 8_000), width=2, rate=8_000)
    assert len(decode_wav(second, SMALL)[0]) == 8_000
    with pytest.raises(TooMuchAudio, match="longer than 1 s"):
        decode_wav(stdlib_wav(bytes(2 * 8_001), width=2, rate=8_000), SMALL)
    with pytest.raises(TooMuchAudio, match="larger than 100000 bytes"):
        decode_wav(stdlib_wav(bytes(25_001), width=1, rate=48_000), SMALL)
    with pytest.raises(UnsupportedAudio, match="1 to 4 channels"):
        decode_wav(stdlib_wav(bytes(14), width=2, channels=7), SMALL)


@given(st.data())
def test_damage_gives_bounded_audio_or_an_audio_error(data: st.DataObject) -> None:
    tag, bits = data.draw(st.sampled_from([(PCM, 8), (PCM, 16), (PCM, 24), (FLOAT, 32), (FLOAT, 64), (MULAW, 8)]))
    make = data.draw(st.sampled_from([fmt, fmt_extensible]))
    file = bytearray(riff(chunk(b"LIST", b"ab"), make(tag, bits, channels=2), chunk(b"data", noise(99).tobytes())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(file), 90)))
        extreme = data.draw(st.sampled_from([0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFF8]))
        width = data.draw(st.sampled_from([1, 2, 4]))
        file[at : at + width] = (extreme & (256**width - 1)).to_bytes(width, "little")
    file = file[: data.draw(st.integers(0, len(file)))]
    samples, rate, reason = np.zeros(0), 8_000, ""
    try:
        samples, rate = decode_wav(file, SMALL)
    except AudioError as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(reason) < 100
    assert len(samples) <= min(len(file), SMALL.seconds * rate)
    assert np.isfinite(samples).all()


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic(tail: bytes) -> None:
    samples, rate, reason = np.zeros(0, np.float32), 1, ""
    try:
        samples, rate = decode_wav(b"RIFF\xff\xff\xff\xffWAVE" + tail, SMALL)
    except AudioError as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(samples) <= SMALL.seconds * rate
    assert np.isfinite(samples).all()


def test_a_streams_header_may_state_a_length() -> None:
    for seconds, frames in ((2.0, 48_000), (1e9, (2**31 - 4096) // 2)):
        data = wav_stream_header(24_000, most_seconds=seconds) + WORDS.tobytes()
        with wave.open(io.BytesIO(data)) as file:
            assert file.getnframes() == frames
            assert file.readframes(frames) == WORDS.tobytes()
        samples, _ = decode_wav(data)
        assert len(samples) == len(WORDS)

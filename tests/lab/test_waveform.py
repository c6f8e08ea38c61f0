"""The lab's own codecs of sound, beside those of the server: equal to the bit."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from voxlane.codecs import g711, pcm, resample, wav
from voxlane_lab.errors import LabError
from voxlane_lab.rates import RateConverter, converted
from voxlane_lab.waveform import Law, decode_g711, encode_g711, floats_of, quantise, read_wav, write_wav

EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
NOISE = np.random.default_rng(1).normal(0, 0.3, 5_000).astype(np.float32)


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_g711_is_the_servers(law: Law) -> None:
    encode, decode = getattr(g711, f"encode_{law}"), getattr(g711, f"decode_{law}")
    assert encode_g711(EVERY_SAMPLE, law) == encode(EVERY_SAMPLE / 32768)
    assert np.array_equal(floats_of(decode_g711(bytes(range(256)), law)), decode(bytes(range(256))))


def test_samples_are_rounded_as_the_servers() -> None:
    assert np.array_equal(quantise(NOISE * 4), pcm.quantise(NOISE * 4))
    assert np.array_equal(quantise(floats_of(EVERY_SAMPLE)), EVERY_SAMPLE)


@pytest.mark.parametrize("source", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("target", [8_000, 16_000, 24_000])
def test_rates_are_converted_as_the_server_does(source: int, target: int) -> None:
    assert np.array_equal(converted(NOISE, source, target), resample.resample(NOISE, source, target))
    ours, theirs = RateConverter(source, target), resample.Resampler(source, target)
    assert ours.hold_back_ms == theirs.hold_back_ms
    for piece in np.split(NOISE, [1, 161, 700, 4_000]):
        assert np.array_equal(ours.push(piece), theirs.push(piece))
    assert np.array_equal(ours.finish(), theirs.flush())


def test_odd_rates_are_refused() -> None:
    with pytest.raises(LabError, match="no simple ratio"):
        converted(NOISE, 44_101, 16_000)


def test_a_wav_file_is_the_servers() -> None:
    stereo = EVERY_SAMPLE.reshape(-1, 2)
    assert write_wav(stereo, 8_000) == wav.encode_wav(stereo / 32768, 8_000)
    samples, rate = read_wav(write_wav(stereo, 8_000), 10.0)
    assert rate == 8_000
    assert np.array_equal(samples, stereo / np.float32(32768))


def wav_file(tag: int, bits: int, body: bytes, *, extensible: bool = False, stated: int | None = None) -> bytes:
    """Return a mono file at 8 kHz."""
    width = (bits + 7) // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, 1, 8_000, 8_000 * width, width, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + bytes.fromhex("000000001000800000aa00389b71")
    size = len(body) if stated is None else stated
    return (
        b"RIFF\xff\xff\xff\xffWAVEfmt "
        + struct.pack("<I", len(form))
        + form
        + struct.pack("<4sI", b"data", size)
        + body
    )


@pytest.mark.parametrize(
    "file",
    [
        wav_file(1, 8, bytes(range(256))),
        wav_file(1, 24, bytes(range(240))),
        wav_file(1, 32, bytes(range(240))),
        wav_file(3, 32, NOISE.tobytes()),
        wav_file(3, 64, NOISE.astype(np.float64).tobytes()),
        wav_file(6, 8, bytes(range(256))),
        wav_file(7, 8, bytes(range(256))),
        wav_file(1, 16, bytes(range(256)), extensible=True),
        wav_file(1, 16, bytes(range(255)), stated=9_999),
        wav_file(1, 16, bytes(range(255)), stated=0),
    ],
)
def test_every_form_is_read_as_the_server_reads_it(file: bytes) -> None:
    samples, rate = read_wav(file, 10.0)
    theirs, their_rate = wav.decode_wav(file, mono=False)
    assert np.array_equal(samples, theirs)
    assert rate == their_rate


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"", "empty"),
        (b"OggS", "not a WAV file"),
        (wav_file(2, 4, b""), "encoding is not supported"),
        (wav_file(1, 16, bytes(200_000)), "longer than 10 s"),
        (wav_file(3, 32, b"\xff" * 8), "not finite"),
        (wav_file(1, 16, b"")[:36], "has no data"),
        (wav_file(1, 16, b"")[:30], "cut short"),
        (wav_file(1, 16, b"").replace(b"fmt ", b"junk"), "no format before its data"),
    ],
)
def test_a_broken_file_is_refused_in_words(file: bytes, says: str) -> None:
    with pytest.raises(LabError, match=says):
        read_wav(file, 10.0)

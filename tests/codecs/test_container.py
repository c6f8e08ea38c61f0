"""Files of every kind, found by their first bytes; damaged and endless ones."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable

import av
import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.codecs.container import decode_audio
from voxlane.codecs.encode import encoder
from voxlane.codecs.errors import AudioError, CodecMissing, InvalidAudio, TooMuchAudio, UnsupportedAudio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.wav import encode_wav

from .signals import libav_file, tone

RATE = 48_000
SIGNAL = tone(1_000, RATE, seconds=0.3)
STEREO = np.stack([SIGNAL, np.zeros_like(SIGNAL)])


def _speech(kind: str) -> Callable[[], bytes]:
    def make() -> bytes:
        one = encoder(kind, RATE)  # type: ignore[arg-type]
        return one.push(SIGNAL) + one.finish()

    return make


FILES: dict[str, bytes] = {
    name: make()
    for name, make in {
        "wav": lambda: encode_wav(SIGNAL, RATE),
        "mp3": lambda: libav_file(SIGNAL, RATE, "mp3", "libmp3lame", "fltp"),  # with an ID3 tag
        "mp3-bare": _speech("mp3"),
        "flac": lambda: libav_file(SIGNAL, RATE, "flac", "flac", "s16"),
        "ogg-opus": lambda: libav_file(SIGNAL, RATE, "ogg", "libopus", "flt"),
        "webm": lambda: libav_file(SIGNAL, RATE, "webm", "libopus", "flt"),
        "m4a": lambda: libav_file(SIGNAL, RATE, "mp4", "aac", "fltp"),
        "aac": _speech("aac"),
    }.items()
}


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_is_recognised_and_decoded(kind: str) -> None:
    samples, rate = decode_audio(FILES[kind])
    assert rate == RATE
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert len(samples) == pytest.approx(len(SIGNAL), abs=3_000)  # coders that work in frames pad both ends
    middle = samples[4_800:9_600]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(4_800)))
    assert np.argmax(spectrum) == 100  # 1 kHz in steps of 10 Hz
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


def test_lossless_is_lossless() -> None:
    samples, _ = decode_audio(FILES["flac"])
    assert np.abs(samples - SIGNAL).max() < 1 / 32000


def test_channels_are_averaged() -> None:
    stereo = libav_file(STEREO, RATE, "flac", "flac", "s16", layout="stereo")
    samples, _ = decode_audio(stereo)
    assert np.abs(samples - SIGNAL / 2).max() < 1 / 32000


@pytest.mark.parametrize(("muxer", "codec", "form"), [("adts", "aac", "fltp"), ("flac", "flac", "s16")])
def test_eight_channels_are_averaged(muxer: str, codec: str, form: str) -> None:
    surround = libav_file(np.tile(SIGNAL, (8, 1)), RATE, muxer, codec, form, layout="7.1")
    samples, _ = decode_audio(surround)
    # AAC low-passes its eighth channel, the one for deep tones: seven are left of the 1 kHz.
    assert np.abs(samples[4_800:9_600]).max() == pytest.approx(0.5 if codec == "flac" else 0.5 * 7 / 8, abs=0.03)
    with pytest.raises(UnsupportedAudio, match="1 to 7 channels"):
        decode_audio(surround, AudioLimits(channels=7))


@pytest.mark.parametrize("kind", FILES)
def test_limits_on_length_and_channels(kind: str) -> None:
    with pytest.raises(TooMuchAudio, match=r"longer than 0\.1 s"):
        decode_audio(FILES[kind], AudioLimits(seconds=0.1))
    with pytest.raises(TooMuchAudio, match="larger than 9000 bytes"):
        decode_audio(FILES[kind], AudioLimits(decoded_bytes=9_000))
    with pytest.raises(UnsupportedAudio, match="channels"):
        decode_audio(FILES[kind], AudioLimits(channels=0))


def test_silence_that_unpacks_a_hundredfold_stops_at_the_limit() -> None:
    silence = libav_file(np.zeros(8_000 * 600, dtype=np.float32), 8_000, "flac", "flac", "s16")
    assert len(silence) * 100 < 4 * 8_000 * 600
    with pytest.raises(TooMuchAudio, match="longer than 60 s"):
        decode_audio(silence, AudioLimits(seconds=60))


def test_a_file_that_changes_its_rate_is_refused() -> None:
    chained = FILES["mp3-bare"] + libav_file(tone(500, 16_000), 16_000, "mp3", "libmp3lame", "fltp")
    with pytest.raises(InvalidAudio, match="under way"):
        decode_audio(chained)


def test_a_film_without_sound_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25, width=16, height=16, pix_fmt="yuv420p")
        container.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        container.mux(stream.encode(None))
    with pytest.raises(InvalidAudio, match="no audio track"):
        decode_audio(file.getvalue())


def test_a_broken_packet_is_passed_over() -> None:
    file = bytearray(FILES["mp3-bare"])
    middle = len(file) // 2
    file[middle : middle + 200] = bytes(200)
    samples, _ = decode_audio(file)
    assert len(samples) > len(SIGNAL) // 2


@pytest.mark.parametrize(
    ("file", "kind", "reason"),
    [
        (b"", InvalidAudio, "empty"),
        (b"\xff", UnsupportedAudio, "none of"),
        (b"hello, this is text", UnsupportedAudio, "none of"),
        (gzip.compress(b"audio", mtime=0), UnsupportedAudio, "none of"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", UnsupportedAudio, "none of"),  # libav would open what it names
        (b"ffconcat version 1.0\nfile /etc/passwd\n", UnsupportedAudio, "none of"),
        (b"fLaC" + bytes(300), InvalidAudio, "broken"),
        (b"OggS" + bytes(300), InvalidAudio, "broken"),
        (b"ID3" + bytes(300), InvalidAudio, "broken"),
        (b"\xff\xfb" + bytes(300), InvalidAudio, "broken"),
        (b"\xff\xf1" + bytes(300), InvalidAudio, "broken"),
        (b"\x1aE\xdf\xa3" + bytes(300), InvalidAudio, "broken"),
        (b"\0\0\0\x20ftypM4A " + bytes(300), InvalidAudio, "broken"),
    ],
)
def test_what_is_not_audio_says_so(file: bytes, kind: type[AudioError], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        decode_audio(file)


@settings(max_examples=examples(200))
@given(st.data())
def test_damage_gives_bounded_audio_or_an_audio_error(data: st.DataObject) -> None:
    file = bytearray(FILES[data.draw(st.sampled_from(sorted(FILES)))])
    limits = AudioLimits(seconds=1.0)
    for _ in range(data.draw(st.integers(1, 5))):
        # Headers lie at the front, M4A's at the end: damage both more often than the sound between.
        span = data.draw(st.sampled_from([(0, 64), (0, 700), (-700, 0), (0, len(file))]))
        at = data.draw(st.integers(*span)) % len(file)
        file[at : at + 4] = data.draw(
            st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f", b"\0\0\0\1", b"", b"fLaC"])
        )
    file = file[: data.draw(st.integers(0, len(file)))] if data.draw(st.booleans()) else file
    samples, rate, reason = np.zeros(0), RATE, ""
    try:
        samples, rate = decode_audio(file, limits)
    except AudioError as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(reason) < 100
    assert len(samples) <= limits.seconds * rate
    assert np.isfinite(samples).all()


def test_without_pyav_only_wav_is_read(without_pyav: None) -> None:
    assert len(decode_audio(FILES["wav"])[0]) == len(SIGNAL)
    with pytest.raises(CodecMissing, match=r"\.\[opus\]"):
        decode_audio(FILES["flac"])

"""Streaming encoders for speech files: samples in, bytes of a file out as early as the format allows.

WAV and PCM are always there; MP3, Opus in Ogg, FLAC and AAC need PyAV (extra `opus`). All files are mono.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike

from voxlane.codecs.errors import CodecMissing, InvalidAudio, UnsupportedAudio, needs_pyav
from voxlane.codecs.limits import HIGHEST_RATE, LOWEST_RATE
from voxlane.codecs.opus import RATES as OPUS_RATES
from voxlane.codecs.pcm import Floats, encode_pcm16, quantise
from voxlane.codecs.resample import Resampler
from voxlane.codecs.wav import wav_stream_header

SpeechFormat = Literal["wav", "pcm", "mp3", "opus", "flac", "aac"]


class AudioEncoder(Protocol):
    """Encodes one file. Samples at a rate that the format lacks are resampled to one that it has."""

    def push(self, samples: ArrayLike) -> bytes:
        """Take the next samples and return the bytes that are ready."""

    def finish(self) -> bytes:
        """Return the last bytes; the encoder cannot be used after that."""


def formats() -> tuple[SpeechFormat, ...]:
    """Return the formats that this installation can write."""
    everything: tuple[SpeechFormat, ...] = get_args(SpeechFormat)
    return everything if find_spec("av") else everything[:2]


def encoder(kind: SpeechFormat, rate: int, most_seconds: float | None = None) -> AudioEncoder:
    """Return an encoder for mono samples of this rate; a WAV file's header states `most_seconds` as its length."""
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise UnsupportedAudio(f"the sample rate must lie between {LOWEST_RATE} and {HIGHEST_RATE} Hz")
    if kind == "wav":
        return _Plain(wav_stream_header(rate, most_seconds=most_seconds))
    if kind == "pcm":
        return _Plain(b"")
    if kind not in _TARGETS:
        raise UnsupportedAudio(f"audio is written as one of {', '.join(get_args(SpeechFormat))}")
    return _Libav(kind, _TARGETS[kind], rate)


class _Plain:
    """Writes 16-bit PCM after an optional header."""

    __slots__ = ("_header",)

    def __init__(self, header: bytes) -> None:
        self._header = header

    def push(self, samples: ArrayLike) -> bytes:
        header, self._header = self._header, b""
        return header + encode_pcm16(samples)

    def finish(self) -> bytes:
        return self.push(())


@dataclass(frozen=True, slots=True)
class _Target:
    """libav's names and options for one format."""

    muxer: str
    codec: str
    sample_format: str
    rates: tuple[int, ...]
    bit_rate: int = 0  # 0: lossless
    options: dict[str, str] = field(default_factory=dict)


_MPEG_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_TARGETS = {
    # No Xing frame: it holds the file's length, and a stream cannot go back to write it.
    "mp3": _Target("mp3", "libmp3lame", "fltp", _MPEG_RATES, 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    # Pages of 20 ms instead of 1 s: sound starts at once and costs 28 bytes a page.
    "opus": _Target("ogg", "libopus", "flt", OPUS_RATES, 48_000, {"page_duration": "20000"}),
    "flac": _Target("flac", "flac", "s16", _MPEG_RATES),
    "aac": _Target("adts", "aac", "fltp", _MPEG_RATES, 64_000),
}


class _Sink:
    """A write-only file for libav; take() returns what was written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class _Libav:
    """Writes one file with an encoder and a muxer of libav."""

    def __init__(self, kind: str, target: _Target, rate: int) -> None:
        with needs_pyav(f"writing {kind}"):
            import av
        written_rate = min((known for known in target.rates if known >= rate), default=target.rates[-1])
        self._resampler = Resampler(rate, written_rate)
        self._sample_format = target.sample_format
        self._rate = written_rate
        self._sink = _Sink()
        self._file = av.open(self._sink, "w", format=target.muxer, options={**target.options, "flush_packets": "1"})
        try:
            stream = self._file.add_stream(target.codec, rate=written_rate)
        except ValueError as error:  # this PyAV was built without the encoder
            raise CodecMissing(f"this PyAV cannot write {kind}") from error
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        self._stream.layout = "mono"
        self._stream.format = target.sample_format
        if target.bit_rate:
            self._stream.bit_rate = target.bit_rate
        self._file.start_encoding()  # a file without sound gets its header too

    def push(self, samples: ArrayLike) -> bytes:
        floats = np.asarray(samples, dtype=np.float32)
        if not np.isfinite(floats).all():
            raise InvalidAudio("the samples are not finite numbers")
        self._encode(self._resampler.push(np.clip(floats, -1.0, 1.0)))
        return self._sink.take()

    def finish(self) -> bytes:
        self._encode(self._resampler.flush())
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.take()

    def _encode(self, samples: Floats) -> None:
        import av

        if not len(samples):
            return
        plane = quantise(samples) if self._sample_format == "s16" else samples
        frame = av.AudioFrame.from_ndarray(plane[None], format=self._sample_format, layout="mono")
        frame.sample_rate = self._rate
        self._file.mux(self._stream.encode(frame))

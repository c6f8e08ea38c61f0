"""Decode audio files of any kind to mono float32: WAV with our own reader, the rest with PyAV (extra `opus`).

The first bytes decide the kind of file, never its name. Only the demuxer of that kind runs, because libav's own probing
also accepts playlists, which open other files. Lengths in headers are ignored; decoding stops at the limits. The sample
rate is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from voxlane.codecs.errors import InvalidAudio, UnsupportedAudio, needs_pyav
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.pcm import Buffer, Floats
from voxlane.codecs.wav import decode_wav, is_wav

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

_BROKEN = "the audio file is broken"


def decode_audio(data: Buffer, limits: AudioLimits | None = None) -> tuple[Floats, int]:
    """Return the samples of a WAV, MP3, FLAC, Ogg, WebM, M4A or AAC file, mixed to mono, and their rate."""
    if not data:
        raise InvalidAudio("the audio is empty")
    if is_wav(data):
        return decode_wav(data, limits)
    demuxer = _demuxer(bytes(data[:12]))
    if demuxer is None:
        raise UnsupportedAudio("the audio is none of WAV, MP3, FLAC, Ogg, WebM, M4A, AAC")
    return _decode_libav(data, demuxer, limits or AudioLimits())


def _demuxer(head: bytes) -> str | None:
    """Return the name of libav's demuxer for a file that begins with `head`, or None."""
    if head[:4] in _BY_MAGIC:
        return _BY_MAGIC[head[:4]]
    if head[4:8] == b"ftyp":
        return "mov"
    if head[:3] == b"ID3":
        return "mp3"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "mp3" if head[1] & 0x06 else "aac"  # the two layer bits are zero in ADTS
    return None


_BY_MAGIC = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}


def _decode_libav(data: Buffer, demuxer: str, limits: AudioLimits) -> tuple[Floats, int]:
    with needs_pyav("this kind of audio file"):
        import av
    try:
        # Tags in an unknown encoding must not raise: they are not read.
        with av.open(BytesIO(data), "r", format=demuxer, metadata_errors="ignore") as container:
            return _collect(container, limits)
    except av.FFmpegError as error:
        raise InvalidAudio(_BROKEN) from error


def _collect(container: InputContainer, limits: AudioLimits) -> tuple[Floats, int]:
    """Return the samples of the first audio track, mixed to mono, and their rate; raise beyond the limits."""
    import av

    if not container.streams.audio:
        raise InvalidAudio("the file has no audio track")
    pieces: list[Floats] = []
    total, rate, kind = 0, 0, None
    # Interleaved floats, not planes: PyAV 18.1 counts nine planes in a frame of eight channels and crashes.
    to_float = av.AudioResampler(format="flt")
    for frame in _frames(container):
        rate = frame.sample_rate
        channels = len(frame.layout.channels)
        limits.check(frame.samples, channels, rate)  # one frame unpacked, with all its channels
        total += frame.samples
        limits.check(total, 1, rate)  # what is kept of all frames
        kind = kind or (rate, frame.layout.name, frame.format.name)
        if kind != (rate, frame.layout.name, frame.format.name):
            raise InvalidAudio("the audio file changes its format under way")
        packed = [converted.to_ndarray().reshape(-1, channels) for converted in to_float.resample(frame)]
        pieces += [piece.mean(axis=1, dtype=np.float32) for piece in packed]
    samples = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)
    if not len(samples) or not np.isfinite(samples).all():
        raise InvalidAudio(_BROKEN)
    return samples, rate


def _frames(container: InputContainer) -> Iterator[av.AudioFrame]:
    """Yield the frames that can be decoded; skip broken packets, as players do."""
    import av

    for packet in container.demux(container.streams.audio[0]):
        try:
            yield from packet.decode()
        except av.FFmpegError:
            continue

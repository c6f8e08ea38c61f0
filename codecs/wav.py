"""WAV files to and from float32.

Reads PCM of 8, 16, 24 and 32 bits, float32 and float64, A-law and μ-law, plain or WAVE_FORMAT_EXTENSIBLE, RIFF or RF64.
The header's format is believed, its lengths are not: a truncated file gives the frames that are there, and a stream,
which never completed its header, is read to its end. The sample rate is left as it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from voxlane.codecs.errors import InvalidAudio, UnsupportedAudio
from voxlane.codecs.g711 import decode_alaw, decode_mulaw
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.pcm import Buffer, Floats, decode_pcm16, encode_pcm16

MAX_CHUNKS = 1_000
"""Chunks read before the data chunk. Real files have a handful; a file of chunks alone would cost 60 ms per MiB."""

_PCM, _FLOAT, _ALAW, _MULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_WIDTHS = {_PCM: (1, 2, 3, 4), _FLOAT: (4, 8), _ALAW: (1,), _MULAW: (1,)}
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # follows the tag in every subformat that we read
_UNKNOWN_BYTES = 0xFFFFFFFF
_MOST_STATED_BYTES = 0x7FFF_FFFF // 4096 * 4096  # with the header it fits the signed numbers of some readers


@dataclass(frozen=True, slots=True)
class _Layout:
    """The format of the data chunk."""

    tag: int
    channels: int
    rate: int
    width: int  # bytes of one sample of one channel

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.width


def is_wav(data: Buffer) -> bool:
    """Return whether the bytes begin like a WAV file."""
    return bytes(data[:4]) in (b"RIFF", b"RF64") and bytes(data[8:12]) == b"WAVE"


def decode_wav(data: Buffer, limits: AudioLimits | None = None, *, mono: bool = True) -> tuple[Floats, int]:
    """Return the samples, mixed to mono or as (frames, channels), and the sample rate."""
    layout, body = _find(memoryview(data))
    frames = len(body) // layout.frame_bytes
    (limits or AudioLimits()).check(frames, layout.channels, layout.rate)
    with np.errstate(over="ignore", invalid="ignore"):  # huge and non-finite values are caught below
        samples = _samples(layout, body[: frames * layout.frame_bytes]).reshape(frames, layout.channels)
        if mono:
            samples = samples[:, 0] if layout.channels == 1 else samples.mean(axis=1)
    if not np.isfinite(samples).all():
        raise InvalidAudio("the WAV file holds samples that are not finite numbers")
    return samples, layout.rate


def encode_wav(samples: ArrayLike, rate: int) -> bytes:
    """Return a 16-bit WAV file of mono samples or (frames, channels)."""
    floats = np.asarray(samples, dtype=np.float32)
    body = encode_pcm16(floats)
    return _header(rate, 1 if floats.ndim == 1 else floats.shape[1], len(body)) + body


def wav_stream_header(rate: int, channels: int = 1, most_seconds: float | None = None) -> bytes:
    """Return the header of a 16-bit WAV stream of unknown length; PCM follows until the stream ends.

    With `most_seconds` the header states that length. Readers as Python's `wave` reserve memory for what a header
    states: 4 GiB for an unknown length.
    """
    if most_seconds is None:
        return _header(rate, channels, None)
    frame_bytes = 2 * channels
    return _header(rate, channels, min(int(most_seconds * rate) * frame_bytes, _MOST_STATED_BYTES))


def _header(rate: int, channels: int, body_bytes: int | None) -> bytes:
    whole, body = (_UNKNOWN_BYTES, _UNKNOWN_BYTES) if body_bytes is None else (body_bytes + 36, body_bytes)
    format_chunk = struct.pack("<HHIIHH", _PCM, channels, rate, rate * channels * 2, channels * 2, 16)
    return (
        struct.pack("<4sI4s4sI", b"RIFF", whole, b"WAVE", b"fmt ", 16)
        + format_chunk
        + struct.pack("<4sI", b"data", body)
    )


def _find(data: memoryview) -> tuple[_Layout, memoryview]:
    """Return the format, and the bytes of the data chunk that are there."""
    if not data:
        raise InvalidAudio("the audio is empty")
    if not is_wav(data):
        raise InvalidAudio("the audio is not a WAV file")
    layout, position = None, 12
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            break
        name, declared = struct.unpack_from("<4sI", data, position)
        start = position + 8
        if name == b"data":
            if layout is None:
                raise InvalidAudio("the WAV file has no format before its data")
            return layout, data[start : start + _present(data, start, declared)]
        if name == b"fmt ":
            layout = _layout(data[start : start + declared])
        position = start + declared + declared % 2
    raise InvalidAudio("the WAV file has no data")


def _present(data: memoryview, start: int, declared: int) -> int:
    """Return how many bytes of the data chunk there are."""
    if declared:
        return min(declared, len(data) - start)
    # A recorder that did not complete its header leaves 0 here, and a file length that ends here or is unknown. If the
    # file length goes beyond this place, the chunk is really empty and other chunks follow.
    (whole,) = struct.unpack_from("<I", data, 4)
    truly_empty = whole != _UNKNOWN_BYTES and whole + 8 > start
    return 0 if truly_empty else len(data) - start


def _layout(chunk: memoryview) -> _Layout:
    if len(chunk) < 16:
        raise InvalidAudio("the WAV file's format is cut short")
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE:
        if len(chunk) < 40:
            raise InvalidAudio("the WAV file's format is cut short")
        if bytes(chunk[26:40]) != _GUID_TAIL:
            raise UnsupportedAudio("the WAV file's encoding is not supported")
        (tag,) = struct.unpack_from("<H", chunk, 24)
    width = (bits + 7) // 8  # samples of 12 or 20 bits fill the top bits of whole bytes
    if width not in _WIDTHS.get(tag, ()):
        raise UnsupportedAudio("the WAV file's encoding is not supported")
    if channels == 0 or frame_bytes != channels * width:
        raise InvalidAudio("the WAV file's format contradicts itself")
    return _Layout(tag, channels, rate, width)


def _samples(layout: _Layout, body: memoryview) -> Floats:
    match layout.tag, layout.width:
        case 1, 1:
            return (np.frombuffer(body, dtype=np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
        case 1, 2:
            return decode_pcm16(body)
        case 1, 3:
            padded = np.zeros((len(body) // 3, 4), dtype=np.uint8)
            padded[:, 1:] = np.frombuffer(body, dtype=np.uint8).reshape(-1, 3)
            return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        case 1, _:
            return np.frombuffer(body, dtype="<i4").astype(np.float32) / np.float32(2**31)
        case 3, width:
            return np.frombuffer(body, dtype=f"<f{width}").astype(np.float32)
        case 6, _:
            return decode_alaw(body)
        case _:
            return decode_mulaw(body)

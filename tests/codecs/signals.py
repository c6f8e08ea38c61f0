"""Signals and files that several codec tests use, made without the code under test."""

from __future__ import annotations

import io
import struct
import wave

import av
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PCM, FLOAT, ALAW, MULAW = 1, 3, 6, 7


def tone(frequency: float, rate: int, seconds: float = 0.2, level: float = 0.5) -> Floats:
    """Return a sine."""
    return (level * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def noise(count: int, seed: int = 0, level: float = 0.3) -> Floats:
    """Return white noise within [-level, level)."""
    return np.random.default_rng(seed).uniform(-level, level, count).astype(np.float32)


def decibels(ratio: float) -> float:
    """Return a ratio of amplitudes in dB."""
    return float(20 * np.log10(max(ratio, 1e-12)))


def rms(samples: NDArray[np.floating]) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def stdlib_wav(body: bytes, *, width: int, channels: int = 1, rate: int = 16_000) -> bytes:
    """Return a PCM file as Python's own `wave` writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(body)
    return file.getvalue()


def chunk(name: bytes, body: bytes, declared: int | None = None) -> bytes:
    """Return a RIFF chunk, its size true or declared."""
    return name + struct.pack("<I", len(body) if declared is None else declared) + body + b"\0" * (len(body) % 2)


def riff(*chunks: bytes, declared: int | None = None, magic: bytes = b"RIFF") -> bytes:
    """Return a RIFF file of these chunks."""
    body = b"WAVE" + b"".join(chunks)
    return magic + struct.pack("<I", len(body) if declared is None else declared) + body


def fmt(tag: int, bits: int, *, channels: int = 1, rate: int = 16_000, block: int | None = None) -> bytes:
    """Return a plain format chunk."""
    frame = channels * ((bits + 7) // 8) if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits))


def fmt_extensible(tag: int, bits: int, *, channels: int = 1, rate: int = 16_000, tail: bytes | None = None) -> bytes:
    """Return an extensible format chunk."""
    frame = channels * bits // 8
    plain = struct.pack("<HHIIHH", 0xFFFE, channels, rate, rate * frame, frame, bits)
    guid_tail = b"\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71" if tail is None else tail
    return chunk(b"fmt ", plain + struct.pack("<HHIH", 22, bits, 0, tag) + guid_tail)


def libav_file(samples: Floats, rate: int, muxer: str, codec: str, sample_format: str, layout: str = "mono") -> bytes:
    """Return a file as libav writes it; samples are (channels, frames) or mono."""
    file = io.BytesIO()
    given_format, packed = "flt", np.ascontiguousarray(np.atleast_2d(samples).T).reshape(1, -1)
    if sample_format == "s16":
        given_format, packed = "s16", np.rint(packed * 32767).astype(np.int16)
    with av.open(file, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = layout
        stream.format = sample_format
        frame = av.AudioFrame.from_ndarray(packed, format=given_format, layout=layout)
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()

"""Samples as bytes: 16-bit PCM, the telephone's two codes of 8 bits (ITU-T G.711), and WAV files. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxlane_lab.errors import LabError
from voxlane_lab.values import Pcm

Floats = NDArray[np.float32]
Law = Literal["mulaw", "alaw"]


def floats_of(pcm: Pcm) -> Floats:
    """Return samples in [-1, 1)."""
    return pcm.astype(np.float32) / np.float32(32768)


def quantise(samples: ArrayLike) -> Pcm:
    """Return finite samples as 16-bit integers, clipped and rounded to even."""
    scaled = np.rint(np.clip(np.asarray(samples, np.float32), -1.0, 1.0) * np.float32(32768))
    words: Pcm = np.minimum(scaled, np.float32(32767)).astype(np.int16)
    return words


# ---- G.711


def decode_g711(data: bytes, law: Law) -> Pcm:
    """Return the samples of μ-law or A-law bytes."""
    return _LEVELS[law][np.frombuffer(data, np.uint8)]


def encode_g711(pcm: Pcm, law: Law) -> bytes:
    """Return samples as μ-law or A-law bytes."""
    return _CODES[law][pcm.view(np.uint16)].tobytes()


def _levels(law: Law) -> Pcm:
    """Return the sample that each byte stands for."""
    code = np.arange(256) ^ (0xFF if law == "mulaw" else 0x55)  # so the line carries it
    exponent, mantissa = (code >> 4) & 7, code & 15
    if law == "mulaw":
        level = ((2 * mantissa + 33) << (exponent + 2)) - 132
        return np.where(code & 0x80, -level, level).astype(np.int16)
    linear = (2 * mantissa + 1) << 3  # the lowest two segments have the same step
    level = np.where(exponent == 0, linear, (2 * mantissa + 33) << (np.maximum(exponent, 1) + 2))
    return np.where(code & 0x80, level, -level).astype(np.int16)


def _codes(law: Law) -> NDArray[np.uint8]:
    """Return the byte of each sample, in the order of its unsigned value; ITU-T G.191 complements negative ones."""
    word = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude, negative = np.where(word < 0, ~word, word), word < 0
    if law == "mulaw":
        biased = np.minimum((magnitude >> 2) + 33, 8191)
        exponent = np.log2(biased).astype(np.int32) - 5
        code = ~((exponent << 4) | ((biased >> (exponent + 1)) & 15) | np.where(negative, 0x80, 0)) & 0xFF
    else:
        step = magnitude >> 4
        exponent = np.maximum(np.log2(np.maximum(step, 1)).astype(np.int32) - 3, 0)
        code = ((exponent << 4) | ((step >> np.maximum(exponent - 1, 0)) & 15) | np.where(negative, 0, 0x80)) ^ 0x55
    codes: NDArray[np.uint8] = code.astype(np.uint8)
    return codes


_LEVELS: dict[Law, Pcm] = {"mulaw": _levels("mulaw"), "alaw": _levels("alaw")}
_CODES: dict[Law, NDArray[np.uint8]] = {"mulaw": _codes("mulaw"), "alaw": _codes("alaw")}


# ---- WAV

PCM, FLOAT, ALAW, MULAW, EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
WIDTHS = {PCM: (1, 2, 3, 4), FLOAT: (4, 8), ALAW: (1,), MULAW: (1,)}
GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # follows the tag in every subformat that is read
UNKNOWN_BYTES = 0xFFFFFFFF
MOST_CHUNKS = 1_000
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000
MOST_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class WavForm:
    """How a file writes its samples."""

    tag: int
    channels: int
    rate: int
    width: int  # bytes of one sample of one channel


def write_wav(pcm: Pcm, rate: int) -> bytes:
    """Return a 16-bit WAV file of mono samples or (frames, channels)."""
    body, channels = pcm.astype("<i2").tobytes(), 1 if pcm.ndim == 1 else pcm.shape[1]
    sizes = (PCM, channels, rate, rate * channels * 2, channels * 2, 16, b"data", len(body))
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", len(body) + 36, b"WAVE", b"fmt ", 16, *sizes) + body


def read_wav(data: bytes, most_s: float) -> tuple[Floats, int]:
    """Return the samples of a file, (frames, channels), and the rate; raise LabError if it is none.

    The header's lengths are not believed: a truncated file gives the frames that are there, and one whose recorder did
    not complete its header is read to its end.
    """
    form, body = _found(data)
    frames = len(body) // (form.channels * form.width)
    if not LOWEST_RATE <= form.rate <= HIGHEST_RATE:
        raise LabError(f"the sample rate must lie between {LOWEST_RATE} and {HIGHEST_RATE} Hz")
    if not 1 <= form.channels <= MOST_CHANNELS:
        raise LabError(f"the audio must have 1 to {MOST_CHANNELS} channels")
    if frames > most_s * form.rate:
        raise LabError(f"the audio is longer than {most_s:g} s")
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are refused below
        samples = _samples(form, body[: frames * form.channels * form.width]).reshape(frames, form.channels)
    if not np.isfinite(samples).all():
        raise LabError("the WAV file holds samples that are not finite numbers")
    return samples, form.rate


def _found(data: bytes) -> tuple[WavForm, bytes]:
    """Return the format, and the bytes of the data chunk that are there."""
    if not data:
        raise LabError("the audio is empty")
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise LabError("the audio is not a WAV file")
    form, place = None, 12
    for _ in range(MOST_CHUNKS):
        if place + 8 > len(data):
            break
        name, declared = struct.unpack_from("<4sI", data, place)
        start = place + 8
        if name == b"data":
            if form is None:
                raise LabError("the WAV file has no format before its data")
            return form, data[start : start + (declared or _undeclared(data, start))]
        if name == b"fmt ":
            form = _form(data[start : start + declared])
        place = start + declared + declared % 2
    raise LabError("the WAV file has no data")


def _undeclared(data: bytes, start: int) -> int:
    """Return the bytes of a data chunk that says 0: none if the file's own length goes beyond it, else all."""
    (whole,) = struct.unpack_from("<I", data, 4)
    return 0 if whole != UNKNOWN_BYTES and whole + 8 > start else len(data) - start


def _form(chunk: bytes) -> WavForm:
    if len(chunk) < 16:
        raise LabError("the WAV file's format is cut short")
    tag, channels, rate, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == EXTENSIBLE:
        if len(chunk) < 40:
            raise LabError("the WAV file's format is cut short")
        tag = struct.unpack_from("<H", chunk, 24)[0] if chunk[26:40] == GUID_TAIL else EXTENSIBLE
    width = (bits + 7) // 8  # samples of 12 or 20 bits fill the top bits of whole bytes
    if width not in WIDTHS.get(tag, ()):
        raise LabError("the WAV file's encoding is not supported")
    if channels == 0 or frame_bytes != channels * width:
        raise LabError("the WAV file's format contradicts itself")
    return WavForm(tag, channels, rate, width)


def _samples(form: WavForm, body: bytes) -> Floats:
    match form.tag, form.width:
        case 1, 1:
            return (np.frombuffer(body, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
        case 1, 3:
            padded = np.zeros((len(body) // 3, 4), np.uint8)
            padded[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
            return padded.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        case 1, width:
            whole: NDArray[Any] = np.frombuffer(body, f"<i{width}")
            return whole.astype(np.float32) / np.float32(2 ** (8 * width - 1))
        case 3, width:
            return np.frombuffer(body, f"<f{width}").astype(np.float32)
    return floats_of(decode_g711(body, "alaw" if form.tag == ALAW else "mulaw"))

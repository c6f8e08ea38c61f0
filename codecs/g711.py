"""G.711, the two codes of the telephone network: 8-bit μ-law and A-law to and from float32, by table.

Encoding follows ITU-T G.191's reference, which takes the ones' complement of negative values. Python's `audioop`
negates them, so its μ-law decision values for negative samples are up to three 16-bit steps off. Decoding is the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxlane.codecs.pcm import Buffer, Floats, quantise


def decode_mulaw(data: Buffer) -> Floats:
    """Return the samples of μ-law bytes."""
    return _MULAW_FLOATS[np.frombuffer(data, dtype=np.uint8)]


def encode_mulaw(samples: ArrayLike) -> bytes:
    """Return the samples as μ-law bytes, clipped as 16-bit audio is."""
    return _MULAW_CODES[quantise(samples).view(np.uint16)].tobytes()


def decode_alaw(data: Buffer) -> Floats:
    """Return the samples of A-law bytes."""
    return _ALAW_FLOATS[np.frombuffer(data, dtype=np.uint8)]


def encode_alaw(samples: ArrayLike) -> bytes:
    """Return the samples as A-law bytes, clipped as 16-bit audio is."""
    return _ALAW_CODES[quantise(samples).view(np.uint16)].tobytes()


def _mulaw_levels() -> NDArray[np.int32]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF  # the line carries every bit inverted
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = ((2 * mantissa + 33) << (exponent + 2)) - 132
    return np.where(code & 0x80, -magnitude, magnitude)


def _alaw_levels() -> NDArray[np.int32]:
    code = np.arange(256, dtype=np.int32) ^ 0x55  # every other bit is inverted
    exponent, mantissa = (code >> 4) & 7, code & 15
    linear = (2 * mantissa + 1) << 3  # the lowest two segments have the same step
    magnitude = np.where(exponent == 0, linear, (2 * mantissa + 33) << (np.maximum(exponent, 1) + 2))
    return np.where(code & 0x80, magnitude, -magnitude)


def _magnitudes() -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the ones' complement magnitude and the sign of every 16-bit word, in the order of its unsigned value."""
    word = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    return np.where(word < 0, ~word, word), word < 0


def _mulaw_codes() -> NDArray[np.uint8]:
    magnitude, negative = _magnitudes()
    biased = np.minimum((magnitude >> 2) + 33, 8191)  # 14 bits; at most the top of the last segment
    exponent = np.log2(biased).astype(np.int32) - 5
    code = (exponent << 4) | ((biased >> (exponent + 1)) & 15)
    line: NDArray[np.int32] = ~(code | np.where(negative, 0x80, 0)) & 0xFF
    return line.astype(np.uint8)


def _alaw_codes() -> NDArray[np.uint8]:
    magnitude, negative = _magnitudes()
    step = magnitude >> 4  # 12 bits
    exponent = np.maximum(np.log2(np.maximum(step, 1)).astype(np.int32) - 3, 0)
    code = (exponent << 4) | ((step >> np.maximum(exponent - 1, 0)) & 15)
    line: NDArray[np.int32] = (code | np.where(negative, 0, 0x80)) ^ 0x55
    return line.astype(np.uint8)


_MULAW_FLOATS: Floats = (_mulaw_levels() / 32768).astype(np.float32)
_ALAW_FLOATS: Floats = (_alaw_levels() / 32768).astype(np.float32)
_MULAW_CODES = _mulaw_codes()
_ALAW_CODES = _alaw_codes()

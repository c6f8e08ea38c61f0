"""16-bit little-endian PCM to and from float32 in [-1, 1).

The scale is 32768 both ways, so PCM → float → PCM gives the same bytes. Encoding clips, then rounds to the nearest
integer, halves to even. NaN and infinity are refused: they mean that a model failed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxlane.codecs.errors import InvalidAudio

Floats = NDArray[np.float32]
Buffer = bytes | bytearray | memoryview


def decode_pcm16(data: Buffer) -> Floats:
    """Return the samples of whole 16-bit words."""
    if len(data) % 2:
        raise InvalidAudio("16-bit audio has an odd number of bytes")
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / np.float32(32768)


def encode_pcm16(samples: ArrayLike) -> bytes:
    """Return the samples as 16-bit words, clipped and rounded to even."""
    return quantise(samples).tobytes()


def quantise(samples: ArrayLike) -> NDArray[np.int16]:
    """Return the samples as little-endian 16-bit integers, clipped and rounded to even."""
    floats = np.asarray(samples, dtype=np.float32)
    if not np.isfinite(floats).all():
        raise InvalidAudio("the samples are not finite numbers")
    # Clipping comes first: 32768 times a huge float32 would overflow.
    scaled = np.rint(np.clip(floats, -1.0, 1.0) * np.float32(32768))
    words: NDArray[np.int16] = np.minimum(scaled, np.float32(32767)).astype("<i2")
    return words

"""What can be wrong with audio.

AudioError
├── InvalidAudio       the bytes are broken, or not what they claim to be
├── UnsupportedAudio   sound, but of a kind that we do not read or write
├── TooMuchAudio       longer or larger than the caller allows
└── CodecMissing       readable or writable once the extra `opus` (PyAV) is installed

A reason is one line made of our words and of numbers, never of the bytes at fault: it may be shown to the sender. This
module does not know how a protocol spells an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AudioError(Exception):
    """Carry a one-line reason, `str(error)`."""


class InvalidAudio(AudioError):
    """The bytes are broken, or not what they claim to be."""


class UnsupportedAudio(AudioError):
    """The audio is of a kind that we do not read or write."""


class TooMuchAudio(AudioError):
    """The audio is longer or larger than the caller allows."""


class CodecMissing(AudioError):
    """The audio needs an optional package."""


@contextmanager
def needs_pyav(what: str) -> Iterator[None]:
    """Turn a failed import of PyAV inside the block into CodecMissing, naming what needs it."""
    try:
        yield
    except ImportError as missing:
        raise CodecMissing(f"{what} needs PyAV: pip install -e '.[opus]'") from missing

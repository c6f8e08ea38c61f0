"""Errors about audio.

AudioError
├── InvalidAudio       the bytes are broken, or not what they claim to be
├── UnsupportedAudio   the audio is of a kind that we do not read or write
├── TooMuchAudio       the audio is longer or larger than the caller allows
└── CodecMissing       the audio needs the extra `opus` (PyAV)

A reason is one line and may be shown to the sender: it holds our own words and numbers, never the bytes at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voxlane.codecs.extras import install_command


class AudioError(Exception):
    """Carries a one-line reason, `str(error)`."""


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
    """Turn a failed import of PyAV inside the block into CodecMissing; the reason names `what` needs it."""
    try:
        yield
    except ImportError as missing:
        raise CodecMissing(f"{what} needs PyAV: {install_command('opus')}") from missing

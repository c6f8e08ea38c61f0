"""A link and a server around the scripted engine."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from house import ENGINE_COMMAND, Running, start

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.engine.api import LISTEN_RATE


@pytest.fixture(autouse=True)
def _clean(no_leaks: None) -> None:
    """Every test here is checked for leaks."""


@pytest.fixture
def recording() -> Callable[..., bytes]:
    """Make a 16 kHz WAV file in which the scripted engine hears a text."""

    def make(text: str, seconds: float = 1.0) -> bytes:
        samples = array("h", map(ord, text))
        samples.extend([0] * max(0, round(seconds * LISTEN_RATE) - len(samples)))
        return encode_wav(decode_pcm16(samples.tobytes()), LISTEN_RATE)

    return make


@pytest.fixture
def engine_command() -> tuple[str, ...]:
    """The command line of the scripted engine."""
    return ENGINE_COMMAND


@pytest.fixture
def serving() -> Callable[..., AbstractAsyncContextManager[Running]]:
    """Start a server: `async with serving(model=…, api_key=…, limits=…, server=…) as running`."""
    return start

"""A link and a server around the scripted engine."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
from house import ENGINE_COMMAND, Running, start

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.engine.api import LISTEN_RATE
from voxlane.server.log import LineFormatter


@pytest.fixture(autouse=True)
def _clean(no_leaks: None) -> Iterator[None]:
    """Check every test here for leaks, and undo what a command has set for the logs of its process."""
    root, ours = logging.getLogger(), logging.getLogger("voxlane")
    levels = root.level, ours.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler.formatter, LineFormatter)]
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


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

"""Recordings, and recognition by an engine in this process, for the speech benchmarks."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.codecs.container import decode_audio
from voxlane.codecs.pcm import encode_pcm16
from voxlane.engine.api import LISTEN_RATE, Append, EndInput, Finished, FromEngine, ListenParams, Submit, Words
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.loop.core import Core
from voxlane.engine.weights import store

PIECE_S = 0.1


@cache
def recording(name: str) -> NDArray[np.float32]:
    """Return a recording of the catalog at the engine's sample rate."""
    samples, rate = decode_audio((Path(store.resolve("speech-samples")) / name).read_bytes())
    resampled: NDArray[np.float32] = functional.resample(torch.from_numpy(samples), rate, LISTEN_RATE).numpy()
    return resampled


def clip(name: str, start_s: float, seconds: float) -> NDArray[np.float32]:
    """Return a part of a recording."""
    return recording(name)[int(start_s * LISTEN_RATE) : int((start_s + seconds) * LISTEN_RATE)]


def pieces(samples: NDArray[np.float32], seconds: float = PIECE_S) -> list[bytes]:
    """Return samples cut into pieces, as a microphone sends them."""
    data, size = encode_pcm16(samples), int(seconds * LISTEN_RATE) * 2
    return [data[start : start + size] for start in range(0, len(data), size)]


def text_of(messages: Iterable[FromEngine]) -> str:
    """Return the settled text of the messages."""
    return "".join(message.settled for message in messages if isinstance(message, Words))


def run(core: Core) -> list[FromEngine]:
    """Step until the engine is idle; return its messages."""
    messages: list[FromEngine] = []
    while core.busy:
        messages += core.step()
    return messages


def hear_whole(core: Core, samples: NDArray[np.float32]) -> tuple[float, str]:
    """Return the seconds for a whole clip, and its text."""
    begin = time.perf_counter()
    core.handle([Submit("whole", "asr", listen=ListenParams(partials=False))])
    core.handle([*(Append("whole", audio=piece) for piece in pieces(samples, 10.0)), EndInput("whole")])
    messages = run(core)
    assert any(isinstance(message, Finished) for message in messages)
    return time.perf_counter() - begin, text_of(messages)


def hear_live(core: Core, samples: NDArray[np.float32]) -> tuple[float, str]:
    """Return the seconds from the end of a clip that came piece by piece to its last settled word, and its text."""
    messages = core.handle([Submit("live", "asr")])
    for piece in pieces(samples):
        messages += core.handle([Append("live", audio=piece)])
        messages += run(core)
    begin = time.perf_counter()
    messages += core.handle([EndInput("live")])
    messages += run(core)
    return time.perf_counter() - begin, text_of(messages)

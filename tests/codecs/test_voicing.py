"""The detector of speech on made and recorded sound, and what the listener makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxlane.codecs.voicing import Voicing
from voxlane.engine.audio.segmenter import FRAME_SAMPLES, RATE
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.audio.transcriber import Transcriber
from voxlane.engine.models.hibari.model import Hibari

Sound = NDArray[np.float32]
TIME = np.arange(6 * RATE) / RATE
TASKS = Path("/proc/self/task")


def looks(samples: Sound) -> list[tuple[float, float]]:
    """Return the stretches to decode, in seconds."""
    listener = Transcriber(Voicing(), lambda token: True, max_samples=30 * RATE, partials=False)
    listener.hear(samples)
    listener.end()
    found = []
    while look := listener.next_look():
        found.append((look.start / RATE, look.end / RATE))
        listener.decoded(look, [], [])
    return found


def tone(hertz: float, harmonics: int = 1) -> NDArray[np.float64]:
    return sum((np.sin(2 * np.pi * hertz * k * TIME) / k for k in range(1, harmonics + 1)), np.zeros(len(TIME)))


def chance() -> np.random.Generator:
    return np.random.default_rng(0)


def pink() -> NDArray[np.float64]:
    spectrum = np.fft.rfft(chance().standard_normal(len(TIME)))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    sound = np.fft.irfft(spectrum, len(TIME))
    return sound / np.abs(sound).max()


def music() -> NDArray[np.float64]:
    """Return chords that change every half second and die away."""
    steps = [(0, 4, 7), (5, 9, 12), (7, 11, 14), (0, 4, 7)] * 3
    sound = np.zeros(len(TIME))
    for index, chord in enumerate(steps):
        part = (index / 2 <= TIME) & ((index + 1) / 2 > TIME)
        sound[part] = sum(tone(261.6 * 2 ** (note / 12), 4)[part] for note in chord) * np.exp(-4 * (TIME[part] % 0.5))
    return sound / np.abs(sound).max()


def keys() -> NDArray[np.float64]:
    return (tone(770) + tone(1336)) / 2 * (TIME % 0.45 < 0.2)


def clicks() -> NDArray[np.float64]:
    return chance().standard_normal(len(TIME)) * np.exp(-(TIME % 0.3) * 400)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(len(TIME)),
        lambda: chance().integers(-1, 2, len(TIME)) / 32768,
        lambda: chance().standard_normal(len(TIME)) * 0.1,
        lambda: pink() * 0.5,
        lambda: tone(50, 3) * 0.3,
        lambda: music() * 0.5,
        lambda: keys() * 0.7,
        lambda: clicks() * 0.3,
    ],
    ids=["silence", "dither", "white", "pink", "hum", "music", "keys", "clicks"],
)
def test_what_is_not_speech_is_not_looked_at(make: Callable[[], NDArray[np.float64]]) -> None:
    assert looks(make().astype(np.float32)) == []


@pytest.fixture(scope="module")
def speech() -> Sound:
    """Half a second of silence, a sentence, and a second of silence."""
    hibari = Hibari()
    said = hibari.synthesise(hibari.prepare("I would like to book a table for two, please.")).samples
    samples = functional.resample(torch.tensor(said, dtype=torch.float32), hibari.sample_rate, RATE).numpy()
    return np.concatenate([np.zeros(RATE // 2, np.float32), samples, np.zeros(RATE, np.float32)])


def test_speech_is_found_also_if_soft_or_in_noise(speech: Sound) -> None:
    ((start, end),) = looks(speech)
    assert 0.2 < start < 0.6
    assert len(speech) / RATE - 1.2 < end < len(speech) / RATE - 0.4
    noise = torch.from_numpy(chance().standard_normal(len(speech)).astype(np.float32))
    noisy = functional.add_noise(torch.from_numpy(speech), noise, snr=torch.tensor(10.0)).numpy()
    for changed in (speech * np.float32(10**-1.5), noisy):
        ((soft_start, soft_end),) = looks(changed)
        assert (soft_start, soft_end) == pytest.approx((start, end), abs=0.25)


@settings(deadline=None, max_examples=10)
@given(sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=5))
def test_any_chunking_gives_the_same_probabilities(speech: Sound, sizes: list[int]) -> None:
    part = speech[: RATE + 100]
    wanted = Voicing()(part)
    assert len(wanted) == len(part) // FRAME_SAMPLES
    assert max(wanted) > 0.9
    voicing, found, at, turn = Voicing(), list[float](), 0, 0
    while at < len(part):
        found += voicing(part[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    assert found == wanted


@pytest.mark.skipif(not TASKS.is_dir(), reason="counts threads as Linux shows them")
def test_it_stays_on_the_callers_thread() -> None:
    before = len(list(TASKS.iterdir()))
    Voicing()(np.zeros(RATE, np.float32))
    assert len(list(TASKS.iterdir())) == before

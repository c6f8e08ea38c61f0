"""Kokoro on its real weights: samples, word times, voices. Clauses are short: it is slow on two cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voxlane.engine.errors import WeightsError
from voxlane.engine.models.kokoro import MAX_PHONEMES, MODEL_FILE, VOICES, VOICES_FILE, Kokoro
from voxlane.engine.models.synthesis import ClauseTooLong, Synthesiser, SynthesisError
from voxlane.engine.weights.catalog import load_catalog
from voxlane.engine.weights.store import resolve

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("kokoro-82m")


@pytest.fixture(scope="module")
def kokoro(folder: Path) -> Kokoro:
    return Kokoro(folder, threads=2)


def test_the_catalog_holds_its_files() -> None:
    assert [file.name for file in load_catalog()["kokoro-82m"].files] == [MODEL_FILE, VOICES_FILE]
    assert len(VOICES) == 54
    assert list(VOICES) == sorted(VOICES)  # the order in which the voices' tables are joined


def test_a_clause(kokoro: Kokoro) -> None:
    voice: Synthesiser = kokoro
    text = "Good morning, Anna!"
    prepared = voice.prepare(text)
    speech = voice.synthesise(prepared, seed=1)
    assert [text[word.source_start : word.source_end] for word in speech.words] == text.split()
    edges = [edge for word in speech.words for edge in (word.start_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert edges[-1] <= len(speech.samples) < 3 * voice.sample_rate
    assert 0.05 < np.abs(speech.samples).max() <= 1.0
    inside = np.concatenate([speech.samples[word.start_sample : word.end_sample] for word in speech.words])
    pause = speech.samples[speech.words[-1].end_sample :]
    assert np.square(inside).mean() > 100 * np.square(pause).mean()
    np.testing.assert_array_equal(voice.synthesise(prepared, seed=2).samples, speech.samples)
    assert len(voice.synthesise(prepared, speed=2.0).samples) < 0.7 * len(speech.samples)


def test_voices_differ(kokoro: Kokoro) -> None:
    prepared = kokoro.prepare("Yes.")
    female, male = (kokoro.synthesise(prepared, voice=voice).samples for voice in ("af_heart", "am_adam"))
    assert not np.array_equal(female[:2000], male[:2000])
    with pytest.raises(SynthesisError, match="there is no voice 'heart'"):
        kokoro.synthesise(prepared, voice="heart")
    with pytest.raises(SynthesisError, match="there is no voice"):
        kokoro.prepare("Yes.", voice="heart")
    assert kokoro.prepare("A tomato.", voice="bm_george").ids != kokoro.prepare("A tomato.").ids


def test_limits(kokoro: Kokoro) -> None:
    with pytest.raises(ClauseTooLong, match=f"{MAX_PHONEMES} at most"):
        kokoro.prepare("the river and " * 60)
    with pytest.raises(SynthesisError, match="speed must be"):
        kokoro.synthesise(kokoro.prepare("Yes."), speed=3.0)
    assert len(kokoro.synthesise(kokoro.prepare("😀")).samples) == 0


def test_missing_and_damaged_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"voices\.bin: must hold 54 voices"):
        Kokoro(tmp_path)
    (tmp_path / VOICES_FILE).symlink_to(folder / VOICES_FILE)
    with pytest.raises(WeightsError, match="there is no such file"):
        Kokoro(tmp_path)
    (tmp_path / MODEL_FILE).write_bytes(b"no model")
    with pytest.raises(WeightsError, match="not a model that can be run"):
        Kokoro(tmp_path)

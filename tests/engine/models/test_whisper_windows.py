"""Whisper's short windows: how long they are, what follows them, and that they change no words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from speech_clips import clip, decode
from transformers import WhisperConfig as ReferenceConfig
from transformers import WhisperForConditionalGeneration

from voxlane.engine.audio.mel import HOP, WINDOW_SAMPLES, log_mel
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import MARGIN_SAMPLES, QUIET_EVERY, STATES, Whisper, quiet_places
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.safetensors import SafetensorsDirectory
from voxlane.engine.weights.store import resolve

REAL = [("beckett", 0, 10), ("clone-test", 0, 5), ("two_cities", 0, 6), ("two_cities", 20, 26), ("two_cities", 0, 1)]
"""Parts of recordings in seconds. After a window of 6 s alone, the third is heard again and again."""


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(6)
    config = ReferenceConfig(
        vocab_size=51_865,
        d_model=32,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_target_positions=64,
        init_std=0.3,
    )
    path = tmp_path_factory.mktemp("whisper")
    WhisperForConditionalGeneration(config).save_pretrained(path)
    return path


def load(folder: Path) -> Whisper:
    names = [""] * 51_865
    names[50_259] = "<|en|>"
    return Whisper.load(SafetensorsDirectory(folder), Spelling([b""] * len(names), names), "float32")


@pytest.fixture(scope="module")
def short(folder: Path) -> Whisper:
    model = load(folder)
    model.use_short_windows()
    return model


@settings(max_examples=examples(200), deadline=None)
@given(samples=st.integers(0, WINDOW_SAMPLES))
def test_a_window_holds_the_clip_and_its_margin_or_thirty_seconds(short: Whisper, samples: int) -> None:
    window = short.window(samples)
    assert window == STATES or window * 2 * HOP >= samples + MARGIN_SAMPLES
    assert window <= short.states(samples) <= STATES
    if samples > 2 * WINDOW_SAMPLES // 30:
        assert short.states(samples) - window == -(-(STATES - window) // QUIET_EVERY)
    elif samples < WINDOW_SAMPLES // 30:
        assert short.states(samples) == STATES  # a brief clip is followed by all of the silence


def test_a_short_window_is_followed_by_the_states_of_silence(folder: Path, short: Whisper) -> None:
    full, clips = load(folder), [noise(3_000), noise(70_000, 1)]
    with torch.inference_mode():
        encoded, silence = short.encode(clips), full.encode([torch.zeros(0)]).states
        reference = WhisperForConditionalGeneration.from_pretrained(folder).model.encoder.eval()
        assert full.states(3_000) == full.window(3_000) == len(silence) == STATES
        assert encoded.lengths == [short.states(len(one)) for one in clips]
        for one, states in zip(clips, encoded.states.split(encoded.lengths), strict=True):
            window = short.window(len(one))
            # The reference takes no shorter spectrogram: run its layers over the rows that it would make of one.
            mels = log_mel(one, 80, 2 * window).T[None]
            rows = torch.nn.functional.gelu(reference.conv2(torch.nn.functional.gelu(reference.conv1(mels))))
            rows = rows.transpose(1, 2) + reference.embed_positions.weight[:window]
            for layer in reference.layers:
                found = layer(rows, None)
                rows = found[0] if isinstance(found, tuple) else found
            torch.testing.assert_close(states[:window], reference.layer_norm(rows)[0], rtol=1e-3, atol=2e-3)
            rest = quiet_places(window)
            torch.testing.assert_close(states[window:], silence[rest.start : rest.stop : rest.step])


def test_a_clip_of_thirty_seconds_is_encoded_as_ever(folder: Path, short: Whisper) -> None:
    long = noise(WINDOW_SAMPLES)
    with torch.inference_mode():
        torch.testing.assert_close(short.encode([long]).states, load(folder).encode([long]).states)


@pytest.mark.weights
@pytest.mark.parametrize(("name", "start", "end"), REAL)
def test_short_windows_hear_the_same_words(real: tuple[Whisper, Whisper], name: str, start: int, end: int) -> None:
    heard = clip(resolve("speech-samples") / f"{name}.wav", start, end)
    with torch.inference_mode():
        full, short = (model.text_of(decode(model, heard, (), 80)[0]).strip() for model in real)
    assert plain(short) == plain(full)


@pytest.fixture(scope="module")
def real() -> tuple[Whisper, Whisper]:
    models = [load_recogniser(open_weights(resolve("whisper-tiny-en"))) for _ in range(2)]
    full, short = models
    assert isinstance(full, Whisper)
    assert isinstance(short, Whisper)
    short.use_short_windows()
    return full, short


def plain(text: str) -> list[str]:
    """Return the words without case and punctuation."""
    return "".join(letter for letter in text.lower() if letter.isalpha() or letter.isspace()).split()

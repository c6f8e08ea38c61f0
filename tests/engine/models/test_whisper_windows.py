"""Whisper's short windows: how long they are, what follows them, and that they change no words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lazily import transformers
from speech_clips import PagedClips, clip, decode

from voxlane.engine.audio.mel import HOP, WINDOW_SAMPLES, log_mel
from voxlane.engine.models.recognition import Encoded
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import MARGIN_SAMPLES, QUIET_EVERY, STATES, Whisper
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.safetensors import SafetensorsDirectory
from voxlane.engine.weights.store import resolve

REAL = [("beckett", 0, 10), ("clone-test", 0, 5), ("two_cities", 0, 6), ("two_cities", 20, 26), ("two_cities", 0, 1)]
"""Parts of recordings in seconds. After a window of 6 s alone, the third is heard again and again."""


def noise(samples: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(seed))


def load(folder: Path, kind: type[Whisper] = Whisper) -> Whisper:
    names = [""] * 51_865
    names[50_259] = "<|en|>"
    return kind.load(SafetensorsDirectory(folder), Spelling([b""] * len(names), names), "float32")


@pytest.fixture(scope="module")
def short(random_whisper: Path) -> Whisper:
    model = load(random_whisper)
    model.use_short_windows()
    return model


@settings(max_examples=examples(200), deadline=None)
@given(samples=st.integers(0, WINDOW_SAMPLES))
def test_a_window_holds_the_clip_and_its_margin_or_thirty_seconds(short: Whisper, samples: int) -> None:
    window = short.window(samples)
    assert window == STATES or window * 2 * HOP >= samples + MARGIN_SAMPLES
    assert window <= short.states(samples) <= STATES
    assert short.states(samples) - window == -(-(STATES - window) // QUIET_EVERY)


def test_a_short_window_is_followed_by_the_states_of_silence(random_whisper: Path, short: Whisper) -> None:
    full, clips = load(random_whisper), [noise(3_000), noise(70_000, 1)]
    with torch.inference_mode():
        encoded, silence = short.encode(clips), full.encode([torch.zeros(0)]).states
        reference = transformers.WhisperForConditionalGeneration.from_pretrained(random_whisper).model.encoder.eval()
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
            torch.testing.assert_close(states[window:], silence[window:STATES:QUIET_EVERY])


def test_a_clip_of_thirty_seconds_is_encoded_as_ever(random_whisper: Path, short: Whisper) -> None:
    long = noise(WINDOW_SAMPLES)
    with torch.inference_mode():
        torch.testing.assert_close(short.encode([long]).states, load(random_whisper).encode([long]).states)


def test_a_clip_with_its_silence_is_encoded_as_in_a_full_window(random_whisper: Path, short: Whisper) -> None:
    sound = noise(40_000, 2)
    padded = torch.nn.functional.pad(sound, (0, WINDOW_SAMPLES - len(sound)))
    assert short.window(len(padded)) == short.states(len(padded)) == STATES
    with torch.inference_mode():
        torch.testing.assert_close(short.encode([padded]).states, load(random_whisper).encode([sound]).states)


def test_thinned_silence_has_the_weight_of_all_of_it(random_whisper: Path, short: Whisper) -> None:
    class Dense(Whisper):
        """Has all states of the silence."""

        def states(self, samples: int) -> int:
            return STATES

        def encode(self, clips: Sequence[torch.Tensor]) -> Encoded:
            (window,) = (self.window(len(one)) for one in clips)
            found = short.encode(clips).states
            rest = found[window:].repeat_interleave(QUIET_EVERY, dim=0)[: STATES - window]
            return Encoded(torch.cat([found[:window], rest]), [STATES])

    dense = load(random_whisper, Dense)
    dense.use_short_windows()
    dense.thinned = 1
    sound, tokens = noise(WINDOW_SAMPLES // 10, 3), [50_258, 50_259, 50_359, 50_363, 5, 6, 7]
    assert (STATES - short.window(len(sound))) % QUIET_EVERY == 0
    (wanted,), (found,) = (PagedClips(model, [sound]).feed({0: tokens}) for model in (dense, short))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.soak
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

"""Whisper against transformers: the spectrogram, the real tiny.en, and small random checkpoints, in float32."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lazily import transformers
from speech_clips import PagedClips, clip
from torch import Tensor

from voxlane.engine.audio.mel import FRAMES, WINDOW_SAMPLES, log_mel, window_mels
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.encoder_decoder import log_probabilities
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.models.whisper import STATES, Whisper, WhisperConfig, WhisperTokens
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.importers.ctranslate2 import CTranslate2Directory
from voxlane.engine.weights.safetensors import SafetensorsDirectory
from voxlane.engine.weights.store import resolve


def noise(samples: int, seed: int = 0) -> Tensor:
    """Return noise that grows louder and a tone that rises."""
    time = torch.arange(samples) / 16_000
    hiss = torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * torch.linspace(0.001, 0.2, samples)
    return hiss + 0.3 * torch.sin(2 * np.pi * (200 + 300 * time) * time)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("samples", [0, 1, 3_000, 48_000, WINDOW_SAMPLES - 399, WINDOW_SAMPLES - 100, WINDOW_SAMPLES])
def test_the_spectrogram_equals_the_reference(bins: int, samples: int) -> None:
    sound = noise(samples)
    found = log_mel(sound, bins)
    assert found.shape == (FRAMES, bins)
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    padded = torch.nn.functional.pad(sound, (0, WINDOW_SAMPLES - samples)).numpy()
    wanted = torch.tensor(extractor(padded, sampling_rate=16_000, do_normalize=False).input_features[0]).T
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-4)


def test_windows_computed_together_are_those_computed_alone() -> None:
    sounds = [noise(0), noise(3_000), noise(48_000), noise(WINDOW_SAMPLES - 100), noise(WINDOW_SAMPLES)]
    windows = torch.stack([torch.nn.functional.pad(sound, (0, WINDOW_SAMPLES - len(sound))) for sound in sounds])
    for sound, found in zip(sounds, window_mels(windows, 80), strict=True):
        torch.testing.assert_close(found, log_mel(sound, 80), rtol=0, atol=1e-5)


def test_only_one_window_has_a_spectrogram() -> None:
    with pytest.raises(ValueError, match="480000"):
        log_mel(torch.zeros(WINDOW_SAMPLES + 1), 80)


@pytest.mark.parametrize(
    ("vocabulary", "start", "no_speech", "no_timestamps", "first_time"),
    [
        (51_864, 50_257, 50_361, 50_362, 50_363),
        (51_865, 50_258, 50_362, 50_363, 50_364),
        (51_866, 50_258, 50_363, 50_364, 50_365),
    ],
)
def test_control_tokens_of_every_vocabulary(
    vocabulary: int, start: int, no_speech: int, no_timestamps: int, first_time: int
) -> None:
    tokens = WhisperTokens.of(vocabulary)
    assert (tokens.start, tokens.no_speech, tokens.no_timestamps) == (start, no_speech, no_timestamps)
    assert tokens.timestamps == range(first_time, vocabulary)
    assert tokens.prompt() == [start, no_timestamps]
    assert tokens.prompt(language=start + 1, translate=True, timestamps=True) == [start, start + 1, tokens.translate]


def test_no_whisper_vocabulary() -> None:
    with pytest.raises(ModelConfigError, match="vocab_size"):
        WhisperTokens.of(50_000)


# ---- the real tiny.en


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve("whisper-tiny-en")


@pytest.fixture(scope="module")
def weights(directory: Path) -> CTranslate2Directory:
    weights = open_weights(directory)
    assert isinstance(weights, CTranslate2Directory)
    return weights


def load(weights: CTranslate2Directory, mode: Mode) -> Whisper:
    model = load_recogniser(weights, mode)
    assert isinstance(model, Whisper)
    return model


@pytest.fixture(scope="module")
def model(weights: CTranslate2Directory) -> Whisper:
    return load(weights, "float32")


@pytest.fixture(scope="module")
def samples() -> Path:
    return resolve("speech-samples")


def reference_model(weights: CTranslate2Directory) -> Any:
    keys = ("vocab_size", "d_model", "num_mel_bins", "max_source_positions", "max_target_positions")
    sides = [f"{side}_{key}" for side in ("encoder", "decoder") for key in ("layers", "attention_heads", "ffn_dim")]
    config = transformers.WhisperConfig(**{key: weights.config[key] for key in (*keys, *sides)})
    reference = transformers.WhisperForConditionalGeneration(config)
    tensors = {name: weights.tensor(name).to(torch.float32) for name in weights.names()}
    missing = reference.load_state_dict(tensors, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["proj_out.weight"], [])
    reference.tie_weights()
    return reference.eval()


def reference_greedy(reference: Any, model: Whisper, states: Tensor) -> list[int]:
    tokens, past, outputs = torch.tensor([model.tokens.prompt()]), None, []
    encoded = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
    while len(outputs) < 100:
        out = reference(encoder_outputs=encoded, decoder_input_ids=tokens, past_key_values=past, use_cache=True)
        logits = out.logits[:, -1]
        logits[:, list(model.config.suppressed)] = -torch.inf
        if not outputs:
            logits[:, list(model.config.suppressed_first)] = -torch.inf
        past, tokens = out.past_key_values, logits.argmax(dim=-1, keepdim=True)
        if tokens.item() == model.tokens.end:
            break
        outputs.append(int(tokens))
    return outputs


@pytest.mark.weights
def test_states_and_tokens_equal_the_reference(model: Whisper, weights: CTranslate2Directory, samples: Path) -> None:
    reference = reference_model(weights)
    clips = [clip(samples / "beckett.wav"), clip(samples / "clone-test.wav")]
    batch = PagedClips(model, clips, block_tokens=64)
    with torch.inference_mode():
        spectrograms = torch.stack([log_mel(one, 80).T for one in clips])
        states = reference.model.encoder(spectrograms).last_hidden_state
        wanted = [reference_greedy(reference, model, states[index : index + 1]) for index in range(len(clips))]
    torch.testing.assert_close(batch.encoded.states.view(2, STATES, -1), states, rtol=1e-3, atol=2e-3)
    assert sum(map(len, wanted)) > 25
    assert batch.greedy() == wanted


@pytest.mark.weights
def test_packed_weights_hear_the_words_their_times_and_the_silence(
    weights: CTranslate2Directory, samples: Path
) -> None:
    packed = load(weights, "packed")
    heard = clip(samples / "beckett.wav")
    batch = PagedClips(packed, [heard, torch.zeros(32_000)], torch.bfloat16, block_tokens=64)
    prompt = packed.prompt_tokens("")
    assert (prompt, packed.languages) == ([packed.tokens.start, packed.tokens.no_timestamps], ("en",))
    start = torch.stack([rows[0] for rows in batch.feed({0: prompt[:1], 1: prompt[:1]})])
    speech, silence = packed.no_speech(start)
    assert speech < 0.3 < 0.5 < silence
    batch.rewind()
    tokens = batch.greedy(limit=40)[0]
    assert packed.text_of(tokens).strip() == "Ever tried, ever failed. No matter, try again. Fail again. Fail better."
    words = packed.words_of(tokens, batch.cross_weights(0, [*prompt, *tokens]), len(heard))
    starts = {index: words[index][1] for index in (1, 2, 4, 6, 8, 10)}
    assert starts == pytest.approx({1: 0.70, 2: 1.96, 4: 3.60, 6: 4.94, 8: 6.70, 10: 8.18}, abs=0.15)


# ---- small random checkpoints


def test_a_random_checkpoint_equals_the_reference(random_whisper: Path) -> None:
    reference = transformers.WhisperForConditionalGeneration.from_pretrained(random_whisper).eval()
    model = load_random(random_whisper, "float32")
    assert model.alignment_heads == ((1, 0), (2, 1))
    assert model.config.suppressed == (7,)
    assert model.config.multilingual
    sound, tokens = noise(30_000), [50_258, 50_259, 50_359, 50_363, 11, 40_000, 3]
    with torch.inference_mode():
        wanted = reference(log_mel(sound, 80).T[None], decoder_input_ids=torch.tensor([tokens])).logits[0]
        batch = PagedClips(model, [sound, noise(20_000, 1)], block_tokens=32)
        rows = [batch.feed({0: tokens[:4], 1: tokens[:2]})[0], batch.feed({1: tokens[2:], 0: tokens[4:]})[1]]
        found = model.logits(torch.cat(rows))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    chosen = wanted.argmax(dim=-1)
    logprobs = log_probabilities(found, chosen)
    torch.testing.assert_close(logprobs, wanted.log_softmax(-1).max(dim=-1).values, rtol=1e-3, atol=1e-3)


def load_random(path: Path, mode: Mode) -> Whisper:
    """Return the model with the names its language tokens have; none of its tokens spells anything."""
    names = [""] * 51_865
    names[50_259:50_358] = [f"<|{a}{b}|>" for a in "abcdefghij" for b in "klmnopqrst"][:99]
    return Whisper.load(SafetensorsDirectory(path), Spelling([b""] * len(names), names), mode)


def test_what_must_not_be_written_cannot_be_chosen(random_whisper: Path) -> None:
    model = load_random(random_whisper, "packed")
    assert model.config.suppressed_first
    never_first = list(model.config.suppressed_first)
    logits = model.restrict(torch.zeros(3, model.vocab_size), [True, False, True], [False, False, True]).isfinite()
    first, later, language = logits
    assert not first[7]
    assert not later[7]
    assert not first[never_first].any()
    assert later[never_first].all()
    assert not logits[:2, model.tokens.start :].any()
    assert later.sum() == model.tokens.start - 1
    assert language.nonzero()[:, 0].tolist() == list(model.tokens.languages)


def test_a_language_is_given_or_detected(random_whisper: Path) -> None:
    model = load_random(random_whisper, "packed")
    assert len(model.languages) == 99
    assert model.detects_language
    start, second = model.tokens.start, model.tokens.languages[1]
    after = [model.tokens.transcribe, model.tokens.no_timestamps]
    assert model.languages[1] == "al"
    assert model.prompt_tokens("al") == [start, second, *after]
    assert model.prompt_tokens("") == [start]
    assert (model.language_of(second), model.after_language(second)) == ("al", after)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("d_model", 30),
        ("encoder_attention_heads", 4),
        ("activation_function", "relu"),
        ("scale_embedding", True),
        ("max_source_positions", 100),
        ("suppress_tokens", ["a"]),
        ("alignment_heads", [[9, 0]]),
    ],
)
def test_a_configuration_we_cannot_run_is_refused_by_name(random_whisper: Path, key: str, value: object) -> None:
    config = json.loads((random_whisper / "config.json").read_text())
    with pytest.raises(ModelConfigError, match=key):
        WhisperConfig.from_dict({**config, key: value})


def test_a_model_translates_unless_its_decoder_was_cut_down(random_whisper: Path) -> None:
    model = load_random(random_whisper, "packed")
    config = model.config
    assert config.translates is (config.encoder_layers == config.decoder_layers)
    whole = dataclasses.replace(config, decoder_layers=config.encoder_layers)
    assert whole.translates
    assert not dataclasses.replace(whole, decoder_layers=config.encoder_layers + 1).translates
    assert not dataclasses.replace(whole, vocab_size=51_864).translates
    assert model.tasks == ((model.tokens.transcribe, model.tokens.translate) if config.translates else None)

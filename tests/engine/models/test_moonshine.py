"""Moonshine against transformers, on the real weights and on a small random checkpoint, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lazily import transformers
from speech_clips import PagedClips, clip
from torch import Tensor

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.kernels import native
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.moonshine import MAX_SAMPLES, MIN_SAMPLES, Moonshine, MoonshineConfig
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.importers.ort import MoonshineDirectory
from voxlane.engine.weights.safetensors import SafetensorsDirectory
from voxlane.engine.weights.store import resolve

BECKETT = "Ever tried, ever failed, no matter, try again, fail again, fail better."


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve("moonshine-tiny-en")


@pytest.fixture(scope="module")
def weights(directory: Path) -> MoonshineDirectory:
    weights = open_weights(directory)
    assert isinstance(weights, MoonshineDirectory)
    return weights


def load(weights: MoonshineDirectory, mode: Mode) -> Moonshine:
    model = load_recogniser(weights, mode)
    assert isinstance(model, Moonshine)
    return model


@pytest.fixture(scope="module")
def model(weights: MoonshineDirectory) -> Moonshine:
    return load(weights, "float32")


@pytest.fixture(scope="module")
def packed(weights: MoonshineDirectory) -> Moonshine:
    return load(weights, "packed")


@pytest.fixture(scope="module")
def reference(weights: MoonshineDirectory) -> Any:
    # The file quantises the embedding and the head apart from each other, so they are not tied.
    config = transformers.MoonshineConfig(max_position_embeddings=194, tie_word_embeddings=False)
    model = transformers.MoonshineForConditionalGeneration(config)
    model.load_state_dict({name: weights.tensor(name) for name in weights.names()}, strict=True)
    return model.eval()


@pytest.fixture(scope="module")
def clips() -> list[Tensor]:
    samples = resolve("speech-samples")
    return [
        clip(samples / "beckett.wav"),
        clip(samples / "clone-test.wav"),
        clip(samples / "two_cities.wav", 0, 10),
        clip(samples / "two_cities.wav", 10, 14),
        clip(samples / "endgame_nagg_nell.wav", 2, 8),
        clip(samples / "beckett.wav", 0, 0.7),
    ]


def reference_greedy(model: Any, samples: Tensor) -> list[int]:
    with torch.inference_mode():
        tokens = model.generate(samples[None], do_sample=False, num_beams=1, max_new_tokens=190)[0].tolist()
    return [token for token in tokens if token not in (1, 2)]


@pytest.mark.soak
@pytest.mark.weights
def test_encoder_states_equal_the_reference(model: Moonshine, reference: Any, clips: list[Tensor]) -> None:
    with torch.inference_mode():
        wanted = reference.model.encoder(clips[1][None]).last_hidden_state[0]
        found = model.encode([clips[1]]).states
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.soak
@pytest.mark.weights
def test_tokens_equal_the_reference(model: Moonshine, reference: Any, clips: list[Tensor]) -> None:
    wanted = [reference_greedy(reference, samples) for samples in clips]
    assert sum(map(len, wanted)) > 80
    assert PagedClips(model, clips).greedy() == wanted


@pytest.mark.soak
@pytest.mark.weights
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_packed_weights_and_narrow_pages_hear_the_same_words(
    packed: Moonshine, clips: list[Tensor], dtype: torch.dtype
) -> None:
    heard = [packed.text_of(tokens).strip() for tokens in PagedClips(packed, clips[:2], dtype).greedy()]
    assert heard[0] == BECKETT
    assert heard[1] == "I do. I think that America could do it very well."


# What a person reads off the waveform, to a tenth of a second; the model's own states are 24 ms apart.
@pytest.mark.soak
@pytest.mark.weights
def test_word_times_follow_the_sound(packed: Moonshine, clips: list[Tensor]) -> None:
    batch = PagedClips(packed, clips[:1])
    tokens = batch.greedy()[0]
    weights = batch.cross_weights(0, [*packed.prompt_tokens(""), *tokens])
    assert weights.shape == (len(packed.alignment_heads), len(tokens) + 1, batch.encoded.lengths[0])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
    words = packed.words_of(tokens, weights, len(clips[0]))
    assert " ".join(text for text, _, _ in words) == BECKETT
    starts = [start_s for _, start_s, _ in words]
    assert starts == sorted(starts)
    assert words[-1][2] <= len(clips[0]) / 16_000
    assert packed.words_of([], weights[:, :1], len(clips[0])) == []
    wanted = {1: 0.70, 2: 1.96, 4: 3.60, 6: 4.94, 8: 6.70, 10: 8.18}  # tried, ever, no, try, fail, fail
    assert {index: starts[index] for index in wanted} == pytest.approx(wanted, abs=0.2)


@pytest.mark.soak
@pytest.mark.weights
def test_tokens_spell_text_that_can_be_cut_where_words_begin(packed: Moonshine, clips: list[Tensor]) -> None:
    tokens = PagedClips(packed, clips[:1]).greedy()[0]
    whole = packed.text_of(tokens)
    assert whole == f" {BECKETT}"
    starts = [at for at, token in enumerate(tokens) if packed.starts_word(token)]
    assert len(starts) == len(BECKETT.split())
    assert all(packed.text_of(tokens[:at]) + packed.text_of(tokens[at:]) == whole for at in starts)
    assert (packed.languages, packed.detects_language, packed.eos_ids) == (("en",), False, {2})
    assert packed.text_of([1, 2]) == ""


@pytest.fixture(scope="module")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = transformers.MoonshineConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, encoder_num_hidden_layers=2, decoder_num_hidden_layers=3,
        encoder_num_attention_heads=2, decoder_num_attention_heads=2, initializer_range=0.3,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("moonshine")
    transformers.MoonshineForConditionalGeneration(config).save_pretrained(path)
    return path


def noise(samples: int, seed: int = 1) -> Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.1


def load_random(path: Path, mode: Mode) -> Moonshine:
    return Moonshine.load(SafetensorsDirectory(path), Spelling([b""] * 97, [""] * 97), mode)


def test_the_shortest_and_longest_clips(random_checkpoint: Path) -> None:
    packed = load_random(random_checkpoint, "packed")
    assert packed.states(0) == packed.states(MIN_SAMPLES) == 1
    assert packed.states(MIN_SAMPLES + packed.samples_per_state) == 2
    assert packed.encode([torch.zeros(0), torch.zeros(100)]).lengths == [1, 1]
    with pytest.raises(ValueError, match="samples"):
        packed.encode([torch.zeros(MAX_SAMPLES + 1)])
    with pytest.raises(ValueError, match="clips"):
        packed.encode([])


def test_a_clip_is_heard_the_same_alone_and_among_others(random_checkpoint: Path) -> None:
    model, clips = load_random(random_checkpoint, "packed"), [noise(9_000), noise(700, 2), noise(30_000, 3)]
    together = PagedClips(model, clips)
    texts = together.greedy(limit=20)
    states = together.encoded.states.split(together.encoded.lengths)
    for samples, tokens, rows in zip(clips, texts, states, strict=True):
        alone = PagedClips(model, [samples], block_tokens=16)
        assert alone.greedy(limit=20) == [tokens]
        if native.load() is not None:
            assert torch.equal(alone.encoded.states, rows)
        torch.testing.assert_close(alone.encoded.states, rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["float32", "packed"])
def test_a_random_checkpoint_equals_the_reference(random_checkpoint: Path, mode: Mode) -> None:
    reference = transformers.MoonshineForConditionalGeneration.from_pretrained(random_checkpoint).eval()
    model = load_random(random_checkpoint, mode)
    samples, tokens = noise(9_000), [1, 5, 96, 40, 2, 7]
    with torch.inference_mode():
        wanted = reference(samples[None], decoder_input_ids=torch.tensor([tokens])).logits[0]
        batch = PagedClips(model, [samples])
        found = model.logits(torch.cat([*batch.feed({0: tokens[:4]}), *batch.feed({0: tokens[4:]})]))
    error = float((found - wanted).square().mean().sqrt() / wanted.std())
    assert error < (0.15 if mode == "packed" else 1e-4)  # random weights forgive less than trained ones


def test_defaults_are_those_of_transformers() -> None:
    assert MoonshineConfig.from_dict({}) == MoonshineConfig.from_dict(transformers.MoonshineConfig().to_dict())


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("hidden_size", 30, "hidden_size"),
        ("decoder_num_key_value_heads", 2, "decoder_num_key_value_heads"),
        ("encoder_hidden_act", "relu", "encoder_hidden_act"),
        ("attention_bias", True, "attention_bias"),
        ("partial_rotary_factor", 1.5, "partial_rotary_factor"),
        ("rope_parameters", {"rope_type": "yarn"}, "rope_type"),
        ("vocab_size", -1, "vocab_size"),
    ],
)
def test_a_configuration_we_cannot_run_is_refused_by_name(key: str, value: object, named: str) -> None:
    with pytest.raises(ModelConfigError, match=named):
        MoonshineConfig.from_dict({key: value})

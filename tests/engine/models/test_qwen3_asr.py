"""Qwen3-ASR against transformers, on small random checkpoints in both published layouts, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lazily import transformers
from numpy.typing import NDArray
from qwen3_asr_cases import AUDIO, added_tokens, reference, write_authors, write_library

from voxlane.engine.api import SamplingParams
from voxlane.engine.errors import ModelConfigError, TensorError, WeightsError
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.qwen3_asr.config import Qwen3ASRConfig
from voxlane.engine.models.qwen3_asr.model import Qwen3ASR
from voxlane.engine.models.qwen3_asr.prompt import LANGUAGES
from voxlane.engine.models.registry import load_recogniser
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionOutcome, TranscriptionPayload, transcription_of
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import ClipStates, Request
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.files import open_weights

SIZES = [3_000, 16_000, 16_001, 23_456, 100_001]  # below the shortest, whole chunks, part of one, three windows
BLOCK_TOKENS = 8


def noise(samples: int, seed: int = 0) -> NDArray[np.float32]:
    """Return noise that grows louder."""
    hiss = np.random.default_rng(seed).normal(0, 1, samples) * np.linspace(0.001, 0.3, samples)
    return hiss.astype(np.float32)


def load(path: Path, mode: Mode = "float32") -> Qwen3ASR:
    model = load_recogniser(open_weights(path), mode)
    assert isinstance(model, Qwen3ASR)
    return model


@pytest.fixture(scope="module")
def peer() -> Any:
    return reference()


@pytest.fixture(scope="module")
def library(peer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_library(peer, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def authors(peer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_authors(peer, tmp_path_factory.mktemp("authors"))


@pytest.fixture(scope="module")
def model(library: Path) -> Qwen3ASR:
    return load(library)


def features(clip: NDArray[np.float32]) -> dict[str, torch.Tensor]:
    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=AUDIO["num_mel_bins"])
    found = extractor(clip, sampling_rate=16_000, padding=True, return_attention_mask=True)
    return {"input_features": found["input_features"], "input_features_mask": found["attention_mask"]}


class Hearing:
    """One request about one clip, run by hand."""

    def __init__(self, model: Qwen3ASR, clip: NDArray[np.float32], language: str, *, most: int = 12) -> None:
        self.model = model
        self.pool = BlockPool(64, BLOCK_TOKENS)
        cache = KVCache(model.spec.pages, 64, BLOCK_TOKENS, torch.float32)
        for pages in cache.pages:
            pages.k.fill_(torch.nan)
            pages.v.fill_(torch.nan)
        self.runner = Recogniser(model, cache)
        states = model.states(len(clip))
        prompt = model.prompt_tokens(language, states)
        self.request = Request(
            id="1", task="asr", tokens=list(prompt), prompt_tokens=len(prompt), table=BlockTable(self.pool),
            sampling=SamplingParams(logprobs=0, max_tokens=most), model="asr",
            payload=TranscriptionPayload(clip, detects_language=not language, wants_attention=True),
            clip=ClipStates(states, None),
        )  # fmt: skip

    def step(self, drafts: list[int] | None = None) -> TranscriptionOutcome:
        request, encode = self.request, self.request.unencoded
        start = request.table.length
        count = len(request.tokens) - start
        request.table.append(count + len(drafts or []))
        row = Row(request, start, count, drafts=drafts or [], encode=encode)
        outcome = self.runner.run(ModelBatch(rows=[row]))[0]
        assert not outcome.failed
        return outcome

    def greedy(self) -> list[int]:
        """Return the tokens up to the end or the most there may be."""
        while self.request.output_tokens < self.request.sampling.max_tokens:
            token = self.step().choices[0].token
            if token in self.model.eos_ids:
                break
            self.request.tokens.append(token)
        return self.request.tokens[self.request.prompt_tokens :]


# ---- parity


@pytest.mark.parametrize("samples", SIZES)
def test_rows_of_a_clip_equal_the_reference(peer: Any, model: Qwen3ASR, samples: int) -> None:
    clip = noise(samples)
    with torch.inference_mode():
        wanted = peer.model.get_audio_features(**features(clip)).pooler_output
        found = model.encode([torch.from_numpy(clip)])
    assert found.lengths == [model.states(samples)] == [len(wanted)]
    torch.testing.assert_close(found.states, wanted, rtol=0, atol=3e-5)


def test_both_layouts_and_clips_together_are_the_same_to_the_bit(model: Qwen3ASR, authors: Path) -> None:
    other = load(authors)
    clips = [torch.from_numpy(noise(samples, samples)) for samples in SIZES]
    with torch.inference_mode():
        together = other.encode(clips)
        for clip, rows in zip(clips, together.states.split(together.lengths), strict=True):
            assert torch.equal(rows, model.encode([clip]).states)


@pytest.mark.parametrize("language", ["en", "de"])
def test_prompts_and_their_logits_equal_the_reference(peer: Any, model: Qwen3ASR, library: Path, language: str) -> None:
    clip = noise(30_000)
    hearing = Hearing(model, clip, language)
    tokens = hearing.request.tokens
    frame = "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|audio_start|>{}<|audio_end|><|im_end|>\n"
    text = frame.format("<|audio_pad|>" * hearing.request.states) + "<|im_start|>assistant\n"
    theirs = transformers.Qwen2Tokenizer.from_pretrained(library)
    assert tokens == theirs(f"{text}language {LANGUAGES[language]}<asr_text>")["input_ids"]
    seen: list[torch.Tensor] = []
    hearing.runner._finish = lambda rows, hidden: seen.append(model.logits(hidden)) or [TranscriptionOutcome()]  # type: ignore[method-assign, func-returns-value]
    hearing.runner.run(ModelBatch(rows=[_whole(hearing.request)]))
    with torch.inference_mode():
        wanted = peer(input_ids=torch.tensor([tokens]), **features(clip)).logits[0]
    torch.testing.assert_close(seen[0], wanted, rtol=0, atol=2e-4)


def _whole(request: Request) -> Row:
    request.table.append(len(request.tokens))
    return Row(request, 0, len(request.tokens), encode=True)


@pytest.mark.parametrize("samples", [9_000, 40_000])
def test_greedy_words_equal_the_reference(peer: Any, model: Qwen3ASR, samples: int) -> None:
    clip = noise(samples, 5)
    hearing = Hearing(model, clip, "en", most=24)
    prompt = list(hearing.request.tokens)
    assert model.restrictions is not None
    never = [token for token, less in enumerate(model.restrictions[0].tolist()) if less]
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        wanted = peer.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), **features(clip), max_new_tokens=24, do_sample=False,
            suppress_tokens=never,
        )[0, len(prompt) :].tolist()  # fmt: skip
    wanted = wanted[: next((at for at, token in enumerate(wanted) if token in model.eos_ids), len(wanted))]
    assert hearing.greedy() == wanted
    assert len(set(wanted)) > 3


def test_an_untied_head_and_biases(tmp_path: Path) -> None:
    peer = reference(3, tie_word_embeddings=False, attention_bias=True)
    clip = noise(20_000)
    for path in (write_library(peer, tmp_path / "a"), write_authors(peer, tmp_path / "b")):
        model = load(path)
        hearing = Hearing(model, clip, "en")
        prompt = list(hearing.request.tokens)
        choice = hearing.step().choices[0]
        with torch.inference_mode():
            logits = peer(input_ids=torch.tensor([prompt]), **features(clip)).logits[0, -1]
        assert model.restrictions is not None
        wanted = (logits + model.restrictions[1]).log_softmax(dim=-1)
        assert choice.token == int(wanted.argmax())
        assert choice.logprob == pytest.approx(float(wanted.max()), abs=2e-4)


@pytest.mark.parametrize(
    "audio",
    [
        {"n_window": 51, "n_window_infer": 102, "num_mel_bins": 30},  # other chunks, each a window of its own
        {"n_window_infer": 800, "encoder_attention_heads": 4, "num_mel_bins": 128, "d_model": 48},
    ],
)
def test_other_chunks_windows_and_bins(tmp_path: Path, audio: dict[str, int]) -> None:
    peer = reference(4, audio)
    model = load(write_authors(peer, tmp_path))
    clip, frames = noise(70_000), audio.get("n_window", 50)
    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=audio["num_mel_bins"], n_window=frames)
    heard = extractor(clip, sampling_rate=16_000, padding=True, return_attention_mask=True)
    with torch.inference_mode():
        wanted = peer.model.get_audio_features(heard["input_features"], heard["attention_mask"]).pooler_output
        found = model.encode([torch.from_numpy(clip)]).states
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-5)


def test_packed_weights_hear_nearly_the_same(model: Qwen3ASR, library: Path) -> None:
    clip = [torch.from_numpy(noise(30_000))]
    with torch.inference_mode():
        wanted, found = model.encode(clip).states, load(library, "packed").encode(clip).states
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


# ---- looks


def test_drafts_that_hold_and_that_fail_change_nothing(model: Qwen3ASR) -> None:
    clip = noise(40_000, 5)
    wanted = Hearing(model, clip, "en", most=10).greedy()
    hearing = Hearing(model, clip, "en")
    right, wrong = wanted[:4], (wanted[4] + 1) % 200
    found = [choice.token for choice in hearing.step([*right, wrong, wanted[5]]).choices]
    assert found == wanted[:5]


def test_a_language_is_named_and_then_the_words_come(model: Qwen3ASR) -> None:
    clip = noise(30_000)
    hearing = Hearing(model, clip, "")
    token = hearing.step().choices[0].token
    language = model.language_of(token)
    assert language == "" or language in model.languages
    hearing.request.tokens += [token, *model.after_language(token)]
    hearing.request.prompt_tokens = len(hearing.request.tokens)
    transcription_of(hearing.request).detects_language = False
    if language:
        assert hearing.request.tokens == model.prompt_tokens(language, hearing.request.states)
        assert hearing.greedy() == Hearing(model, clip, language).greedy()


def test_words_have_times_where_the_decoder_looked(model: Qwen3ASR, monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = Hearing(model, noise(40_000, 5), "en")
    tokens = hearing.greedy()[:6]
    hearing.request.tokens = hearing.request.tokens[: hearing.request.prompt_tokens + 6]
    hearing.request.table.rewind(len(hearing.request.tokens) - 1)
    monkeypatch.setattr(model, "eos_ids", frozenset(range(model.vocab_size)))
    attention = hearing.step().attention
    assert attention.shape == (len(model.alignment_heads), 7, hearing.request.states)
    torch.testing.assert_close(attention.sum(dim=2), torch.ones(attention.shape[:2]))
    times = [time for _, start, end in model.words_of(tokens, attention, 40_000) for time in (start, end)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= 2.5


# ---- vocabularies and configurations


def test_two_files_of_pieces_are_what_the_reference_makes_of_them(library: Path, authors: Path) -> None:
    ours, theirs = Tokenizer.open(authors), transformers.Qwen2Tokenizer.from_pretrained(authors)
    for text in ("language English", "I'll say 1234 words,\n\n  né\u0301e 東京!", " None  \t<|im_end|>"):
        assert ours.encode(text) == Tokenizer.open(library).encode(text)
        if "<" not in text:  # people cannot type control tokens here
            assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.token_id("<asr_text>") == added_tokens()["<asr_text>"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"}, "tokenizer_class"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"added_tokens_decoder": None}, "added_tokens_decoder"),
        ("merges.txt", "one two three\n", "two pieces"),
    ],
)
def test_damaged_files_of_pieces_are_refused(
    authors: Path, tmp_path: Path, file: str, change: Any, message: str
) -> None:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((authors / name).read_bytes())
    if isinstance(change, str):
        (tmp_path / file).write_text(change)
    else:
        (tmp_path / file).write_text(json.dumps(json.loads((tmp_path / file).read_text()) | change))
    with pytest.raises(WeightsError, match=message):
        Tokenizer.open(tmp_path)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "quantization_config", {"bits": 4}),
        ("", "audio_token_id", 100_000),
        ("", "support_languages", ["English", 3]),
        ("", "mtp_num_hidden_layers", 5),
        ("thinker_config", "model_type", "qwen3_forced_aligner"),
        ("thinker_config", "classify_num", 5000),
        ("audio_config", "activation_function", "relu"),
        ("audio_config", "scale_embedding", True),
        ("audio_config", "d_model", 33),
        ("audio_config", "encoder_layers", 0),
        ("audio_config", "encoder_ffn_dim", 2.5),
        ("audio_config", "n_window", 100),
        ("audio_config", "n_window_infer", 250),
        ("audio_config", "max_source_positions", 12),
        ("audio_config", "max_position_embeddings", 12),
        ("audio_config", "output_dim", 65),
        ("audio_config", "num_mel_bins", 1 << 20),
        ("audio_config", "downsample_hidden_size", -1),
        ("text_config", "use_sliding_window", True),
        ("text_config", "num_key_value_heads", None),
        ("text_config", "num_key_value_heads", 3),
        ("text_config", "hidden_act", "relu"),
        ("rope_scaling", "mrope_section", [1, 2, 3]),
        ("rope_scaling", "interleaved", "yes"),
        ("rope_scaling", "rope_type", "longrope"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(authors: Path, section: str, key: str, value: object) -> None:
    config = json.loads((authors / "config.json").read_text())
    thinker = config["thinker_config"]
    place = {
        "": config if key != "audio_token_id" else thinker,
        "thinker_config": thinker,
        "audio_config": thinker["audio_config"],
        "text_config": thinker["text_config"],
        "rope_scaling": thinker["text_config"]["rope_scaling"],
    }[section]
    place[key] = value
    with pytest.raises(ModelConfigError, match=key if key != "rope_type" else "rope_scaling"):
        Qwen3ASRConfig.from_dict(config)


def test_a_tensor_too_many_or_too_few_is_named(
    peer: Any, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = open_weights(library)
    names = weights.names()
    monkeypatch.setattr(weights, "names", lambda: [*names, "model.audio_tower.extra"])
    with pytest.raises(TensorError, match=r"audio_tower\.extra"):
        load_recogniser(weights, "float32")
    monkeypatch.setattr(weights, "names", lambda: [name for name in names if "conv2d2.bias" not in name])
    with pytest.raises(TensorError, match=r"conv2d2\.bias"):
        load_recogniser(weights, "float32")


def test_a_vocabulary_without_the_prompts_words_is_refused(library: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).write_bytes((library / name).read_bytes())
    data = json.loads((library / "tokenizer.json").read_text())
    data["added_tokens"] = [entry for entry in data["added_tokens"] if entry["content"] != "<asr_text>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelConfigError, match="<asr_text>"):
        load(tmp_path)

"""Vocabularies of recognisers, and the door they come through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lazily import transformers

from voxlane.engine.audio.word_times import starts_word
from voxlane.engine.errors import ModelConfigError, WeightsError
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.registry import load_model, load_recogniser
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.weights.files import open_weights

PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁fail", "▁better", "er", "▁"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Moonshine as Hugging Face stores it, tokenizer and all, with more rows than its tokenizer has tokens."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("moonshine")
    config = transformers.MoonshineConfig(
        vocab_size=len(PIECES) + 5, hidden_size=64, intermediate_size=96, encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1, encoder_num_attention_heads=2, decoder_num_attention_heads=2,
    )  # fmt: skip
    transformers.MoonshineForConditionalGeneration(config).save_pretrained(path)
    controls = [{"id": index, "content": PIECES[index], "special": True} for index in range(3)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{**flags, **control} for control in controls],
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {piece: index for index, piece in enumerate(PIECES)},
            "merges": [],
        },
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def test_a_hugging_face_directory_is_a_recogniser(checkpoint: Path) -> None:
    model = load_recogniser(open_weights(checkpoint), "float32")
    assert isinstance(model, Moonshine)
    fail, better, er = (PIECES.index(piece) for piece in ("▁fail", "▁better", "er"))
    assert model.text_of([1, fail, better, er, 2, model.vocab_size - 1]) == " fail betterer"
    assert [model.starts_word(token) for token in (fail, er, 2)] == [True, False, False]
    assert model.prompt_tokens("en") == [1]
    assert model.no_speech(torch.zeros(2, 64)) == [0.0, 0.0]
    logits = torch.rand(2, model.vocab_size)
    assert model.restrict(logits.clone(), [True, False], [False, False]).equal(logits)


def test_half_a_character_is_left_out_until_it_is_whole(checkpoint: Path) -> None:
    model = load_recogniser(open_weights(checkpoint), "float32")
    first, second = (3 + byte for byte in "ö".encode())
    assert (model.text_of([first]), model.text_of([first, second])) == ("", "ö")


def test_a_recogniser_is_no_chat_model(checkpoint: Path) -> None:
    with pytest.raises(ModelConfigError, match="Moonshine"):
        load_model(open_weights(checkpoint))


def test_a_chat_model_is_no_recogniser(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelConfigError, match="WhisperForConditionalGeneration"):
        load_recogniser(open_weights(tmp_path))


def test_without_a_vocabulary_there_is_no_recogniser(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    with pytest.raises(WeightsError, match="tokenizer"):
        load_recogniser(open_weights(tmp_path))


@pytest.mark.parametrize("name", ["encoder_model.ort", "model.bin"])
def test_a_folder_is_what_its_files_say(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"rubbish that is no model at all")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=name):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("text", "begins"),
    [(" a", True), ("a", False), ("", False), ("你", True), ("カ", True), ("。", False), ("ก", True), ("ö", False),
     ("한", False), (",", False), ("\u0939", False)],
)  # fmt: skip
def test_words_begin_with_a_space_or_in_scripts_that_have_none(text: str, begins: bool) -> None:
    assert starts_word(text.encode()) == begins


def test_a_spelling_leaves_out_what_it_does_not_know() -> None:
    spelling = Spelling([b" a", b"\xff", b"b"], ["", "", ""])
    assert spelling.text([0, 1, 2]) == " a\ufffdb"

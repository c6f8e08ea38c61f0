"""Small random Qwen3-ASR checkpoints in both published layouts, written from the reference's weights."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from lazily import transformers
from safetensors.torch import save_file
from tokenizers import models, pre_tokenizers, trainers

from voxlane.engine.models.qwen3_asr.prompt import LANGUAGES

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")
TAGS = ("<asr_text>",)  # an added token, but not a special one: it would be part of a text

AUDIO = {
    "num_mel_bins": 20, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "d_model": 32,
    "downsample_hidden_size": 6, "n_window": 50, "n_window_infer": 200, "output_dim": 64,
}  # fmt: skip
TEXT = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
}  # fmt: skip


@cache
def vocabulary() -> tuple[dict[str, int], list[list[str]]]:
    """Return pieces and merges in which every word of a prompt is one token."""
    words = [*(f" {name}" for name in (*LANGUAGES.values(), "None")), "system", "user", "assistant", "language"]
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(words, trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet))
    data = json.loads(learner.to_str())["model"]
    return data["vocab"], [list(pair) for pair in data["merges"]]


def added_tokens() -> dict[str, int]:
    first = len(vocabulary()[0])
    return {name: first + place for place, name in enumerate((*SPECIAL, *TAGS))}


def reference(seed: int = 1, audio: dict[str, int] | None = None, **text: object) -> Any:
    """Return a random model with outputs far enough apart to be distinguished from rounding."""
    added = added_tokens()
    torch.manual_seed(seed)
    config = transformers.Qwen3ASRConfig(
        audio_config={**AUDIO, **(audio or {})},
        text_config={**TEXT, "vocab_size": len(vocabulary()[0]) + len(added) + 9, "rope_theta": 50_000.0, **text},
        audio_token_id=added["<|audio_pad|>"],
        eos_token_id=[added["<|endoftext|>"], added["<|im_end|>"]],
        pad_token_id=added["<|endoftext|>"],
        tie_word_embeddings=text.get("tie_word_embeddings", True),
    )
    model = transformers.Qwen3ASRForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 0.3 if weight.ndim > 1 else 0.1
            if not name.endswith("norm.weight") and "ln_post.weight" not in name:
                weight.copy_(torch.randn(weight.shape) * scale)
    return model


def write_library(model: Any, path: Path) -> Path:
    """Write a checkpoint in the layout of Hugging Face's library."""
    model.save_pretrained(path)
    pieces, merges = vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": id_, "content": name, "special": name in SPECIAL, **flags} for name, id_ in added_tokens().items()
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "BPE", "vocab": pieces, "merges": merges},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def write_authors(model: Any, path: Path) -> Path:
    """Write the same checkpoint in its authors' layout: other names, a nested config, two vocabulary files."""
    path.mkdir(exist_ok=True)
    tensors = {}
    for name, tensor in model.state_dict().items():
        own = name.removeprefix("model.").replace("language_model.", "model.")
        own = own.replace("multi_modal_projector.linear_", "audio_tower.proj")
        tensors[f"thinker.{own}"] = tensor.clone().contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    added = added_tokens()
    ends = {"eos_token_id": [added["<|endoftext|>"], added["<|im_end|>"]]}
    pieces, merges = vocabulary()
    decoder = {
        str(id_): {"content": name, "special": name in SPECIAL, "lstrip": False, "rstrip": False}
        for name, id_ in added.items()
    }
    settings = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": decoder, "eos_token": "<|im_end|>"}
    for name, value in (
        ("config.json", authors_config(model)),
        ("generation_config.json", ends),
        ("vocab.json", pieces),
        ("tokenizer_config.json", settings),
    ):
        (path / name).write_text(json.dumps(value))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (path / "merges.txt").write_text("\n".join(lines), "utf-8")
    return path


def authors_config(model: Any) -> dict[str, object]:
    """Return a model's configuration with its authors' keys."""
    config = model.config.to_dict()
    text, audio = dict(config["text_config"]), dict(config["audio_config"])
    rope = text.pop("rope_parameters")
    for key in ("layer_types", "max_window_layers", "use_sliding_window"):
        text.pop(key, None)
    half = text["head_dim"] // 2
    axes = [half - 2 * (half // 3), half // 3, half // 3]
    scaling = {"rope_type": "default", "mrope_section": axes, "interleaved": True, "mrope_interleaved": True}
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling, "model_type": "qwen3_asr_text"}
    text["tie_word_embeddings"] = config["tie_word_embeddings"]
    audio.pop("max_position_embeddings")
    audio |= {"model_type": "qwen3_asr_audio_encoder", "max_source_positions": 1500, "conv_chunksize": 500}
    added = added_tokens()
    thinker = {
        "model_type": "qwen3_asr_thinker", "audio_config": audio, "text_config": text,
        "audio_token_id": added["<|audio_pad|>"], "audio_start_token_id": added["<|audio_start|>"],
        "audio_end_token_id": added["<|audio_end|>"], "user_token_id": 872, "initializer_range": 0.02,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "support_languages": ["Chinese", "English", "German", "Welsh"],
        "thinker_config": thinker,
    }

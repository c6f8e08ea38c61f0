"""Reading Qwen3-ASR's configurations: both published layouts load whole, and an unknown key is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from lazily import transformers

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.qwen3_asr.config import Qwen3ASRConfig, check_generation

DUMP: dict[str, Any] = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None, "attention_dropout": 0,
    "bad_words_ids": None, "begin_suppress_tokens": None, "bos_token_id": None, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False,
    "dtype": None, "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "eos_token_id": None,
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02,
    "is_decoder": False, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "length_penalty": 1.0, "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "output_attentions": False, "output_hidden_states": False,
    "output_scores": False, "pad_token_id": None, "prefix": None, "problem_type": None, "pruned_heads": {},
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False,
    "sep_token_id": None, "suppress_tokens": None, "task_specific_params": None, "temperature": 1.0,
    "tf_legacy_loss": False, "tie_encoder_decoder": False, "tie_word_embeddings": True, "tokenizer_class": None,
    "top_k": 50, "top_p": 1.0, "torchscript": False, "typical_p": 1.0, "use_bfloat16": False,
}  # fmt: skip
"""What transformers 4 writes into every part of a configuration."""

AUTHORS: dict[str, Any] = {
    "architectures": ["Qwen3ASRForConditionalGeneration"],
    "model_type": "qwen3_asr",
    "support_languages": ["Chinese", "English", "Macedonian"],
    "thinker_config": {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "audio_config": {
            **DUMP, "activation_dropout": 0, "activation_function": "gelu", "conv_chunksize": 500, "d_model": 896,
            "downsample_hidden_size": 480, "dropout": 0, "encoder_attention_heads": 14, "encoder_ffn_dim": 3584,
            "encoder_layers": 18, "max_source_positions": 1500, "model_type": "qwen3_asr_audio_encoder",
            "n_window": 50, "n_window_infer": 800, "num_hidden_layers": 18, "num_mel_bins": 128, "output_dim": 1024,
            "scale_embedding": False,
        },
        "audio_end_token_id": 151670,
        "audio_start_token_id": 151669,
        "audio_token_id": 151676,
        "dtype": "bfloat16",
        "initializer_range": 0.02,
        "text_config": {
            **DUMP, "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
            "intermediate_size": 3072, "max_position_embeddings": 65536, "model_type": "qwen3",
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "interleaved": True, "mrope_interleaved": True, "mrope_section": [24, 20, 20],
                "rope_type": "default", "type": "default",
            },
            "rope_theta": 1000000, "use_cache": True, "vocab_size": 151936,
        },
    },
    "transformers_version": "4.57.6",
}  # fmt: skip
"""The published 0.6B's."""


def library() -> dict[str, Any]:
    """Return every field of the library's own class."""
    return transformers.Qwen3ASRConfig(audio_config={"output_dim": 2048}).to_dict()


def test_published_layouts_load_whole() -> None:
    authors, flat = Qwen3ASRConfig.from_dict(AUTHORS), Qwen3ASRConfig.from_dict(library())
    assert (authors.tower.layers, authors.text.layers, authors.text.hidden_size) == (18, 28, 1024)
    assert (flat.tower.layers, flat.text.layers, flat.text.hidden_size) == (24, 28, 2048)
    assert authors.text.tied
    assert flat.text.tied


@pytest.mark.parametrize("place", ["", "audio_config", "text_config", "thinker_config"])
@pytest.mark.parametrize("layout", ["authors", "library"])
@pytest.mark.parametrize(
    ("key", "value"), [("n_windows", 50), ("no_repeat_ngram_size", 3), ("is_encoder_decoder", True)]
)
def test_a_key_that_is_not_honoured_is_refused_in_every_part(layout: str, place: str, key: str, value: object) -> None:
    config = copy.deepcopy(AUTHORS) if layout == "authors" else library()
    prefix = "thinker_config." if layout == "authors" else ""
    parts = config["thinker_config"] if prefix else config
    where = {
        "": ("", config),
        "thinker_config": (prefix, parts),
        "audio_config": (f"{prefix}audio_config.", parts["audio_config"]),
        "text_config": (f"{prefix}text_config.", parts["text_config"]),
    }
    name, section = where[place]
    section[key] = value
    with pytest.raises(ModelConfigError, match=rf"^config key {name}{key}: "):
        Qwen3ASRConfig.from_dict(config)


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("audio_config", "num_hidden_layers", 19, "differs from encoder_layers"),
        ("audio_config", "d_modell", 896, r"did you mean d_model\?"),
        ("text_config", "rope_parameters", {"rope_theta": 5000.0}, "rope_scaling is there as well"),
        ("text_config", "mlp_bias", True, "unknown"),
    ],
)
def test_what_is_said_twice_or_misspelt_is_refused(part: str, key: str, value: object, message: str) -> None:
    config = copy.deepcopy(AUTHORS)
    config["thinker_config"][part][key] = value
    with pytest.raises(ModelConfigError, match=rf"^config key thinker_config\.{part}\.{key}: .*{message}"):
        Qwen3ASRConfig.from_dict(config)


def test_generation_is_the_likeliest_text() -> None:
    published = {"_from_model_config": True, "eos_token_id": [151643, 151645], "pad_token_id": 151643}
    check_generation(published | {"do_sample": False})
    check_generation(transformers.GenerationConfig(do_sample=False, num_beams=1).to_dict())
    for key, value in {"do_sample": True, "num_beams": 4, "repetition_penalty": 1.1, "top_kk": 3}.items():
        with pytest.raises(ModelConfigError, match=rf"^config key generation_config\.{key}: "):
            check_generation(published | {key: value})

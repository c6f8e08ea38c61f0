"""Reading Qwen3-TTS's configurations: the published shapes, and what is refused by name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from qwen3_tts_cases import CONFIGS
from qwen_tts_peer import QwenTtsPeer

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig, SpeechSampling

_DECODER = {
    "attention_bias": False, "attention_dropout": 0, "head_dim": 128, "hidden_act": "silu", "num_attention_heads": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "sliding_window": None, "use_cache": True,
    "use_sliding_window": False,
}  # fmt: skip


def published(hidden: int, intermediate: int, kind: str, size: str) -> dict[str, Any]:
    """The published checkpoints' configuration, less what repeats Hugging Face's defaults."""
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": 77091,
        "im_end_token_id": 151645,
        "im_start_token_id": 151644,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "tts_pad_token_id": 151671,
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": size,
        "tts_model_type": kind,
        "speaker_encoder_config": {"enc_dim": hidden, "sample_rate": 24000},
        "talker_config": {
            **_DECODER,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": 28,
            "max_position_embeddings": 32768,
            "num_code_groups": 16,
            "position_id_per_seconds": 13,
            "rope_scaling": {
                "interleaved": True,
                "mrope_section": [24, 20, 20],
                "rope_type": "default",
                "type": "default",
            },
            "text_hidden_size": 2048,
            "text_vocab_size": 151936,
            "vocab_size": 3072,
            "codec_bos_id": 2149,
            "codec_eos_token_id": 2150,
            "codec_pad_id": 2148,
            "codec_think_id": 2154,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "codec_language_id": {"chinese": 2055, "english": 2050, "beijing_dialect": 2074},
            "spk_id": {"ryan": 3061, "dylan": 2878} if kind == "custom_voice" else {},
            "spk_is_dialect": {"ryan": False, "dylan": "beijing_dialect"} if kind == "custom_voice" else {},
            "code_predictor_config": {
                **_DECODER,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 5,
                "layer_types": ["full_attention"] * 5,
                "max_position_embeddings": 65536,
                "max_window_layers": 28,
                "num_code_groups": 16,
                "rope_scaling": None,
                "vocab_size": 2048,
            },
        },
    }


@pytest.mark.parametrize("kind", ["base", "custom_voice", "voice_design"])
@pytest.mark.parametrize(("size", "hidden", "intermediate"), [("0b6", 1024, 3072), ("1b7", 2048, 6144)])
def test_published_shapes(kind: str, size: str, hidden: int, intermediate: int) -> None:
    config = Qwen3TTSConfig.from_dict(published(hidden, intermediate, kind, size))
    assert (config.talker.hidden_size, config.talker.layers, config.talker.head_dim) == (hidden, 28, 128)
    assert (config.predictor.hidden_size, config.predictor.layers, config.groups, config.codes) == (1024, 5, 16, 2048)
    assert config.talker.qk_norm
    assert set(config.talker.windows) == {0}
    assert (config.speaker_encoder is not None) == (kind == "base")
    if config.speaker_encoder is not None:
        assert config.speaker_encoder.channels == (512, 512, 512, 512, 1536)
    assert config.dialects == ({"dylan": "beijing_dialect"} if kind == "custom_voice" else {})
    assert config.takes_instructions == (kind == "voice_design" or (kind == "custom_voice" and size == "1b7"))


TALKER, PREDICTOR, ENCODER = "talker_config", "talker_config.code_predictor_config", "speaker_encoder_config"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "tts_model_type", "whisper"),
        ("", "tokenizer_type", "qwen3_tts_tokenizer_25hz"),
        ("", "tts_pad_token_id", 160),
        ("", "quantization_config", {"bits": 4}),
        (TALKER, "use_sliding_window", True),
        (TALKER, "tie_word_embeddings", True),
        (TALKER, "num_key_value_heads", None),
        (TALKER, "vocab_size", 3072),
        (TALKER, "text_vocab_size", None),
        (TALKER, "num_code_groups", 1),
        (TALKER, "codec_eos_token_id", 40),
        (TALKER, "hidden_act", "relu"),
        (f"{TALKER}.rope_scaling", "mrope_section", [4, 4, 4]),
        (f"{TALKER}.rope_scaling", "mrope_section", [4, 4]),
        (f"{TALKER}.rope_scaling", "rope_type", "spiral"),
        (f"{TALKER}.spk_is_dialect", "ryan", "klingon"),
        (f"{TALKER}.codec_language_id", "english", 5000),
        (PREDICTOR, "num_code_groups", 7),
        (PREDICTOR, "max_position_embeddings", 5),
        (PREDICTOR, "tie_word_embeddings", True),
        (PREDICTOR, "partial_rotary_factor", 0.5),
        (ENCODER, "mel_dim", 80),
        (ENCODER, "sample_rate", 16_000),
        (ENCODER, "enc_dim", 65),
        (ENCODER, "enc_channels", [16, 8, 16, 32]),
        (ENCODER, "enc_kernel_sizes", [3, 3]),
        (ENCODER, "enc_res2net_scale", 3),
        ("", "sample_rate", 24_000),
        (TALKER, "mlp_bias", False),
        (TALKER, "rope_parameters", {"rope_type": "default"}),
        (f"{TALKER}.rope_scaling", "mrope_interleaved", True),
        (PREDICTOR, "text_vocab_size", 160),
        (PREDICTOR, "repetition_penalty", 1.2),
        (PREDICTOR, "eos_token_id", 7),
        (ENCODER, "enc_layers", 3),
        *((place, "no_repeat_ngram_size", 2) for place in ("", TALKER, PREDICTOR)),
        *((place, "add_cross_attention", True) for place in ("", TALKER, PREDICTOR)),
    ],
)
def test_refused_by_name(section: str, key: str, value: object) -> None:
    config: Any = copy.deepcopy(CONFIGS["clones"])
    Qwen3TTSConfig.from_dict(config)
    place = config
    for name in filter(None, section.split(".")):
        place = place[name]
    place[key] = value
    wanted = key if key != "enc_kernel_sizes" else "enc_channels"
    with pytest.raises(ModelConfigError, match=rf"^config key {f'{section}.' if section else ''}{wanted}: "):
        Qwen3TTSConfig.from_dict(config)


def test_every_field_that_the_package_writes_is_known(qwen_tts_peer: QwenTtsPeer, tmp_path: Path) -> None:
    (tmp_path / "given.json").write_text(json.dumps(CONFIGS["clones"]))
    qwen_tts_peer.run("qwen_tts_peer_config.py", tmp_path)
    dump = json.loads((tmp_path / "dump.json").read_text())
    assert len(dump["config"]["talker_config"]["code_predictor_config"]) > 60
    assert Qwen3TTSConfig.from_dict(dump["config"]) == Qwen3TTSConfig.from_dict(CONFIGS["clones"])
    plain = SpeechSampling(temperature=0.0, repetition_penalty=1.0)  # as that library generates where nothing is set
    assert SpeechSampling.from_dict(dump["generation"]) == plain


def test_a_misspelt_key_is_told_from_the_right_one() -> None:
    config: Any = copy.deepcopy(CONFIGS["clones"])
    config["talker_config"]["codec_thinks_id"] = 5
    wanted = r"talker_config\.codec_thinks_id: unknown, and it may change the result \(did you mean codec_think_id\?\)"
    with pytest.raises(ModelConfigError, match=wanted):
        Qwen3TTSConfig.from_dict(config)


@pytest.mark.parametrize(
    ("key", "value", "neutral"),
    [
        ("no_repeat_ngram_size", 3, 0),
        ("typical_p", 0.9, 1.0),
        ("min_p", 0.1, 0.0),
        ("min_new_tokens", 3, 2),
        ("num_beams", 4, 1),
        ("num_return_sequences", 2, 1),
        ("max_length", 100, 20),
        ("suppress_tokens", [5], []),
        ("eos_token_id", 7, 150),
        ("eos_token_id", [7, 150], [150]),
        ("cache_implementation", "quantized", "static"),
        ("subtalker_repetition_penalty", 1.1, None),
    ],
)
def test_what_would_change_the_speech_is_refused_but_for_its_neutral_value(
    key: str, value: object, neutral: object
) -> None:
    assert SpeechSampling.from_dict({key: neutral}, 150) == SpeechSampling()
    with pytest.raises(ModelConfigError, match=rf"^config key generation_config\.{key}: "):
        SpeechSampling.from_dict({key: value}, 150)


def test_sampling_defaults() -> None:
    """As the published generation_config.json has them, and as the package falls back to."""
    file = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50}
    assert SpeechSampling.from_dict(file | {"max_new_tokens": 8192}) == SpeechSampling(max_frames=8192)
    assert SpeechSampling.from_dict({}) == SpeechSampling()
    still = SpeechSampling.from_dict({"do_sample": False, "subtalker_dosample": False, "subtalker_top_k": 0})
    assert (still.temperature, still.inner_temperature, still.inner_top_k) == (0.0, 0.0, 0)
    for key, value in {"top_p": 1.5, "num_beams": 4, "temperature": -1, "top_k": "many"}.items():
        with pytest.raises(ModelConfigError, match=rf"config key generation_config\.{key}: "):
            SpeechSampling.from_dict({key: value})
    for key in ("temperature", "subtalker_temperature", "repetition_penalty"):
        for value in (1e308, 1e-300):  # single precision has neither
            reason = rf"config key generation_config\.{key}: .* not between 0.01 and 100"
            with pytest.raises(ModelConfigError, match=reason):
                SpeechSampling.from_dict({key: value})


@pytest.mark.parametrize("speakers", [{}, {"": 3061}])
def test_a_voice_that_nobody_could_name_is_refused(speakers: dict[str, int]) -> None:
    config = published(1024, 3072, "custom_voice", "0b6")
    config["talker_config"] |= {"spk_id": speakers, "spk_is_dialect": {}}
    with pytest.raises(ModelConfigError, match="spk_id: "):
        Qwen3TTSConfig.from_dict(config)

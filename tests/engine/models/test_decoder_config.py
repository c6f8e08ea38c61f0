"""Reading config.json: what is honoured, what is refused by name, and both spellings of the rope settings."""

from __future__ import annotations

import pytest
from checkpoints import CONFIGS, Config
from lazily import transformers

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.rotary import Rope

read = DecoderConfig.from_dict


def without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_writes_reads_the_same(name: str) -> None:
    """Its configs name every key, in the new spelling: all defaults and renamings must agree with ours."""
    config = CONFIGS[name]
    rewritten = transformers.AutoConfig.for_model(**config).to_dict()
    assert "rope_scaling" not in rewritten
    assert read(rewritten) == read(config)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text"])
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 256, "num_hidden_layers": 7, "num_attention_heads": 8}
    sizes |= {"num_key_value_heads": 4}
    spoken = transformers.AutoConfig.for_model(model_type, **sizes).to_dict()
    assert read({"model_type": model_type, "vocab_size": spoken["vocab_size"], **sizes}) == read(spoken)


ATTENDING = (2, 5, 8, 10, 12, 14)


def _lfm2(hidden: int, inner: int, **keys: object) -> Config:
    """What LFM2's first checkpoints have in config.json."""
    return {
        "model_type": "lfm2", "hidden_size": hidden, "block_ff_dim": inner, "num_hidden_layers": 16,
        "num_attention_heads": hidden // 64, "full_attn_idxs": list(ATTENDING), "tie_embedding": True, **keys,
    }  # fmt: skip


def _kinds(layers: int, attending: tuple[int, ...]) -> list[str]:
    return ["full_attention" if index in attending else "conv" for index in range(layers)]


LFM2_SIZES: dict[str, tuple[Config, int, int]] = {  # with a gate's rows, and the parameters of the published model
    "350M": (_lfm2(1024, 6656), 4608, 354_483_968),
    "700M": (_lfm2(1536, 10_240), 6912, 742_489_344),
    "1.2B": (_lfm2(2048, 12_288), 8192, 1_170_340_608),
    "2.6B": (
        _lfm2(2048, 10_752, num_hidden_layers=30, block_auto_adjust_ff_dim=False, tie_embedding=None)
        | {"full_attn_idxs": None, "layer_types": _kinds(30, (2, 5, 9, 13, 17, 21, 24, 27))},
        10_752,
        2_569_272_320,
    ),
    "8B-A1B": (
        _lfm2(2048, 0, num_hidden_layers=24, intermediate_size=7168, num_experts=32, num_dense_layers=2)
        | {"model_type": "lfm2_moe", "full_attn_idxs": None, "layer_types": _kinds(24, (2, 6, 10, 14, 18, 21))},
        7168,
        8_339_929_856,
    ),
}


@pytest.mark.parametrize("size", LFM2_SIZES)
def test_lfm2_has_the_parameters_of_its_published_sizes(size: str) -> None:
    settings, inner, parameters = LFM2_SIZES[size]
    config = read(settings)
    assert config.hybrid is not None
    assert (config.intermediate_size, config.head_dim, config.kv_heads) == (inner, 64, 8)
    norms = config.hidden_size * (2 * config.layers + 1) + 2 * 64 * len(config.spec.attention)
    assert config.spec.parameters + norms == parameters
    assert config.layers == len(config.spec.attention) + len(config.hybrid.convolutions)


def test_lfm2_refuses_what_it_cannot_do() -> None:
    config = CONFIGS["lfm2"]
    assert read(config | {"hidden_act": "silu"}) == read(config)
    for keys, named in (
        ({"layer_types": ["conv"] * 5}, "full_attn_idxs"),
        ({"layer_types": ["conv", "full_attention"]}, "layer_types"),
        ({"layer_types": ["conv"] * 4 + ["sliding_attention"]}, "layer_types"),
        ({"layer_types": None, "full_attn_idxs": [5]}, "full_attn_idxs"),
        ({"layer_types": None, "full_attn_idxs": ["1"]}, "full_attn_idxs"),
        ({"layer_types": None}, "full_attn_idxs"),
        ({"conv_L_cache": 1}, "conv_L_cache"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
    ):
        with pytest.raises(ModelConfigError, match=named):
            read(config | keys)
    with pytest.raises(ModelConfigError, match="num_experts_per_tok"):
        read(CONFIGS["lfm2-moe"] | {"num_experts_per_tok": 7})


def test_gemma_vision_configs_leave_the_decoder_to_its_defaults() -> None:
    text: Config = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    }  # fmt: skip
    config = read({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert config.attention_scale == 256**-0.5
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    assert config.ropes[0] == Rope(10_000.0)
    assert config.ropes[5] == Rope(1_000_000.0, "linear", 8.0)
    assert config.tied


def test_windows() -> None:
    qwen = CONFIGS["qwen2-window"]
    assert read(qwen).windows == (0, 9, 9)
    assert read(qwen | {"use_sliding_window": False}).windows == (0, 0, 0)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read(qwen | {"layer_types": kinds}).windows == (9, 0, 9)
    assert read(CONFIGS["gemma3"]).windows == (11, 11, 0, 11)


def test_yarn_lengthens_the_context_where_the_config_did_not() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert read(CONFIGS["qwen2"] | {"rope_scaling": scaling}).context_tokens == 1024
    assert read(CONFIGS["llama-yarn"]).context_tokens == 256


def test_top_level_original_context_comes_before_the_default() -> None:
    config = CONFIGS["llama"] | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}
    assert read(config).ropes[0].original_context == 256
    assert read(config | {"original_max_position_embeddings": 64}).ropes[0].original_context == 64


def test_keys_the_architecture_does_not_read_are_left_alone() -> None:
    notes = {"unsloth_version": "1", "attention_dropout": 0.1, "use_cache": False, "torch_dtype": "float16"}
    assert read(CONFIGS["llama"] | notes) == read(CONFIGS["llama"])


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("llama", {"model_type": "mamba"}, "model_type"),
        ("llama", {"hidden_size": None}, "hidden_size"),
        ("llama", {"hidden_size": "64"}, "hidden_size"),
        ("llama", {"hidden_size": 64.0}, "hidden_size"),
        ("llama", {"hidden_size": 10**12}, "hidden_size"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llama", {"vocab_size": -1}, "vocab_size"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"num_attention_heads": 6, "head_dim": None}, "num_attention_heads"),
        ("llama", {"head_dim": 18}, "head_dim"),
        ("llama", {"head_dim": 512}, "head_dim"),
        ("llama", {"max_position_embeddings": 2**40}, "max_position_embeddings"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
        ("llama", {"hidden_act": "relu"}, "hidden_act"),
        ("llama", {"hidden_act": 3}, "hidden_act"),
        ("llama", {"attention_bias": "yes"}, "attention_bias"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ("llama", {"sliding_window": 16}, "sliding_window"),
        ("llama", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"rope_theta": 0}, "rope_theta"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling"),
        ("llama", {"rope_scaling": {"rope_type": "su"}}, "rope_scaling.rope_type"),
        ("llama", {"rope_parameters": {"full_attention": {}}}, "rope_parameters"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "sliding_window"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ("qwen2", {"layer_types": "full_attention"}, "layer_types"),
        ("qwen2-window", {"sliding_window": 0}, "sliding_window"),
        ("qwen2-window", {"sliding_window": None}, "sliding_window"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3", {"rope_local_base_freq": -5.0}, "rope_local_base_freq"),
        ("gemma3", {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters"),
    ],
)
def test_what_is_refused_is_named(name: str, change: Config, named: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"config key {named}: ") as raised:
        read(CONFIGS[name] | change)
    assert "\n" not in str(raised.value)


def test_harmless_values_of_refused_keys_pass() -> None:
    harmless: Config = {
        "partial_rotary_factor": 1.0,
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    }
    assert read(CONFIGS["gemma3"] | harmless) == read(CONFIGS["gemma3"])


def test_a_missing_model_type_is_named() -> None:
    with pytest.raises(ModelConfigError, match="config key model_type: missing"):
        read(without(CONFIGS["llama"], "model_type"))

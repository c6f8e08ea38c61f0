"""Small random checkpoints in Hugging Face's own layout: config.json and model.safetensors.

The shapes are computed here from the configs' keys, not taken from the engine, so that a test can disagree with it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

Config = dict[str, object]

_SIZES: Config = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def _config(model_type: str, architecture: str, **keys: object) -> Config:
    return {"model_type": model_type, "architectures": [architecture], **_SIZES, **keys}


def _llama(**keys: object) -> Config:
    return _config("llama", "LlamaForCausalLM", rope_theta=10_000.0, tie_word_embeddings=False, **keys)


_QWEN = {"hidden_act": "silu", "rope_theta": 50_000.0}

_EXPERTS: Config = {
    "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "use_expert_bias": True, "norm_topk_prob": True,
}  # fmt: skip


def _lfm2(model_type: str, architecture: str, **keys: object) -> Config:
    sizes = {key: value for key, value in _SIZES.items() if key not in ("head_dim", "rms_norm_eps")}
    hybrid: Config = {
        "num_hidden_layers": 5,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    }
    return {"model_type": model_type, "architectures": [architecture], **sizes, **hybrid, **keys}


CONFIGS: dict[str, Config] = {
    "llama": _llama(),
    "llama-linear": _llama(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-llama3": _llama(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
    "llama-yarn": _llama(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
    ),
    "llama-yarn-mscale": _llama(
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        }
    ),
    "llama-dynamic": _llama(rope_scaling={"type": "dynamic", "factor": 2.0}),
    # Biases everywhere, a head wider than hidden / heads, and 80 inputs that do not split into groups of 32.
    "llama-biased": _llama(attention_bias=True, mlp_bias=True) | {"head_dim": 24, "intermediate_size": 80},
    "qwen2": _config("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True, **_QWEN),
    "qwen2-window": _config(
        "qwen2",
        "Qwen2ForCausalLM",
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=1,
        **_QWEN,
    ),
    "qwen3": _config("qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True, **_QWEN),
    "gemma3": _config(
        "gemma3_text",
        "Gemma3ForCausalLM",
        hidden_activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        query_pre_attn_scalar=24,
        sliding_window=11,
        sliding_window_pattern=3,
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        final_logit_softcapping=20.0,
    )
    | {"num_hidden_layers": 4},
    "lfm2": _lfm2("lfm2", "Lfm2ForCausalLM", conv_L_cache=3, block_auto_adjust_ff_dim=False),
    # Biases, four taps, attention named by its layers, and a feed-forward network of ceil(2/3 * 96 / 40) * 40 rows.
    "lfm2-biased": _lfm2(
        "lfm2",
        "Lfm2ForCausalLM",
        conv_L_cache=4,
        conv_bias=True,
        block_auto_adjust_ff_dim=True,
        block_ffn_dim_multiplier=1.0,
        block_multiple_of=40,
        full_attn_idxs=[1, 3],
    )
    | {"layer_types": None, "tie_word_embeddings": False},
    "lfm2-moe": _lfm2("lfm2_moe", "Lfm2MoeForCausalLM", **_EXPERTS),
    "lfm2-moe-plain": _lfm2(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        **_EXPERTS | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    ),
}


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of Hugging Face's class for `config`."""
    if config["model_type"] in ("lfm2", "lfm2_moe"):
        return _lfm2_shapes(config)
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    model_type, hidden, inner = config["model_type"], size["hidden_size"], size["intermediate_size"]
    q, kv = (size[f"num_{kind}_heads"] * size["head_dim"] for kind in ("attention", "key_value"))
    attention_bias = bool(config.get("attention_bias"))
    matrices = {
        "self_attn.q_proj": (q, hidden, attention_bias or model_type == "qwen2"),
        "self_attn.k_proj": (kv, hidden, attention_bias or model_type == "qwen2"),
        "self_attn.v_proj": (kv, hidden, attention_bias or model_type == "qwen2"),
        "self_attn.o_proj": (hidden, q, attention_bias),
        "mlp.gate_proj": (inner, hidden, bool(config.get("mlp_bias"))),
        "mlp.up_proj": (inner, hidden, bool(config.get("mlp_bias"))),
        "mlp.down_proj": (hidden, inner, bool(config.get("mlp_bias"))),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if model_type in ("qwen3", "gemma3_text"):
        norms |= {"self_attn.q_norm": size["head_dim"], "self_attn.k_norm": size["head_dim"]}
    if model_type == "gemma3_text":
        norms |= {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size["vocab_size"], hidden)}
    for layer in range(size["num_hidden_layers"]):
        for name, (out, inputs, bias) in matrices.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = (out, inputs)
            if bias:
                shapes[f"model.layers.{layer}.{name}.bias"] = (out,)
        for name, width in norms.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = (width,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (size["vocab_size"], hidden)
    return shapes


def _lfm2_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    size = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, inner, layers = size["hidden_size"], size["intermediate_size"], size["num_hidden_layers"]
    head = hidden // size["num_attention_heads"]
    q, kv = (size[f"num_{kind}_heads"] * head for kind in ("attention", "key_value"))
    if config.get("block_auto_adjust_ff_dim"):
        inner = -(-(2 * inner // 3) // size["block_multiple_of"]) * size["block_multiple_of"]
    kinds = config["layer_types"] or [
        "full_attention" if n in config["full_attn_idxs"] else "conv" for n in range(layers)
    ]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size["vocab_size"], hidden)}
    for layer, kind in enumerate(kinds):
        parts: dict[str, tuple[int, ...]] = {"operator_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
        if kind == "conv":
            parts |= {"conv.in_proj.weight": (3 * hidden, hidden), "conv.out_proj.weight": (hidden, hidden)}
            parts["conv.conv.weight"] = (hidden, 1, size.get("conv_L_cache", 3))
            if config.get("conv_bias"):
                parts |= {
                    "conv.in_proj.bias": (3 * hidden,),
                    "conv.out_proj.bias": (hidden,),
                    "conv.conv.bias": (hidden,),
                }
        else:
            parts |= {f"self_attn.{name}_proj.weight": (out, hidden) for name, out in (("q", q), ("k", kv), ("v", kv))}
            parts |= {"self_attn.out_proj.weight": (hidden, q)}
            parts |= {f"self_attn.{name}_layernorm.weight": (head,) for name in ("q", "k")}
        if config["model_type"] == "lfm2" or layer < size["num_dense_layers"]:
            parts |= _gate_shapes("feed_forward", hidden, inner)
        else:
            parts["feed_forward.gate.weight"] = (size["num_experts"], hidden)
            if config["use_expert_bias"]:
                parts["feed_forward.expert_bias"] = (size["num_experts"],)
            for expert in range(size["num_experts"]):
                parts |= _gate_shapes(f"feed_forward.experts.{expert}", hidden, size["moe_intermediate_size"])
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["model.embedding_norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (size["vocab_size"], hidden)
    return shapes


def _gate_shapes(name: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.w1.weight": (inner, hidden),
        f"{name}.w3.weight": (inner, hidden),
        f"{name}.w2.weight": (hidden, inner),
    }


def random_tensors(config: Config, seed: int = 0) -> dict[str, Tensor]:
    """Return float32 weights large enough that every part of the model affects the logits."""
    generator = torch.Generator().manual_seed(seed)
    centre = 0.0 if config["model_type"] == "gemma3_text" else 1.0  # Gemma adds the one itself
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            tensors[name] = centre + 0.3 * values
        elif name.endswith((".bias", "expert_bias")):
            tensors[name] = 0.5 * values
        elif name.endswith("conv.conv.weight"):
            tensors[name] = values
        elif name == "model.embed_tokens.weight":
            tensors[name] = 0.3 * values
        else:
            tensors[name] = 1.5 * values / shape[1] ** 0.5
    return tensors


def write_checkpoint(directory: Path, config: Config, tensors: dict[str, Tensor] | None = None, seed: int = 0) -> Path:
    """Write config.json and model.safetensors into `directory` (made if missing) and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors or random_tensors(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory

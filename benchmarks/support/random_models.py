"""Models of real shapes with random weights, for text and speech: tensors on demand, or directories in HF's layout."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_COMMON: dict[str, object] = {
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool, **other: object) -> dict[str, object]:
    return {
        **_COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
        **other,
    }


def _whisper(
    hidden: int, encoder_layers: int, decoder_layers: int, heads: int, bins: int, **other: object
) -> dict[str, object]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": 51_866,
        "d_model": hidden,
        "encoder_layers": encoder_layers,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * hidden,
        "decoder_ffn_dim": 4 * hidden,
        "num_mel_bins": bins,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "activation_function": "gelu",
        "scale_embedding": False,
        "decoder_start_token_id": 50_258,
        "bos_token_id": 50_257,
        "eos_token_id": 50_257,
        "pad_token_id": 50_257,
        "initializer_range": 0.02,
        **other,
    }


def _moonshine(hidden: int, layers: int, heads: int, **other: object) -> dict[str, object]:
    return {
        "architectures": ["MoonshineForConditionalGeneration"],
        "model_type": "moonshine",
        "vocab_size": 32_768,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "encoder_num_hidden_layers": layers,
        "decoder_num_hidden_layers": layers,
        **{f"{side}_num_{kind}_heads": heads for side in ("encoder", "decoder") for kind in ("attention", "key_value")},
        "max_position_embeddings": 194,
        "partial_rotary_factor": 0.9,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,
        **other,
    }


SHAPES: dict[str, dict[str, object]] = {
    "whisper-speck": _whisper(32, 1, 2, 2, 80, initializer_range=0.12),
    "moonshine-speck": _moonshine(72, 1, 2, vocab_size=211, initializer_range=0.12),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "qwen3-8b": _qwen3(4096, 12_288, 36, 32, tied=False),
    "llama-3.2-1b": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
        "mlp_bias": False,
    },
    # Small enough for a CPU, odd enough to find mistakes: three query heads to a key head, an uneven vocabulary.
    "tiny": _qwen3(
        *(192, 320, 3, 6),
        tied=True,
        vocab_size=1031,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.15,
    ),
    # For an interpreter.
    "speck": _qwen3(
        *(32, 48, 1, 2),
        tied=True,
        vocab_size=97,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.15,
    ),
}


def tensor_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape, derived from the config."""
    if config["model_type"] in _SPEECH:
        return _SPEECH[str(config["model_type"])](config)
    number = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, vocabulary = number["hidden_size"], number["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    shapes |= decoder_shapes("model.", number, head_norms=config["model_type"] == "qwen3")
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def decoder_shapes(prefix: str, number: Mapping[str, int], *, head_norms: bool) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a decoder's layers and of the norm after them."""
    hidden, inner, head_dim = number["hidden_size"], number["intermediate_size"], number["head_dim"]
    q, kv = number["num_attention_heads"] * head_dim, number["num_key_value_heads"] * head_dim
    block: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if head_norms:
        block |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}norm.weight": (hidden,)}
    for layer in range(number["num_hidden_layers"]):
        shapes |= {f"{prefix}layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _whisper_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    number = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden = number["d_model"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (hidden, number["num_mel_bins"], 3),
        "model.encoder.conv1.bias": (hidden,),
        "model.encoder.conv2.weight": (hidden, hidden, 3),
        "model.encoder.conv2.bias": (hidden,),
        "model.encoder.embed_positions.weight": (1500, hidden),
        "model.decoder.embed_positions.weight": (number["max_target_positions"], hidden),
        "model.decoder.embed_tokens.weight": (number["vocab_size"], hidden),
    }
    for side in ("encoder", "decoder"):
        inner = number[f"{side}_ffn_dim"]
        for layer in range(number[f"{side}_layers"]):
            prefix = f"model.{side}.layers.{layer}."
            for attention in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                for part in "qkv":
                    shapes[f"{prefix}{attention}.{part}_proj.weight"] = (hidden, hidden)
                    if part != "k":
                        shapes[f"{prefix}{attention}.{part}_proj.bias"] = (hidden,)
                shapes |= _affine(f"{prefix}{attention}.out_proj", hidden, hidden)
                shapes |= _affine(f"{prefix}{attention}_layer_norm", hidden)
            shapes |= _affine(f"{prefix}fc1", inner, hidden) | _affine(f"{prefix}fc2", hidden, inner)
            shapes |= _affine(f"{prefix}final_layer_norm", hidden)
        shapes |= _affine(f"model.{side}.layer_norm", hidden)
    return shapes


def _moonshine_shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    number = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, inner = number["hidden_size"], number["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.encoder.conv1.weight": (hidden, 1, 127),
        "model.encoder.conv2.weight": (2 * hidden, hidden, 7),
        "model.encoder.conv2.bias": (2 * hidden,),
        "model.encoder.conv3.weight": (hidden, 2 * hidden, 3),
        "model.encoder.conv3.bias": (hidden,),
        **_affine("model.encoder.groupnorm", hidden),
        "model.encoder.layer_norm.weight": (hidden,),
        "model.decoder.norm.weight": (hidden,),
        "model.decoder.embed_tokens.weight": (number["vocab_size"], hidden),
    }
    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for layer in range(number[f"{side}_num_hidden_layers"]):
            prefix = f"model.{side}.layers.{layer}."
            for attention in attentions:
                shapes |= {f"{prefix}{attention}.{part}_proj.weight": (hidden, hidden) for part in "qkvo"}
            norms = ("input_layernorm", "post_attention_layernorm", "final_layernorm")[: 1 + len(attentions)]
            shapes |= {f"{prefix}{norm}.weight": (hidden,) for norm in norms}
            gate = 1 + (side == "decoder")
            shapes |= _affine(f"{prefix}mlp.fc1", gate * inner, hidden) | _affine(f"{prefix}mlp.fc2", hidden, inner)
    return shapes


def _affine(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


_SPEECH = {"whisper": _whisper_shapes, "moonshine": _moonshine_shapes}


class RandomWeights:
    """A model without a file, as a WeightFile: a tensor's numbers depend on its name alone."""

    def __init__(self, config: dict[str, object], device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> None:
        self.config = config
        self._shapes = tensor_shapes(config)
        self._device = device
        self._dtype = dtype

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._shapes)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor."""
        random = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        shape = self._shapes[name]
        if len(shape) == 1 and not name.endswith(".bias"):
            values = torch.rand(shape, generator=random, device=self._device) * 0.5 + 0.75
        else:
            spread = self.config["initializer_range"]
            assert isinstance(spread, float)
            values = torch.randn(shape, generator=random, device=self._device, dtype=torch.float32) * spread
        return values.to(self._dtype)

    def blocks(self, name: str) -> None:
        """Return None: these are plain floats."""


def write(config: dict[str, object], folder: Path, device: str = "cpu") -> None:
    """Write a model directory: config.json and model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = RandomWeights(config, device)
    save_file(
        {name: weights.tensor(name).cpu() for name in weights.names()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")

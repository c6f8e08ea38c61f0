"""Language models of real shapes with random weights, as tensors on demand or as directories in Hugging Face's layout.

python benchmarks/random_models.py qwen3-0.6b /some/folder
"""

from __future__ import annotations

import argparse
import json
import zlib
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


SHAPES: dict[str, dict[str, object]] = {
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
    # Small enough for a CPU, odd enough to find mistakes: three query heads to a key head, a ragged vocabulary.
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
    """Return every tensor's name and shape, written from the config's keys."""
    number = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, inner, vocabulary = number["hidden_size"], number["intermediate_size"], number["vocab_size"]
    head_dim = number["head_dim"]
    q, kv = number["num_attention_heads"] * head_dim, number["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(number["num_hidden_layers"]):
        block = {
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
        if config["model_type"] == "qwen3":
            block |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


class RandomWeights:
    """A model that is on no disk, as a WeightFile: a tensor's numbers depend on its name alone."""

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
        if len(shape) == 1:
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


def main() -> None:
    """Write one shape to a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write(SHAPES[options.shape], options.folder, "cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    main()

"""Mimi's file as Kyutai wrote it, and as LFM2-Audio ships it, under the names of Hugging Face's checkpoint.

Beside the names, two things differ. Queries, keys and values are one matrix. And a head's pairs of dimensions that are
rotated together lie side by side there; here the second half of a head follows the first.
"""

from __future__ import annotations

import functools
import re

import torch
from torch import Tensor

from voxlane.engine.errors import TensorError
from voxlane.engine.models.lfm2_audio.derived_tensors import Derived, DerivedTensors, NamedTensors, halves
from voxlane.engine.models.lfm2_audio.mimi_config import MimiConfig

FILE = "tokenizer-e351c8d8-checkpoint125.safetensors"
"""The file's name in a folder of LFM2-Audio."""

_PLAIN = (
    (r"(decoder|encoder)\.model\.", r"\1.layers."),
    (r"\.(conv|convtr)\.\1\.(weight|bias)$", r".conv.\2"),
    (r"^(upsample|downsample)\.(conv|convtr)\.conv\.", r"\1.conv."),
    (r"^(decoder|encoder)_transformer\.transformer\.", r"\1_transformer."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.linear([12])\.", r".mlp.fc\1."),
    (r"\.layer_scale_1\.", ".self_attn_layer_scale."),
    (r"\.layer_scale_2\.", ".mlp_layer_scale."),
    (r"\.self_attn\.out_proj(s\.0)?\.weight$", ".self_attn.o_proj.weight"),
    (r"^quantizer\.rvq_first\.", "quantizer.semantic_residual_vector_quantizer."),
    (r"^quantizer\.rvq_rest\.", "quantizer.acoustic_residual_vector_quantizer."),
    (r"\.vq\.layers\.(\d+)\._codebook\.", r".layers.\1.codebook."),
    (r"\.codebook\._initialized$", ".codebook.initialized"),
    (r"\.codebook\.embedding_sum$", ".codebook.embed_sum"),
)
"""What becomes of a name, one change after the other."""
_FUSED = re.compile(r"(.*\.self_attn)\.(?:in_proj_weight|in_proj\.weight|in_projs\.0\.weight)")


def kyutai_mimi(file: NamedTensors, config: dict[str, object] | None = None) -> DerivedTensors:
    """Return Kyutai's file as a WeightFile. It has no configuration: without `config` it is the published one."""
    sizes = MimiConfig.from_dict(config or {})
    sources: dict[str, str | Derived] = {}
    for name in file.names():
        fused = _FUSED.fullmatch(name)
        if fused is None:
            sources[_plain_name(name)] = name
            continue
        for index, part in enumerate("qkv"):
            derived = Derived((name,), functools.partial(_part, sizes, name, index))
            sources[f"{_plain_name(fused[1])}.{part}_proj.weight"] = derived
    return DerivedTensors(file, sources, config)


def _plain_name(name: str) -> str:
    """Return the name in Hugging Face's checkpoint of a tensor that has the same numbers there."""
    for pattern, replacement in _PLAIN:
        name = re.sub(pattern, replacement, name)
    return name


def _part(config: MimiConfig, name: str, index: int, fused: Tensor) -> Tensor:
    """Return the matrix of the queries, the keys or the values from the one of all three."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if fused.ndim != 2 or fused.shape[0] != q + 2 * kv:
        raise TensorError(f"tensor {name} has shape {list(fused.shape)}, not [{q + 2 * kv}, {config.hidden_size}]")
    part = torch.split(fused, [q, kv, kv])[index]
    return part if index == 2 else halves(part, config.head_dim)

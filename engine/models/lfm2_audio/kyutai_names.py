"""Mimi's file as Kyutai wrote it, and as LFM2-Audio ships it, under the names of Hugging Face's checkpoint.

Beside the names, two things differ. Queries, keys and values are one matrix. And a head's pairs of dimensions that are
rotated together lie side by side there; here the second half of a head follows the first.
"""

from __future__ import annotations

import re
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.errors import TensorError
from voxlane.engine.models.lfm2_audio.mimi_config import MimiConfig
from voxlane.engine.weights.tensors import Blocks

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


class NamedTensors(Protocol):
    """Tensors by name."""

    def names(self) -> list[str]:
        """Return every tensor's name."""

    def tensor(self, name: str) -> Tensor:
        """Return one tensor."""


class KyutaiMimi:
    """Kyutai's file as a WeightFile. It has no configuration: without `config` it is the published one."""

    def __init__(self, file: NamedTensors, config: dict[str, object] | None = None) -> None:
        self.config: dict[str, object] = config or {}  # in the form of Hugging Face's config.json
        self._file = file
        self._sizes = MimiConfig.from_dict(self.config)
        self._sources: dict[str, tuple[str, int]] = {}  # of each name: the file's, and which third of that tensor
        for name in file.names():
            fused = _FUSED.fullmatch(name)
            if fused is None:
                self._sources[plain_name(name)] = name, -1
                continue
            for third, part in enumerate("qkv"):
                self._sources[f"{plain_name(fused[1])}.{part}_proj.weight"] = name, third

    def names(self) -> list[str]:
        """Return every tensor's name in Hugging Face's checkpoint."""
        return list(self._sources)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor. KeyError if there is none."""
        source, third = self._sources[name]
        tensor = self._file.tensor(source)
        if third < 0:
            return tensor
        config = self._sizes
        sizes = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
        if tensor.ndim != 2 or tensor.shape[0] != sum(sizes):
            raise TensorError(f"tensor {source} has shape {list(tensor.shape)}, not [{sum(sizes)}, inputs]")
        part = torch.split(tensor, sizes)[third]
        return part if third == 2 else _halves(part, config.head_dim)

    def blocks(self, name: str) -> Blocks | None:
        """Return None: the file holds plain floats."""
        return None


def plain_name(name: str) -> str:
    """Return the name in Hugging Face's checkpoint of a tensor that has the same numbers there."""
    for pattern, replacement in _PLAIN:
        name = re.sub(pattern, replacement, name)
    return name


def _halves(weight: Tensor, head_dim: int) -> Tensor:
    """Return rows [heads * head_dim, inputs] with the first of each pair in the first half of their head."""
    return weight.view(-1, head_dim // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

"""Random FastConformer encoders of transformers, and their tensors under the names that LFM2-Audio's files have."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from voxlane.engine.audio.torchaudio_import import functional  # before transformers, which imports torchaudio too

assert functional
_RENAMED = (
    (r"^subsampling\.layers\.", "pre_encode.conv."),
    (r"^subsampling\.linear\.", "pre_encode.out."),
    (r"\.self_attn\.([qkv])_proj\.", r".self_attn.linear_\1."),
    (r"\.self_attn\.o_proj\.", ".self_attn.linear_out."),
    (r"\.self_attn\.relative_k_proj\.", ".self_attn.linear_pos."),
    (r"\.self_attn\.bias_([uv])$", r".self_attn.pos_bias_\1"),
    (r"\.conv\.norm\.", ".conv.batch_norm."),
)


def random_encoder(**sizes: Any) -> Any:
    """Return transformers' encoder with random numbers in every tensor, such that the rows depend on the clip."""
    import transformers

    torch.manual_seed(8)
    model = transformers.ParakeetEncoder(transformers.ParakeetEncoderConfig(**sizes)).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2.0)
            elif tensor.ndim > 1 and ".bias_" not in name:
                tensor.normal_(std=tensor[0].numel() ** -0.5)
            elif not name.endswith("num_batches_tracked"):
                tensor.add_(torch.randn_like(tensor), alpha=0.1)
    return model


def nemo_tensors(model: nn.Module, prefix: str = "conformer.") -> dict[str, Tensor]:
    """Return the encoder's tensors under NeMo's names."""
    found = {}
    for name, tensor in model.state_dict().items():
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        found[prefix + name] = tensor.contiguous()
    return found

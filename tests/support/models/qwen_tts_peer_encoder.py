"""Run inside the peer: write small random 12 Hz tokenizers as the package saves them, and their encoders' output.

    qwen_tts_peer_encoder.py FOLDER CONFIGS    CONFIGS is JSON: for each name the encoder_config, and clip lengths

FOLDER/NAME then holds config.json, model.safetensors, and expected.safetensors with clip.N [N], codes.N [frames,
groups] and vectors.N [frames, hidden] for each length N: the codes, and the vectors that they approximate.
"""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import qwen_tts_peer_imports  # noqa: F401  (must come before qwen_tts)
import torch
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
from safetensors.torch import save_file

DECODER = {
    "codebook_dim": 8, "codebook_size": 8, "decoder_dim": 16, "head_dim": 4, "hidden_size": 8, "intermediate_size": 8,
    "latent_dim": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 2, "num_quantizers": 4,
}  # fmt: skip


def main(folder: Path, configs: dict[str, dict[str, Any]]) -> None:
    for seed, (name, wanted) in enumerate(configs.items()):
        torch.manual_seed(seed)
        encoder = wanted["encoder_config"]
        config = Qwen3TTSTokenizerV2Config(
            encoder_config=encoder,
            decoder_config=DECODER,
            encoder_valid_num_quantizers=wanted["groups"],
            encode_downsample_rate=2 * prod(encoder.get("upsampling_ratios") or [8, 6, 5, 4]),
        )
        model = Qwen3TTSTokenizerV2Model(config).eval()
        randomise(model.encoder)
        found = {}
        for length in wanted["lengths"]:
            clip = 0.3 * torch.randn(length)
            found |= {f"clip.{length}": clip} | listen(model, clip, length)
        model.save_pretrained(folder / name)
        save_file(found, folder / name / "expected.safetensors")


def listen(model: Any, clip: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
    vectors = []
    hook = model.encoder.downsample.register_forward_hook(lambda module, inputs, output: vectors.append(output))
    codes = model.encode(clip[None], torch.ones(1, length, dtype=torch.int64)).audio_codes[0]
    hook.remove()
    return {f"codes.{length}": codes.contiguous(), f"vectors.{length}": vectors[0][0].T.contiguous()}


def randomise(encoder: Any) -> None:
    """Give every weight a value that matters, and put the codebooks where the vectors lie."""
    for name, parameter in encoder.named_parameters():
        if name.endswith(("norm.weight", "layer_scale.scale")):
            parameter.uniform_(0.5, 1.5)
        elif parameter.ndim > 1:
            parameter.normal_(std=1.4 * parameter[0].numel() ** -0.5)
        else:
            parameter.normal_(std=0.3)
    for name, buffer in encoder.named_buffers():
        if name.endswith("cluster_usage"):
            buffer.uniform_(0.5, 3.0)
            buffer[0] = 0.0  # an unused code: its sum is divided by the smallest count
        elif name.endswith("embed_sum"):
            buffer.normal_(std=1.5)
            buffer[0] *= 1e-5


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

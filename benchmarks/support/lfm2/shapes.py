"""LFM2 and LFM2-Audio in their published shapes with random weights, and small ones for a CPU."""

from __future__ import annotations

from typing import Any

import torch

from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.layer_weights import read_layer_weights
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.random_tensors import RandomTensors
from voxlane.engine.runners.cuda.selfcheck_converse import CONFIG as SMALL_AUDIO
from voxlane.engine.runners.cuda.selfcheck_converse import MIMI as SMALL_MIMI

Config = dict[str, Any]


def _kinds(layers: int, attending: tuple[int, ...]) -> list[str]:
    return ["full_attention" if index in attending else "conv" for index in range(layers)]


LFM2: Config = {
    "model_type": "lfm2", "vocab_size": 65_536, "hidden_size": 2048, "intermediate_size": 8192,
    "block_auto_adjust_ff_dim": False, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 128_000, "norm_eps": 1e-5, "rope_theta": 1_000_000.0, "conv_L_cache": 3,
    "conv_bias": False, "layer_types": _kinds(16, (2, 5, 8, 10, 12, 14)), "tie_word_embeddings": True,
}  # fmt: skip
LFM2_MOE: Config = {
    **LFM2, "model_type": "lfm2_moe", "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32,
    "num_experts_per_tok": 4, "num_dense_layers": 2, "num_hidden_layers": 24, "use_expert_bias": True,
    "norm_topk_prob": True, "routed_scaling_factor": 1.0, "layer_types": _kinds(24, (2, 6, 10, 14, 18, 21)),
}  # fmt: skip
LFM2_MOE.pop("block_auto_adjust_ff_dim")
_SMALL: Config = {
    "vocab_size": 997, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "layer_types": _kinds(4, (1, 3)),
}  # fmt: skip
LFM2_AUDIO: Config = {
    "codebooks": 8, "interleaved_n_text": 6, "interleaved_n_audio": 12,
    "preprocessor": {"features": 128},
    "encoder": {
        "feat_in": 128, "feat_out": -1, "n_layers": 17, "d_model": 512, "n_heads": 8, "subsampling_factor": 8,
        "subsampling_conv_channels": 256, "conv_kernel_size": 9, "ff_expansion_factor": 4, "xscaling": False,
    },
    "lfm": LFM2,
    "depthformer": {"layers": 6, "dim": 1024, "tie": True},
}  # fmt: skip
SHAPES: dict[str, Config] = {
    "lfm2-1.2b": LFM2,
    "lfm2-8b-a1b": LFM2_MOE,
    "small": {**LFM2, **_SMALL},
    "small-moe": {**LFM2_MOE, **_SMALL, "moe_intermediate_size": 64, "num_experts": 6, "num_dense_layers": 1},
}
_THIN = {
    "encoder": {**LFM2_AUDIO["encoder"], "n_layers": 1},
    "lfm": {**LFM2, "num_hidden_layers": 4, "layer_types": _kinds(4, (2,))},
    "depthformer": {**LFM2_AUDIO["depthformer"], "layers": 1},
}
AUDIO_SHAPES: dict[str, tuple[Config, Config]] = {
    "lfm2-audio-1.5b": (LFM2_AUDIO, {}),
    "lfm2-audio-thin": ({**LFM2_AUDIO, **_THIN}, {}),
    "check": (SMALL_AUDIO, SMALL_MIMI),
    "small": ({**SMALL_AUDIO, "depthformer": {"layers": 1, "dim": 128, "tie": True}}, {**SMALL_MIMI, "num_filters": 2}),
}
"""The model and its codec; without numbers of its own the codec is the published Mimi."""


def random_decoder(config: Config, mode: Mode, device: torch.device, context_tokens: int) -> Decoder:
    """Return a decoder with random weights, drawn on the device."""
    sizes = DecoderConfig.from_dict(config)
    reader = RandomTensors(mode, device, device)
    embedding = reader.matrix(["model.embed_tokens.weight"], [sizes.vocab_size], sizes.hidden_size)
    first_norm, layers = read_layer_weights(reader, sizes, "model.", context_tokens)
    return Decoder(sizes, mode, embedding, first_norm, layers, embedding, reader.parameters, context_tokens)


def weights_read(config: Config, rows: int) -> float:
    """Return how many weights a step of so many rows reads; of experts, those that the rows are expected to choose."""
    sizes = DecoderConfig.from_dict(config)
    experts = sizes.experts
    if experts is None:
        return sizes.spec.parameters
    one = 3 * experts.inner * sizes.hidden_size
    unread = experts.count * (1 - experts.chosen / experts.count) ** rows
    return sizes.spec.parameters - (sizes.layers - experts.dense_layers) * unread * one

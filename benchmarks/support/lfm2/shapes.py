"""LFM2-Audio and LFM2's mixture of experts in their published shapes, and small ones for a CPU."""

from __future__ import annotations

from typing import Any

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
MIXTURE: Config = {
    **LFM2, "model_type": "lfm2_moe", "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_experts": 32,
    "num_experts_per_tok": 4, "num_dense_layers": 2, "num_hidden_layers": 24, "use_expert_bias": True,
    "norm_topk_prob": True, "routed_scaling_factor": 1.0, "layer_types": _kinds(24, (2, 6, 10, 14, 18, 21)),
}  # fmt: skip
MIXTURE.pop("block_auto_adjust_ff_dim")
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
SMALL_MIXTURE: Config = {
    **MIXTURE, "vocab_size": 997, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
    "layer_types": _kinds(4, (1, 3)), "moe_intermediate_size": 64, "num_experts": 6, "num_dense_layers": 1,
}  # fmt: skip
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

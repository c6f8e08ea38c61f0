"""The parts of small LFM2-Audio checkpoints: configurations with every published key, and random tensors."""

from __future__ import annotations

from typing import Any

import torch
from parakeet_peer import nemo_tensors, random_encoder
from torch import Tensor, nn

from voxlane.engine.models.lfm2_audio.conformer import Conformer
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.lfm2_audio.conformer_weights import flat_points, spare_names
from voxlane.engine.models.loading import Mode, TensorReader
from voxlane.engine.models.settings import Settings
from voxlane.engine.weights.tensors import Blocks

Values = dict[str, object]

BACKBONE = 64
"""The backbone's hidden size."""

SOUND: Values = {
    "sample_rate": 16_000, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
    "features": 16, "n_fft": 512, "log": True, "frame_splicing": 1, "dither": 1e-5, "pad_to": 0, "pad_value": 0.0,
}  # fmt: skip
ENCODER: Values = {
    "feat_in": 16, "feat_out": -1, "n_layers": 2, "d_model": 32, "subsampling": "dw_striding", "subsampling_factor": 8,
    "subsampling_conv_channels": 8, "causal_downsampling": False, "reduction": None, "reduction_position": None,
    "reduction_factor": 1, "ff_expansion_factor": 2, "self_attention_model": "rel_pos", "n_heads": 2,
    "att_context_size": [-1, -1], "xscaling": False, "untie_biases": True, "pos_emb_max_len": 500,
    "conv_kernel_size": 9, "conv_norm_type": "batch_norm", "conv_context_size": None, "dropout": 0.1,
    "dropout_pre_encoder": 0.1, "dropout_emb": 0.0, "dropout_att": 0.1,
}  # fmt: skip

GROUPS, DEPTH_LAYERS, DEPTH_DIM, CODES = 4, 2, 128, 2049
CONFIG: Values = {
    "architectures": ["Lfm2AudioForConditionalGeneration"], "codebooks": GROUPS, "tie_audio_embeddings": False,
    "semantic_codebook_factor": 100, "codebook_weight": "log", "interleaved_n_text": 6, "interleaved_n_audio": 12,
    "preprocessor": SOUND, "encoder": ENCODER, "lfm": {"model_type": "lfm2", "hidden_size": BACKBONE},
    "depthformer": {"layers": DEPTH_LAYERS, "dim": DEPTH_DIM, "tie": True},
}  # fmt: skip


class TensorsInMemory:
    """Tensors by name as a WeightFile."""

    def __init__(self, tensors: dict[str, Tensor], config: Values | None = None) -> None:
        self.config: Values = config or {}
        self._tensors = tensors

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._tensors[name]

    def blocks(self, name: str) -> Blocks | None:
        """Return None: all of them are floats."""
        return None


def encoder_peer(values: Values) -> Any:
    """Return transformers' encoder of these sizes, with random numbers."""
    hidden, factor = values["d_model"], values["ff_expansion_factor"]
    assert isinstance(hidden, int)
    assert isinstance(factor, int)
    return random_encoder(
        hidden_size=hidden, num_hidden_layers=values["n_layers"], num_attention_heads=values["n_heads"],
        intermediate_size=hidden * factor, conv_kernel_size=values["conv_kernel_size"],
        subsampling_factor=values["subsampling_factor"], subsampling_conv_channels=values["subsampling_conv_channels"],
        num_mel_bins=values["feat_in"], scale_input=values["xscaling"],
    )  # fmt: skip


def adapter_peer(hidden: int) -> nn.Sequential:
    """Return a random adapter between the encoder and the backbone."""
    torch.manual_seed(9)
    return nn.Sequential(
        nn.LayerNorm(hidden), nn.Linear(hidden, BACKBONE), nn.GELU(), nn.Linear(BACKBONE, BACKBONE)
    ).eval()


def encoder_tensors(values: Values) -> dict[str, Tensor]:
    """Return the tensors of an encoder and an adapter under the names of LFM2-Audio's files."""
    peer = encoder_peer(values)
    adapter = adapter_peer(peer.config.hidden_size).state_dict()
    return nemo_tensors(peer) | {f"audio_adapter.model.{name}": tensor for name, tensor in adapter.items()}


def load_encoder(values: Values, tensors: dict[str, Tensor], mode: Mode = "float32") -> Conformer:
    """Load an encoder and an adapter that have exactly these tensors."""
    config = ConformerConfig.read(Settings(values), Settings(SOUND))
    weights = flat_points(TensorsInMemory(tensors))
    reader = TensorReader(weights, {name: name for name in weights.names()}, mode, torch.device("cpu"))
    encoder = Conformer.read(reader, config, BACKBONE)
    reader.finish(ignored=spare_names(config))
    return encoder


def small_encoder(mode: Mode = "float32") -> Conformer:
    """Return a loaded random encoder of two layers."""
    return load_encoder(ENCODER, encoder_tensors(ENCODER), mode)


def depth_parts(*, tied: bool) -> dict[str, Tensor]:
    """Return the random tensors of a depth transformer and of the frame table, under their published names."""
    generator = torch.Generator().manual_seed(12)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    dim, inner, size = DEPTH_DIM, 512, DEPTH_DIM // 32
    parts = {
        "codebook_offsets": torch.arange(GROUPS) * CODES,
        "audio_loss_weights": torch.ones(GROUPS),
        "audio_embedding.embedding.weight": random(GROUPS * CODES, BACKBONE),
        "audio_embedding.embedding_norm.weight": random(BACKBONE),
        "audio_embedding.to_logits.weight": random(GROUPS * CODES, BACKBONE),
        "depth_linear.weight": random(GROUPS * dim, BACKBONE, scale=BACKBONE**-0.5),
        "depth_linear.bias": random(GROUPS * dim, scale=0.1),
    }
    for index in range(DEPTH_LAYERS):
        name = f"depthformer.layers.{index}."
        parts |= {
            f"{name}operator.qkv_proj.weight": random(dim + 16 * size, dim, scale=dim**-0.5),
            f"{name}operator.out_proj.weight": random(dim, dim, scale=dim**-0.5),
            f"{name}operator.bounded_attention.q_layernorm.weight": 1 + random(size, scale=0.3),
            f"{name}operator.bounded_attention.k_layernorm.weight": 1 + random(size, scale=0.3),
            f"{name}operator_norm.weight": 1 + random(dim, scale=0.1),
            f"{name}ffn_norm.weight": 1 + random(dim, scale=0.1),
            f"{name}feed_forward.w1.weight": random(inner, dim, scale=dim**-0.5),
            f"{name}feed_forward.w2.weight": random(dim, inner, scale=inner**-0.5),
            f"{name}feed_forward.w3.weight": random(inner, dim, scale=dim**-0.5),
        }
    for group in range(GROUPS):
        name, table = f"depth_embeddings.{group}.", random(CODES, dim)
        parts[f"{name}embedding.weight"] = table
        parts[f"{name}embedding_norm.weight"] = 1 + random(dim, scale=0.3)
        parts[f"{name}to_logits.weight"] = table.clone() if tied else random(CODES, dim)
    return parts

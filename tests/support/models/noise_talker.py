"""Small Qwen3-TTS models of random weights in memory: a talker and its codec, the same every time."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from voxlane.engine.models.loading import Mode
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.codec_config import MODEL_TYPE, CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import read_weights
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.weights.tensors import Blocks

GROUPS, CODES, TEXT = 16, 48, 160
END_SCALE = 1.2  # scale of the logit that ends speech

_DECODER = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "hidden_size": 48,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "max_position_embeddings": 1024,
    "num_code_groups": GROUPS,
}  # fmt: skip
TALKER: dict[str, object] = {
    "architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts",
    "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_model_size": "1b7", "tts_model_type": "voice_design",
    "im_start_token_id": 150, "im_end_token_id": 151, "tts_pad_token_id": 152, "tts_bos_token_id": 153,
    "tts_eos_token_id": 154,
    "talker_config": {
        **_DECODER, "vocab_size": CODES + 1024, "text_hidden_size": 32, "text_vocab_size": TEXT,
        "rope_scaling": {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        "codec_pad_id": 148, "codec_bos_id": 149, "codec_eos_token_id": 150, "codec_think_id": 154,
        "codec_nothink_id": 155, "codec_think_bos_id": 156, "codec_think_eos_id": 157,
        "codec_language_id": {"english": 50}, "spk_id": {}, "spk_is_dialect": {},
        "code_predictor_config": {**_DECODER, "vocab_size": CODES},
    },
}  # fmt: skip
_CODEC = {
    "codebook_dim": 16, "codebook_size": CODES, "decoder_dim": 32, "head_dim": 8, "hidden_size": 16,
    "intermediate_size": 32, "latent_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "num_quantizers": GROUPS, "sliding_window": 9, "upsample_rates": [4, 3],
    "upsampling_ratios": [2, 2],
}  # fmt: skip


def _noise(name: str, shape: tuple[int, ...], deviation: float) -> Tensor:
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=random) * deviation


class NoiseWeights:
    """A talker's weights as if read from a file."""

    def __init__(self, config: dict[str, object] = TALKER) -> None:
        self.config = config
        self._shapes = _shapes(config["talker_config"])  # type: ignore[arg-type]

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._shapes)

    def blocks(self, name: str) -> Blocks | None:
        """Return None: these weights are floats."""
        return None

    def tensor(self, name: str) -> Tensor:
        """Return a tensor; its numbers depend on its name alone."""
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return 1 + _noise(name, shape, 0.1)
        made = _noise(name, shape, 0.5 if "embedding" in name or len(shape) == 1 else shape[1] ** -0.5)
        if name.endswith("codec_head.weight"):
            made[150] *= END_SCALE
        return made


def _shapes(talker: dict[str, object]) -> dict[str, tuple[int, ...]]:
    inner = talker["code_predictor_config"]
    hidden, width = talker["hidden_size"], talker["text_hidden_size"]
    name = "talker.text_projection.linear_fc"
    shapes: dict[str, tuple[int, ...]] = {
        "talker.model.codec_embedding.weight": (talker["vocab_size"], hidden),
        "talker.model.text_embedding.weight": (talker["text_vocab_size"], width),
        f"{name}1.weight": (width, width),
        f"{name}1.bias": (width,),
        f"{name}2.weight": (hidden, width),
        f"{name}2.bias": (hidden,),
        "talker.codec_head.weight": (talker["vocab_size"], hidden),
    }  # type: ignore[dict-item]
    for group in range(GROUPS - 1):
        shapes[f"talker.code_predictor.model.codec_embedding.{group}.weight"] = (inner["vocab_size"], hidden)
        shapes[f"talker.code_predictor.lm_head.{group}.weight"] = (inner["vocab_size"], inner["hidden_size"])
    return shapes | _layers("talker.model.", talker) | _layers("talker.code_predictor.model.", inner)


def _layers(prefix: str, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    q, kv = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    own = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    layers = range(sizes["num_hidden_layers"])
    return {
        **{f"{prefix}layers.{layer}.{name}.weight": shape for layer in layers for name, shape in own.items()},
        f"{prefix}norm.weight": (hidden,),
    }


_LAST = "decoder.4.conv.weight"  # quiet enough that no sample is clipped


class _CodecNoise:
    parameters = 0

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith(("norm.weight", "cluster_usage")):
            return torch.ones(shape)
        deviation = 1.0 if name.endswith("embedding_sum") else 0.1
        if len(shape) > 1 and deviation < 1:
            deviation = (shape[0] * 2 if name.endswith(".1.conv.weight") else math.prod(shape[1:])) ** -0.5
            deviation *= 0.3 if ".conv2." in name or name == _LAST else 1.0
        return _noise(name, shape, deviation)


def noise_talker(mode: Mode = "float32", device: str | torch.device = "cpu") -> Qwen3TTS:
    """Return a talker that speaks random frames."""
    return Qwen3TTS.load(NoiseWeights(), mode, device=device)


def noise_codec() -> Qwen3TTSCodec:
    """Return a codec that decodes a frame to 48 samples."""
    config = CodecConfig.from_dict(
        {"model_type": MODEL_TYPE, "decoder_config": _CODEC, "decode_upsample_rate": 48, "output_sample_rate": 600}
    )
    return Qwen3TTSCodec(config, read_weights(_CodecNoise(), config, torch.float32))

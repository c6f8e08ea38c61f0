"""The numbers of a Qwen3-TTS 12 Hz tokenizer's decoder, read from its config.json.

Every key is either used, known not to change decoding, or refused by name: a variant that would sound wrong does not
load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxlane.engine.models.settings import Settings

MODEL_TYPE = "qwen3_tts_tokenizer_12hz"

_FILE_KEYS = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "model_type"}
_TOP_KEYS = {
    *_FILE_KEYS, "decoder_config", "output_sample_rate", "decode_upsample_rate",
    "encoder_config", "encoder_valid_num_quantizers", "input_sample_rate", "encode_downsample_rate",  # the other half
}  # fmt: skip
_USED_KEYS = {
    "attention_bias", "codebook_dim", "codebook_size", "decoder_dim", "head_dim", "hidden_act", "hidden_size",
    "intermediate_size", "latent_dim", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "num_quantizers", "num_semantic_quantizers", "rms_norm_eps", "rope_theta", "sliding_window", "upsample_rates",
    "upsampling_ratios",
}  # fmt: skip
_UNUSED_KEYS = {
    *_FILE_KEYS,
    *("attention_dropout", "initializer_range", "layer_scale_initial_scale"),  # training's
    "max_position_embeddings",  # rotation is relative, and no frame looks further back than the window
    *("semantic_codebook_size", "vector_quantization_hidden_dimension"),  # the package does not read them either
}
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """The decoder of one checkpoint."""

    groups: int  # codes a frame
    codebook_size: int
    codebook_dim: int  # of a frame's summed codes; each codebook has half of it
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    window: int  # frames that a frame's attention sees, itself included
    theta: float
    norm_eps: float
    ratios: tuple[int, ...]  # of the first upsampling stages, which keep latent_dim
    rates: tuple[int, ...]  # of the last ones, which halve decoder_dim each
    decoder_dim: int
    sample_rate: int

    @property
    def frame_samples(self) -> int:
        """Samples that one frame becomes."""
        return math.prod(self.ratios) * math.prod(self.rates)

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> CodecConfig:
        """Read Hugging Face's config.json, or raise ModelConfigError that names the key."""
        top = Settings(values)
        if top.text("model_type") != MODEL_TYPE:
            raise top.refuse("model_type", f"{top.text('model_type')!r:.60} is not {MODEL_TYPE}")
        decoder = top.section("decoder_config")
        top.known_only(_TOP_KEYS)
        decoder.known_only(_USED_KEYS, _UNUSED_KEYS)
        hidden_size = decoder.integer("hidden_size", 1024, maximum=_MAX_SIZE)
        heads, kv_heads, head_dim = _head_sizes(decoder, hidden_size)
        if decoder.text("hidden_act", "silu") != "silu":
            raise decoder.refuse("hidden_act", "only 'silu' is supported")
        if decoder.integer("num_semantic_quantizers", 1) != 1:
            raise decoder.refuse("num_semantic_quantizers", "only 1 is supported")
        config = cls(
            groups=decoder.integer("num_quantizers", 16, minimum=2, maximum=64),
            codebook_size=decoder.integer("codebook_size", 2048, maximum=1 << 20),
            codebook_dim=decoder.integer("codebook_dim", minimum=2, maximum=_MAX_SIZE),
            latent_dim=decoder.integer("latent_dim", 1024, maximum=_MAX_SIZE),
            hidden_size=hidden_size,
            intermediate_size=decoder.integer("intermediate_size", 3072, maximum=_MAX_SIZE),
            layers=decoder.integer("num_hidden_layers", 8, maximum=256),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            attention_bias=decoder.flag("attention_bias", default=False),
            window=decoder.integer("sliding_window", 72, maximum=1 << 16),
            theta=decoder.number("rope_theta", 10_000.0),
            norm_eps=decoder.number("rms_norm_eps", 1e-5),
            ratios=_factors(decoder, "upsampling_ratios", (2, 2)),
            rates=_factors(decoder, "upsample_rates", (8, 5, 4, 3)),
            decoder_dim=decoder.integer("decoder_dim", 1536, maximum=_MAX_SIZE),
            sample_rate=top.integer("output_sample_rate", 24_000, maximum=1_000_000),
        )
        if config.decoder_dim >> len(config.rates) == 0:
            raise decoder.refuse("decoder_dim", f"{config.decoder_dim} cannot be halved {len(config.rates)} times")
        if top.integer("decode_upsample_rate", 1920) != config.frame_samples:
            raise top.refuse("decode_upsample_rate", f"the stages of the decoder make {config.frame_samples}")
        return config


def _head_sizes(decoder: Settings, hidden_size: int) -> tuple[int, int, int]:
    heads = decoder.integer("num_attention_heads", 16, maximum=1024)
    kv_heads = decoder.integer("num_key_value_heads", 16, maximum=1024)
    if heads % kv_heads:
        raise decoder.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    head_dim = decoder.integer("head_dim", hidden_size // heads, maximum=1024)
    if head_dim % 2:
        raise decoder.refuse("head_dim", f"{head_dim} is odd")
    return heads, kv_heads, head_dim


def _factors(decoder: Settings, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = decoder.value(key)
    if value is None:
        return default
    if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item < 1000 for item in value):
        raise decoder.refuse(key, f"{value!r:.60} is not a list of factors")
    return tuple(value)

"""The numbers of a Qwen3-TTS 12 Hz tokenizer's encoder, read from its config.json: those of transformers' MimiConfig.

Every key is either used, known not to change encoding, or refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxlane.engine.models.settings import Settings

_STRIDE = 2  # of the last halving of the rate

_FIXED: dict[str, tuple[object, ...]] = {
    "audio_channels": (1,), "hidden_act": ("gelu",), "num_semantic_quantizers": (1,), "pad_mode": ("constant",),
    "use_causal_conv": (True,), "use_streaming": (False,),
}  # fmt: skip
"""Keys with one supported value: the published one, which is also the default."""
_USED_KEYS = {
    "_frame_rate", "attention_bias", "codebook_dim", "codebook_size", "compress", "dilation_growth_rate", "frame_rate",
    "head_dim", "hidden_size", "intermediate_size", "kernel_size", "last_kernel_size", "norm_eps",
    "num_attention_heads", "num_filters", "num_hidden_layers", "num_key_value_heads", "num_quantizers",
    "num_residual_layers", "residual_kernel_size", "rope_theta", "sampling_rate", "upsampling_ratios",
    "use_conv_shortcut", "vector_quantization_hidden_dimension",
}  # fmt: skip
_UNUSED_KEYS = {
    *("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "model_type"),
    *("attention_dropout", "initializer_range", "layer_scale_initial_scale"),  # training's
    *("trim_right_ratio", "upsample_groups"),  # the way back to sound
    "max_position_embeddings",  # rotation is relative
    "use_cache",  # a clip is encoded in one go
    # The package's transformers ignores this and lets every position attend to all before it; later ones honour it.
    "sliding_window",
}
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The encoder of one checkpoint."""

    groups: int  # codes a frame that are used
    quantisers: int  # that the file holds
    codebook_size: int
    codebook_dim: int
    hidden_size: int
    ratios: tuple[int, ...]  # by which the convolutions shorten a clip, the first one first
    filters: int  # channels before the first of them; each doubles them
    residual_layers: int  # before each of them
    kernel: int
    last_kernel: int
    residual_kernel: int
    dilation_growth: int
    compress: int
    shortcut: bool
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    attention_bias: bool
    theta: float
    norm_eps: float
    sample_rate: int

    @property
    def frame_samples(self) -> int:
        """Samples that become one frame."""
        return math.prod(self.ratios) * _STRIDE

    @property
    def projected(self) -> bool:
        """Whether vectors are projected before they are looked up."""
        return self.codebook_dim != self.hidden_size

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> EncoderConfig:
        """Read a tokenizer's config.json, or raise ModelConfigError that names the key."""
        top = Settings(values)
        section = top.section("encoder_config")
        section.known_only(_USED_KEYS, _UNUSED_KEYS, _FIXED)
        hidden = section.integer("hidden_size", 512, maximum=_MAX_SIZE)
        heads, kv_heads, head_dim = _head_sizes(section, hidden)
        quantisers = section.integer("num_quantizers", 32, minimum=2, maximum=256)
        config = cls(
            groups=top.integer("encoder_valid_num_quantizers", 16, minimum=2, maximum=quantisers),
            quantisers=quantisers,
            codebook_size=section.integer("codebook_size", 2048, maximum=1 << 16),
            codebook_dim=section.integer("codebook_dim", 256, maximum=_MAX_SIZE),
            hidden_size=hidden,
            ratios=_ratios(section),
            filters=section.integer("num_filters", 64, maximum=_MAX_SIZE),
            residual_layers=section.integer("num_residual_layers", 1, minimum=0, maximum=16),
            kernel=section.integer("kernel_size", 7, maximum=1024),
            last_kernel=section.integer("last_kernel_size", 3, maximum=1024),
            residual_kernel=section.integer("residual_kernel_size", 3, maximum=1024),
            dilation_growth=section.integer("dilation_growth_rate", 2, maximum=64),
            compress=section.integer("compress", 2, maximum=_MAX_SIZE),
            shortcut=section.flag("use_conv_shortcut", default=False),
            layers=section.integer("num_hidden_layers", 8, maximum=256),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=section.integer("intermediate_size", 2048, maximum=_MAX_SIZE),
            attention_bias=section.flag("attention_bias", default=False),
            theta=section.number("rope_theta", 10_000.0),
            norm_eps=section.number("norm_eps", 1e-5),
            sample_rate=top.integer("input_sample_rate", 24_000, maximum=1_000_000),
        )
        _check(top, section, config)
        return config


def _check(top: Settings, section: Settings, config: EncoderConfig) -> None:
    """Raise ModelConfigError where two keys contradict each other."""
    if config.filters < config.compress:
        raise section.refuse("compress", f"{config.compress} leaves nothing of num_filters {config.filters}")
    if section.integer("vector_quantization_hidden_dimension", 256, maximum=_MAX_SIZE) != config.codebook_dim:
        raise section.refuse("vector_quantization_hidden_dimension", f"must be codebook_dim, {config.codebook_dim}")
    if section.integer("sampling_rate", 24_000) != config.sample_rate:
        raise section.refuse("sampling_rate", f"must be input_sample_rate, {config.sample_rate}")
    if top.integer("encode_downsample_rate", 1920) != config.frame_samples:
        raise top.refuse("encode_downsample_rate", f"the stages of the encoder make {config.frame_samples}")
    before = math.ceil(config.sample_rate * _STRIDE / config.frame_samples)
    for key in ("frame_rate", "_frame_rate"):
        if int(before / section.number(key, config.sample_rate / config.frame_samples)) != _STRIDE:
            raise section.refuse(key, f"must be half of {before}, the rate before the last stage")


def _head_sizes(section: Settings, hidden_size: int) -> tuple[int, int, int]:
    heads = section.integer("num_attention_heads", 8, maximum=1024)
    kv_heads = section.integer("num_key_value_heads", 8, maximum=1024)
    if heads % kv_heads:
        raise section.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    head_dim = section.integer("head_dim", hidden_size // heads, maximum=1024)
    if head_dim % 2:
        raise section.refuse("head_dim", f"{head_dim} is odd")
    return heads, kv_heads, head_dim


def _ratios(section: Settings) -> tuple[int, ...]:
    value = section.value("upsampling_ratios") or [8, 6, 5, 4]
    if not isinstance(value, list) or not all(type(item) is int and 0 < item < 1000 for item in value):
        raise section.refuse("upsampling_ratios", f"{value!r:.60} is not a list of factors")
    return tuple(reversed(value))  # the file has the decoder's order

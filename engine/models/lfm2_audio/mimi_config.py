"""The numbers of Mimi's decoder, read from the keys of transformers' MimiConfig.

Every key is either used, known not to change decoding, or refused by name. The file that lies beside LFM2-Audio has no
configuration of its own: its numbers are the defaults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from voxlane.engine.models.settings import Settings

MODEL_TYPE = "mimi"
STRIDE = 2  # positions of the transformer a frame

_FIXED: dict[str, tuple[object, ...]] = {
    "audio_channels": (1,), "hidden_act": ("gelu",), "num_semantic_quantizers": (1,), "pad_mode": ("constant",),
    "trim_right_ratio": (1.0,), "use_causal_conv": (True,), "use_conv_shortcut": (False,),
}  # fmt: skip
"""Keys with one supported value: the published one, which is also the default."""
_USED_KEYS = {
    "_frame_rate", "attention_bias", "codebook_dim", "codebook_size", "compress", "dilation_growth_rate", "frame_rate",
    "head_dim", "hidden_size", "intermediate_size", "kernel_size", "last_kernel_size", "norm_eps",
    "num_attention_heads", "num_filters", "num_hidden_layers", "num_key_value_heads", "num_quantizers",
    "num_residual_layers", "residual_kernel_size", "rope_parameters", "rope_theta", "sampling_rate", "sliding_window",
    "upsample_groups", "upsampling_ratios", "vector_quantization_hidden_dimension",
}  # fmt: skip
_UNUSED_KEYS = {
    *("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "model_type"),
    *("attention_dropout", "initializer_range", "layer_scale_initial_scale"),  # training's
    *("normalize", "use_streaming"),  # the encoder's
    "max_position_embeddings",  # rotation is relative, and no position looks further back than the window
    *("tie_word_embeddings", "use_cache"),
}
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class MimiConfig:
    """The decoder of one checkpoint."""

    quantisers: int  # codebooks that the file holds
    codebook_size: int
    codebook_dim: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    window: int  # positions that a position attends to, itself included
    theta: float
    norm_eps: float
    ratios: tuple[int, ...]  # of the upsampling convolutions, the first one first
    filters: int  # channels after the last of them; each halves them
    residual_layers: int  # after each of them
    kernel: int
    last_kernel: int
    residual_kernel: int
    dilation_growth: int
    compress: int
    sample_rate: int

    @property
    def frame_samples(self) -> int:
        """Samples that one frame becomes."""
        return math.prod(self.ratios) * STRIDE

    @property
    def projected(self) -> bool:
        """Whether summed codes are projected to the hidden size."""
        return self.codebook_dim != self.hidden_size

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> MimiConfig:
        """Read a config.json, or raise ModelConfigError that names the key."""
        settings = Settings(values)
        if settings.text("model_type", MODEL_TYPE) != MODEL_TYPE:
            raise settings.refuse("model_type", f"{settings.text('model_type')!r:.60} is not {MODEL_TYPE}")
        settings.known_only(_USED_KEYS, _UNUSED_KEYS, _FIXED)
        hidden = settings.integer("hidden_size", 512, maximum=_MAX_SIZE)
        heads, kv_heads, head_dim = _head_sizes(settings, hidden)
        config = cls(
            quantisers=settings.integer("num_quantizers", 32, minimum=2, maximum=256),
            codebook_size=settings.integer("codebook_size", 2048, maximum=1 << 16),
            codebook_dim=settings.integer("codebook_dim", 256, maximum=_MAX_SIZE),
            hidden_size=hidden,
            intermediate_size=settings.integer("intermediate_size", 2048, maximum=_MAX_SIZE),
            layers=settings.integer("num_hidden_layers", 8, maximum=256),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            attention_bias=settings.flag("attention_bias", default=False),
            window=settings.integer("sliding_window", 250, maximum=1 << 16),
            theta=_theta(settings),
            norm_eps=settings.number("norm_eps", 1e-5),
            ratios=_ratios(settings),
            filters=settings.integer("num_filters", 64, maximum=_MAX_SIZE),
            residual_layers=settings.integer("num_residual_layers", 1, minimum=0, maximum=16),
            kernel=settings.integer("kernel_size", 7, maximum=1024),
            last_kernel=settings.integer("last_kernel_size", 3, maximum=1024),
            residual_kernel=settings.integer("residual_kernel_size", 3, maximum=1024),
            dilation_growth=settings.integer("dilation_growth_rate", 2, maximum=64),
            compress=settings.integer("compress", 2, maximum=_MAX_SIZE),
            sample_rate=settings.integer("sampling_rate", 24_000, maximum=1_000_000),
        )
        _check(settings, config)
        return config


def _check(settings: Settings, config: MimiConfig) -> None:
    """Raise ModelConfigError where two keys contradict each other."""
    if config.filters < config.compress:
        raise settings.refuse("compress", f"{config.compress} leaves nothing of num_filters {config.filters}")
    if settings.integer("vector_quantization_hidden_dimension", 256, maximum=_MAX_SIZE) != config.codebook_dim:
        raise settings.refuse("vector_quantization_hidden_dimension", f"must be codebook_dim, {config.codebook_dim}")
    if settings.integer("upsample_groups", 512) != config.hidden_size:
        raise settings.refuse("upsample_groups", f"must be hidden_size, {config.hidden_size}")
    before = math.ceil(config.sample_rate * STRIDE / config.frame_samples)
    for key in ("frame_rate", "_frame_rate"):
        if int(before / settings.number(key, config.sample_rate / config.frame_samples)) != STRIDE:
            raise settings.refuse(key, f"must be half of {before}, the rate before the last stage")


def _head_sizes(settings: Settings, hidden_size: int) -> tuple[int, int, int]:
    heads = settings.integer("num_attention_heads", 8, maximum=1024)
    kv_heads = settings.integer("num_key_value_heads", 8, maximum=1024)
    if heads % kv_heads:
        raise settings.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    head_dim = settings.integer("head_dim", hidden_size // heads, maximum=1024)
    if head_dim % 2:
        raise settings.refuse("head_dim", f"{head_dim} is odd")
    return heads, kv_heads, head_dim


def _theta(settings: Settings) -> float:
    """Return rope_theta, which newer files have in rope_parameters."""
    section = settings.section("rope_parameters")
    section.known_only({"rope_theta"}, (), {"rope_type": ("default",)})
    return section.number("rope_theta", settings.number("rope_theta", 10_000.0))


def _ratios(settings: Settings) -> tuple[int, ...]:
    value = settings.value("upsampling_ratios")
    if value is None:
        return 8, 6, 5, 4
    if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item < 1000 for item in value):
        raise settings.refuse("upsampling_ratios", f"{value!r:.60} is not a list of factors")
    return tuple(value)

"""What distinguishes one decoder-only model from another, read from Hugging Face's config.json keys.

Every key that changes the result of Llama, Qwen2, Qwen3, Gemma 3 or LFM2 is honoured or refused by name; keys that the
architecture does not read (training settings, a fine-tuner's notes) are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from voxlane.engine.models.rotary import Rope, parse_rope
from voxlane.engine.models.settings import Settings
from voxlane.engine.models.spec import AttentionLayer, ConvolutionLayer, ExpertSizes, Layer, ModelSpec

MAX_CONTEXT_TOKENS = 2**20
"""Longest context that gets position tables: a million tokens of 128 dimensions are 512 MiB of tables."""

_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture fixes whatever its config says, and the defaults of keys that its configs may omit."""

    qk_norm: bool = False
    gemma: bool = False
    qkv_bias: bool | None = None  # None: attention_bias decides, for the output projection as well
    mlp_bias: bool = False  # whether the key of that name is read
    hybrid: bool = False  # some layers have a short convolution in the place of attention
    experts: bool = False  # the feed-forward networks after the first few are experts
    window: Literal["never", "upper_layers", "pattern"] = "never"
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    vocab_size: int | None = None
    context_tokens: int = 2048
    tied: bool = False
    theta: float = 10_000.0
    eps_key: str = "rms_norm_eps"
    eps: float = 1e-6


_LFM2 = _Family(
    qk_norm=True,
    qkv_bias=False,
    hybrid=True,
    heads=32,
    kv_heads=8,
    vocab_size=65_536,
    context_tokens=128_000,
    tied=True,
    theta=1_000_000.0,
    eps_key="norm_eps",
    eps=1e-5,
)

_FAMILIES = {
    "llama": _Family(mlp_bias=True),
    "qwen2": _Family(qkv_bias=True, window="upper_layers", context_tokens=32_768),
    "qwen3": _Family(qk_norm=True, window="upper_layers", head_dim=128, context_tokens=32_768),
    "gemma3_text": _Family(
        qk_norm=True,
        gemma=True,
        window="pattern",
        heads=8,
        kv_heads=4,
        head_dim=256,
        vocab_size=262_208,
        context_tokens=131_072,
        tied=True,
        theta=1_000_000.0,
    ),
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, experts=True),
}

# Keys that change the result in a way that is not implemented, and the values that are allowed all the same.
_REFUSED: dict[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (),
    "use_bidirectional_attention": (False,),
}

QWEN3_KEYS = frozenset({
    *_REFUSED, "attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size", "layer_types",
    "max_position_embeddings", "max_window_layers", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "original_max_position_embeddings", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "sliding_window", "tie_word_embeddings", "use_sliding_window", "vocab_size",
})  # fmt: skip
"""The keys of a Qwen3 that are read. Checkpoints with a Qwen3 inside refuse all others; chat models ignore them."""


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The convolutions of a model that has them in some layers in the place of attention."""

    convolutions: frozenset[int]  # those layers
    taps: int  # tokens that a convolution sees, the newest included
    conv_bias: bool  # of the convolution and of the projections around it


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts in the place of a layer's feed-forward network."""

    count: int
    chosen: int  # of a token
    inner: int
    dense_layers: int  # the first layers, which have no experts
    biased: bool  # a bias of each expert takes part in the choice
    normed: bool  # a token's weights sum to one
    scale: float  # of all weights


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The flags and sizes of one model. Sizes are consistent: from_dict has checked them."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_eps: float
    activation: Literal["silu", "gelu_tanh"]
    tied: bool  # the output head is the embedding table
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMS norm over each head of q and k before the rotation
    gemma: bool  # 1 + w norms, norms after attention and MLP too, embeddings times sqrt(hidden_size)
    attention_scale: float
    final_softcap: float  # 0: none
    windows: tuple[int, ...]  # per layer; 0: full attention
    ropes: tuple[Rope, ...]  # per layer; equal ones are the same object
    hybrid: Hybrid | None = None
    experts: Experts | None = None

    @property
    def spec(self) -> ModelSpec:
        """The model's sizes."""
        rows = sum(map(self._mixing_rows, range(self.layers))) + sum(map(self._feeding_rows, range(self.layers)))
        own = self.experts
        return ModelSpec(
            layers=tuple(map(self._layer, range(self.layers))),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            context_tokens=self.context_tokens,
            parameters=self.hidden_size * (rows + self.vocab_size * (1 if self.tied else 2)),
            activation=self.activation,
            tied=self.tied,
            experts=None if own is None else ExpertSizes(own.count, own.chosen, own.inner),
        )

    def _layer(self, index: int) -> Layer:
        if self.hybrid is not None and index in self.hybrid.convolutions:
            return ConvolutionLayer(self.hidden_size, self.hybrid.taps)
        heads = (self.heads, self.kv_heads, self.head_dim, self.attention_scale)
        return AttentionLayer(*heads, self.windows[index], self.qk_norm)

    def _mixing_rows(self, index: int) -> int:
        """Return how many rows of hidden_size numbers the matrices of attention or convolution have."""
        if self.hybrid is not None and index in self.hybrid.convolutions:
            return 4 * self.hidden_size + self.hybrid.taps
        return (2 * self.heads + 2 * self.kv_heads) * self.head_dim

    def _feeding_rows(self, index: int) -> int:
        """Return how many rows of hidden_size numbers the matrices after that have."""
        if self.experts is None or index < self.experts.dense_layers:
            return 3 * self.intermediate_size
        return self.experts.count * (3 * self.experts.inner + 1)

    @classmethod
    def from_dict(cls, config: dict[str, object]) -> DecoderConfig:
        """Return the configuration in `config` (Hugging Face's keys), or raise ModelConfigError naming the key."""
        return cls.from_settings(*_text_model(Settings(config)))

    @classmethod
    def from_settings(cls, model_type: str, settings: Settings) -> DecoderConfig:
        """Return the configuration of a supported family from the section that holds its keys."""
        family = _FAMILIES[model_type]
        for key, harmless in _REFUSED.items():
            if key in settings and settings.value(key) not in harmless:
                raise settings.refuse(key, "not supported")
        hidden_size = settings.integer("hidden_size", maximum=2**17)
        heads, kv_heads, head_dim = _head_sizes(settings, family, hidden_size)
        windows = _windows(settings, family, settings.integer("num_hidden_layers", maximum=1024))
        context_tokens, ropes = _ropes(settings, family, windows)
        attention_bias = settings.flag("attention_bias", default=False)
        query_scalar = settings.number("query_pre_attn_scalar", 256.0) if family.gemma else float(head_dim)
        softcap = settings.number("final_logit_softcapping") if "final_logit_softcapping" in settings else 0.0
        return cls(
            model_type=model_type,
            vocab_size=settings.integer("vocab_size", family.vocab_size, maximum=2**24),
            hidden_size=hidden_size,
            intermediate_size=_intermediate_size(settings, model_type),
            layers=len(windows),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            context_tokens=context_tokens,
            norm_eps=settings.number(family.eps_key, family.eps),
            activation=_activation(settings, family),
            tied=_tied(settings, family),
            qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            out_bias=attention_bias if family.qkv_bias is None else False,
            mlp_bias=family.mlp_bias and settings.flag("mlp_bias", default=False),
            qk_norm=family.qk_norm,
            gemma=family.gemma,
            attention_scale=query_scalar**-0.5,
            final_softcap=softcap if family.gemma else 0.0,
            windows=windows,
            ropes=ropes,
            hybrid=_hybrid(settings, len(windows)) if family.hybrid else None,
            experts=_experts(settings, len(windows)) if family.experts else None,
        )


def _text_model(settings: Settings) -> tuple[str, Settings]:
    model_type = settings.text("model_type")
    if model_type == "gemma3":  # with a vision tower beside the decoder: the decoder's keys are one level down
        text = settings.section("text_config")
        return "gemma3_text", text if text.names() else settings
    if model_type not in _FAMILIES:
        raise settings.refuse("model_type", f"{model_type!r:.60} is not one of {', '.join(_FAMILIES)}")
    return model_type, settings


def _head_sizes(settings: Settings, family: _Family, hidden_size: int) -> tuple[int, int, int]:
    heads = settings.integer("num_attention_heads", family.heads, maximum=1024)
    kv_heads = settings.integer("num_key_value_heads", family.kv_heads or heads, maximum=1024)
    if heads % kv_heads:
        raise settings.refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    if family.head_dim is None and "head_dim" not in settings and hidden_size % heads:
        raise settings.refuse("num_attention_heads", f"{heads} does not divide hidden_size {hidden_size}")
    head_dim = settings.integer("head_dim", family.head_dim or hidden_size // heads, minimum=4, maximum=256)
    if head_dim % 4:
        raise settings.refuse("head_dim", f"{head_dim} is not a multiple of 4")
    return heads, kv_heads, head_dim


def _activation(settings: Settings, family: _Family) -> Literal["silu", "gelu_tanh"]:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if family.gemma else ("hidden_act", "silu")
    name = settings.text(key, default)
    if family.hybrid and name != "silu":
        raise settings.refuse(key, f"{name!r:.60} is not silu")
    if name not in _ACTIVATIONS:
        raise settings.refuse(key, f"{name!r:.60} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _tied(settings: Settings, family: _Family) -> bool:
    key = "tie_embedding" if family.hybrid and "tie_embedding" in settings else "tie_word_embeddings"
    return settings.flag(key, default=family.tied)


def _intermediate_size(settings: Settings, model_type: str) -> int:
    """Return how many rows a gate has; LFM2's dense models have two thirds of what they name, rounded up."""
    if model_type != "lfm2":
        return settings.integer("intermediate_size", maximum=2**20)
    key = "block_ff_dim" if "block_ff_dim" in settings else "intermediate_size"
    size = settings.integer(key, maximum=2**20)
    if not settings.flag("block_auto_adjust_ff_dim", default=True):
        return size
    multiple = settings.integer("block_multiple_of", 256, maximum=2**16)
    size = int(settings.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
    return -(-size // multiple) * multiple


def _hybrid(settings: Settings, layers: int) -> Hybrid:
    """Return which layers have convolutions, and their sizes."""
    if "layer_types" in settings:
        kinds = settings.texts("layer_types")
        if len(kinds) != layers or not {"full_attention", "conv"}.issuperset(kinds):
            raise settings.refuse("layer_types", f"needs full_attention or conv for each of {layers} layers")
        attention = {index for index, kind in enumerate(kinds) if kind == "full_attention"}
    else:
        attention = set(settings.integers("full_attn_idxs"))
    convolutions = frozenset(range(layers)) - attention
    if not attention or not attention.issubset(range(layers)):
        raise settings.refuse("full_attn_idxs", f"needs at least one of the {layers} layers, and no other")
    taps = settings.integer("conv_L_cache", 3, minimum=2, maximum=64)
    return Hybrid(convolutions, taps, settings.flag("conv_bias", default=False))


def _experts(settings: Settings, layers: int) -> Experts:
    count = settings.integer("num_experts", 32, maximum=4096)
    return Experts(
        count=count,
        chosen=settings.integer("num_experts_per_tok", 4, maximum=count),
        inner=settings.integer("moe_intermediate_size", 1792, maximum=2**20),
        dense_layers=settings.integer("num_dense_layers", 2, minimum=0, maximum=layers),
        biased=settings.flag("use_expert_bias", default=True),
        normed=settings.flag("norm_topk_prob", default=True),
        scale=settings.number("routed_scaling_factor", 1.0),
    )


def _windows(settings: Settings, family: _Family, layers: int) -> tuple[int, ...]:
    """Return each layer's sliding window; 0: full attention."""
    if family.hybrid:
        return (0,) * layers
    if family.window == "never":
        for key in ("sliding_window", "layer_types"):
            if key in settings:
                raise settings.refuse(key, "this architecture has no sliding window")
        return (0,) * layers
    window = 0
    if family.gemma or settings.flag("use_sliding_window", default=False):
        window = settings.integer("sliding_window", 4096 if family.gemma else None)
    if "layer_types" in settings:
        kinds = settings.texts("layer_types")
        if len(kinds) != layers or not {"full_attention", "sliding_attention"}.issuperset(kinds):
            raise settings.refuse(
                "layer_types", f"needs full_attention or sliding_attention for each of {layers} layers"
            )
        sliding = [kind == "sliding_attention" for kind in kinds]
    elif family.window == "pattern":
        pattern = settings.integer("sliding_window_pattern", 6)
        sliding = [(index + 1) % pattern != 0 for index in range(layers)]
    else:
        first = settings.integer("max_window_layers", 28, minimum=0)
        sliding = [window > 0 and index >= first for index in range(layers)]
    if any(sliding) and not window:
        raise settings.refuse("sliding_window", "switched off, yet layer_types has sliding layers")
    return tuple(window if slides else 0 for slides in sliding)


def _ropes(settings: Settings, family: _Family, windows: tuple[int, ...]) -> tuple[int, tuple[Rope, ...]]:
    """Return the context length and each layer's rotation, from transformers 4 spelling of the keys or 5's."""
    context_tokens = settings.integer("max_position_embeddings", family.context_tokens, maximum=MAX_CONTEXT_TOKENS)
    original = settings.integer("original_max_position_embeddings", context_tokens)
    theta = settings.number("rope_theta", family.theta)
    old, new = settings.section("rope_scaling"), settings.section("rope_parameters")
    nested = "full_attention" in new or "sliding_attention" in new
    if nested != family.gemma and new.names():
        wanted = "one entry per layer type" if family.gemma else "one entry for all layers"
        raise settings.refuse("rope_parameters", f"this architecture needs {wanted}")
    if family.gemma:
        local_theta = settings.number("rope_local_base_freq", 10_000.0)
        local = parse_rope(new.section("sliding_attention"), local_theta, context_tokens, original)
        full = parse_rope(old if old.names() else new.section("full_attention"), theta, context_tokens, original)
        return context_tokens, tuple(local if window else full for window in windows)
    rope = parse_rope(old if old.names() else new, theta, context_tokens, original)
    if rope.kind == "yarn":
        # Qwen's model cards add yarn without raising max_position_embeddings: the factor counts.
        stretched = int(rope.original_context * rope.factor)
        context_tokens = max(context_tokens, min(stretched, MAX_CONTEXT_TOKENS))
    return context_tokens, (rope,) * len(windows)

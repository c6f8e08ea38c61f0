"""GGUF's tensor names and settings as Hugging Face's names and config keys, for the architectures we run.

It reads a checked header. The only tensor data it reads is `rope_freqs`, which stands for a config setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.gguf_header import Header, TensorInfo

T = TypeVar("T")

_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LFM2_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",  # the norm before the output, whatever its name says
    "output_norm": "model.embedding_norm",
    "output": "lm_head",
}
_LFM2_LAYER = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_LFM2_ROUTER = {"ffn_gate_inp": "feed_forward.gate"}
_LFM2_EXPERTS = {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one architecture's files differ from the plain Llama layout."""

    model_type: str
    class_name: str
    layer_names: dict[str, str] = field(default_factory=lambda: dict(_LAYER))
    global_names: dict[str, str] = field(default_factory=lambda: dict(_GLOBAL))
    expert_names: dict[str, str] = field(default_factory=dict)  # of tensors that hold all experts of a layer
    interleaved: bool = False  # q and k rows are stored for interleaved RoPE
    norm_offset: float = 0.0  # added to every norm weight when the file was written


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _LAYER | _QK_NORM),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _LAYER | _QK_NORM | _SANDWICH, norm_offset=1.0),
    "lfm2": Architecture("lfm2", "Lfm2ForCausalLM", _LFM2_LAYER, _LFM2_GLOBAL),
    "lfm2moe": Architecture(
        "lfm2_moe", "Lfm2MoeForCausalLM", _LFM2_LAYER | _LFM2_ROUTER, _LFM2_GLOBAL, expert_names=_LFM2_EXPERTS
    ),
}

_GEMMA3_27B_LAYERS = 62  # the only Gemma 3 with a query scale other than the head's width; the file does not tell
_GEMMA3_PATTERN = 6  # every sixth layer has full attention; files of the first year omit the setting
_GEMMA3_LOCAL_THETA = 10_000.0
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

_SIGMOID_GATING = 2  # how a router's scores become weights
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+(?:\.[a-z_]+)?)\.(weight|bias)")
_GLOBAL_NAME = re.compile(r"([a-z_]+)\.(weight|bias)")


class MetadataFields:
    """Typed access to a header's metadata; a missing or mistyped field is a WeightsError that names it."""

    def __init__(self, header: Header) -> None:
        self._header = header

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self._get(key, default, lambda value: value if isinstance(value, str) else None)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; an array stands for its value if all its items are equal."""
        return self._get(key, default, _integer)

    def integers(self, key: str) -> list[int]:
        """Return an array of whole numbers."""
        return self._get(key, None, _integers)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        return self._get(key, default, _number)

    def has(self, key: str) -> bool:
        """Return whether the field exists."""
        return key in self._header.metadata

    def _get(self, key: str, default: T | None, convert: Callable[[object], T | None]) -> T:
        if key not in self._header.metadata:
            if default is None:
                raise WeightsError(self._header.path, f"metadata {key!r} is missing")
            return default
        value = convert(self._header.metadata[key])
        if value is None:
            raise WeightsError(self._header.path, f"metadata {key!r} has an unusable value")
        return value


def architecture_of(header: Header) -> Architecture:
    """Return the file's entry in ARCHITECTURES, or raise WeightsError."""
    fields = MetadataFields(header)
    name = fields.text("general.architecture")
    if name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise WeightsError(header.path, f"architecture {name!r} is not supported (supported: {supported})")
    if fields.integer("split.count", 1) > 1:
        raise WeightsError(header.path, "one part of a split model: merge the parts with llama-gguf-split first")
    if fields.integer(f"{name}.expert_count", 0) > 0 and not ARCHITECTURES[name].expert_names:
        raise WeightsError(header.path, f"mixture-of-experts {name!r} models are not supported")
    return ARCHITECTURES[name]


def named_tensors(header: Header) -> dict[str, TensorInfo]:
    """Return the tensors of the file under Hugging Face's names."""
    architecture = architecture_of(header)
    found: dict[str, TensorInfo] = {}
    for name, info in header.tensors.items():
        if name == "rope_freqs.weight":
            continue  # a setting, not a weight: config() reads it
        layer, plain = _LAYER_NAME.fullmatch(name), _GLOBAL_NAME.fullmatch(name)
        if layer and layer[2] in architecture.layer_names:
            found[f"model.layers.{layer[1]}.{architecture.layer_names[layer[2]]}.{layer[3]}"] = info
        elif layer and architecture.expert_names and f"{layer[2]}.{layer[3]}" == "exp_probs_b.bias":
            found[f"model.layers.{layer[1]}.feed_forward.expert_bias"] = info
        elif layer and layer[2] in architecture.expert_names and len(info.shape) == 3:
            part = f"{architecture.expert_names[layer[2]]}.{layer[3]}"
            for number, expert in enumerate(_parts(info)):
                found[f"model.layers.{layer[1]}.feed_forward.experts.{number}.{part}"] = expert
        elif plain and plain[1] in architecture.global_names:
            found[f"{architecture.global_names[plain[1]]}.{plain[2]}"] = info
        else:
            raise WeightsError(header.path, f"tensor {name!r} does not belong to a {architecture.model_type} model")
    return found


def _parts(info: TensorInfo) -> list[TensorInfo]:
    """Return the matrices of a tensor of three dimensions."""
    count, size = info.shape[0], info.size // info.shape[0]
    return [replace(info, shape=info.shape[1:], offset=info.offset + n * size, size=size) for n in range(count)]


def config(header: Header, rope_frequencies: NDArray[np.float32] | None) -> dict[str, object]:
    """Return the model's settings in the form of Hugging Face's config.json."""
    architecture, fields = architecture_of(header), MetadataFields(header)
    prefix = fields.text("general.architecture")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise WeightsError(header.path, "there is no token embedding: not a language model")
    hidden, heads = fields.integer(f"{prefix}.embedding_length"), fields.integer(f"{prefix}.attention.head_count")
    layers = fields.integer(f"{prefix}.block_count")
    if not 0 < heads <= hidden or hidden != embedding.shape[1] or not 0 < layers <= len(header.tensors):
        raise WeightsError(header.path, f"{layers} layers, {heads} heads, width {hidden} contradict the tensors")
    head_dim = fields.integer(f"{prefix}.attention.key_length", hidden // heads)
    result: dict[str, object] = {
        "model_type": architecture.model_type,
        "architectures": [architecture.class_name],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(fields, prefix, heads),
        "head_dim": head_dim,
        "intermediate_size": fields.integer(f"{prefix}.feed_forward_length"),
        "rms_norm_eps": fields.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": fields.integer(f"{prefix}.context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "gelu_pytorch_tanh" if prefix == "gemma3" else "silu",
    }
    theta = fields.number(f"{prefix}.rope.freq_base", 1_000_000.0 if prefix == "gemma3" else 10_000.0)
    rotary = fields.integer(f"{prefix}.rope.dimension_count", head_dim)
    if theta <= 0 or not 0 < rotary <= head_dim:
        raise WeightsError(header.path, f"RoPE with base {theta} over {rotary} of {head_dim} dimensions is impossible")
    result["rope_theta"] = theta
    if rotary != head_dim:
        result["partial_rotary_factor"] = rotary / head_dim
    scaling = _rope_scaling(header, fields, prefix)
    if rope_frequencies is not None:
        scaling = _llama3_scaling(header, rope_frequencies, theta)
    if scaling is not None:
        result["rope_scaling"] = scaling
    for key in ("bos", "eos"):
        if fields.has(f"tokenizer.ggml.{key}_token_id"):
            result[f"{key}_token_id"] = fields.integer(f"tokenizer.ggml.{key}_token_id")
    return result | _special_settings(header, fields, prefix, hidden // heads, head_dim)


def _special_settings(
    header: Header, fields: MetadataFields, prefix: str, even_head_dim: int, head_dim: int
) -> dict[str, object]:
    """Return the settings that only some architectures have."""
    if prefix == "gemma3":
        layers = fields.integer("gemma3.block_count")
        pattern = fields.integer("gemma3.attention.sliding_window_pattern", _GEMMA3_PATTERN)
        if pattern < 1:
            raise WeightsError(header.path, f"a sliding window pattern of {pattern} is impossible")
        result: dict[str, object] = {
            "sliding_window": fields.integer("gemma3.attention.sliding_window"),
            "sliding_window_pattern": pattern,
            "layer_types": [
                "sliding_attention" if layer % pattern else "full_attention" for layer in range(1, layers + 1)
            ],
            "rope_local_base_freq": fields.number("gemma3.rope.freq_base_swa", _GEMMA3_LOCAL_THETA),
            "query_pre_attn_scalar": even_head_dim if layers == _GEMMA3_27B_LAYERS else head_dim,
            "attention_bias": False,
        }
        if softcap := fields.number("gemma3.final_logit_softcapping", 0.0):
            result["final_logit_softcapping"] = softcap
        return result
    if prefix == "qwen2":
        return {"use_sliding_window": False}
    if prefix in ("lfm2", "lfm2moe"):
        return _lfm2_settings(header, fields, prefix)
    bias = {name.split(".")[2] for name in header.tensors if name.endswith(".bias") and name.count(".") == 3}
    return {"attention_bias": bool(bias & {"attn_q", "attn_k", "attn_v"}), "mlp_bias": bool(bias & {"ffn_up"})}


def _kv_heads(fields: MetadataFields, prefix: str, heads: int) -> int:
    """Return the heads of keys and values; a hybrid model has an array, with 0 for layers without attention."""
    key = f"{prefix}.attention.head_count_kv"
    if prefix not in ("lfm2", "lfm2moe"):
        return fields.integer(key, heads)
    counts = set(fields.integers(key)) - {0}
    return counts.pop() if len(counts) == 1 else 0  # no such model: the architecture refuses 0


def _lfm2_settings(header: Header, fields: MetadataFields, prefix: str) -> dict[str, object]:
    layers, counts = fields.integer(f"{prefix}.block_count"), fields.integers(f"{prefix}.attention.head_count_kv")
    if len(counts) != layers:
        raise WeightsError(header.path, f"{len(counts)} numbers of heads contradict {layers} layers")
    result: dict[str, object] = {
        "norm_eps": fields.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "conv_L_cache": fields.integer(f"{prefix}.shortconv.l_cache"),
        "conv_bias": any(".shortconv." in name and name.endswith(".bias") for name in header.tensors),
        "block_auto_adjust_ff_dim": False,  # the file has the size itself
    }
    if prefix == "lfm2":
        return result
    if (gating := fields.integer(f"{prefix}.expert_gating_func", _SIGMOID_GATING)) != _SIGMOID_GATING:
        raise WeightsError(header.path, f"a router with gating function {gating} is not supported")
    return result | {
        "num_experts": fields.integer(f"{prefix}.expert_count"),
        "num_experts_per_tok": fields.integer(f"{prefix}.expert_used_count"),
        "moe_intermediate_size": fields.integer(f"{prefix}.expert_feed_forward_length"),
        "num_dense_layers": fields.integer(f"{prefix}.leading_dense_block_count", 0),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in header.tensors),
        "norm_topk_prob": True,
        "routed_scaling_factor": fields.number(f"{prefix}.expert_weights_scale", 1.0) or 1.0,
    }


def _rope_scaling(header: Header, fields: MetadataFields, prefix: str) -> dict[str, object] | None:
    kind = fields.text(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        # The first converters wrote a linear factor under this name, without a type.
        factor = fields.number(f"{prefix}.rope.scale_linear", 1.0)
        return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    scaling: dict[str, object] = {"rope_type": kind, "factor": fields.number(f"{prefix}.rope.scaling.factor")}
    if kind == "linear":
        return scaling
    if kind != "yarn":
        raise WeightsError(header.path, f"RoPE scaling {kind!r} is not supported")
    scaling["original_max_position_embeddings"] = fields.integer(f"{prefix}.rope.scaling.original_context_length")
    for ours, theirs in (
        ("attention_factor", "attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if fields.has(f"{prefix}.rope.scaling.{theirs}"):
            scaling[ours] = fields.number(f"{prefix}.rope.scaling.{theirs}")
    return scaling


def _llama3_scaling(header: Header, factors: NDArray[np.float32], theta: float) -> dict[str, object]:
    """Return the llama3 setting that yields `factors`: the file holds the factors, not the parameters."""
    if not np.isfinite(factors).all():
        raise WeightsError(header.path, "a RoPE factor is not a finite number")
    factor = round(float(factors.max()), 3)  # float32 rounding: published factors are whole numbers
    original, low, high = (
        float(_LLAMA3_ROPE[key]) for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    wavelength = 2 * math.pi * theta ** (np.arange(len(factors)) / len(factors))
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth) if factor > 0 else np.zeros(len(factors))
    if not np.allclose(factors, expected, rtol=1e-3):
        raise WeightsError(header.path, "the RoPE factors are not those of Llama 3: this scaling is not supported")
    return {"rope_type": "llama3", "factor": factor} | _LLAMA3_ROPE


def _integer(value: object) -> int | None:
    if isinstance(value, np.ndarray) and value.size and np.issubdtype(value.dtype, np.integer):
        return int(value[0]) if bool((value == value[0]).all()) else None
    return value if type(value) is int else None


def _integers(value: object) -> list[int] | None:
    if isinstance(value, np.ndarray) and value.ndim == 1 and np.issubdtype(value.dtype, np.integer):
        return [int(item) for item in value]
    return None


def _number(value: object) -> float | None:
    if type(value) not in (int, float):
        return None
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None

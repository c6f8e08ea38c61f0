"""Small GGUF models of every architecture, written with the gguf library the way converters write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, LAYERS, VOCABULARY = 64, 4, 2, 16, 96, 2, 40
TAPS, EXPERTS, EXPERT_WIDE = 3, 4, 32

Array = NDArray[Any]
WriteGGUF = Callable[..., Path]


def small_tensors(architecture: str, seed: int = 0) -> dict[str, Array]:
    """Return random float32 tensors under GGUF's names, as they lie in a file."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    if architecture.startswith("lfm2"):
        return lfm2_tensors(architecture, matrix)
    tensors = {"token_embd.weight": matrix(VOCABULARY, HIDDEN), "output_norm.weight": matrix(HIDDEN)}
    if architecture in ("llama", "qwen2"):
        tensors["output.weight"] = matrix(VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = {
            "attn_norm.weight": matrix(HIDDEN), "attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            "attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN), "attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM), "ffn_norm.weight": matrix(HIDDEN),
            "ffn_gate.weight": matrix(WIDE, HIDDEN), "ffn_up.weight": matrix(WIDE, HIDDEN),
            "ffn_down.weight": matrix(HIDDEN, WIDE),
        }  # fmt: skip
        if architecture == "qwen2":
            block |= {f"attn_{part}.bias": matrix(len(block[f"attn_{part}.weight"])) for part in "qkv"}
        if architecture in ("qwen3", "gemma3"):
            block |= {"attn_q_norm.weight": matrix(HEAD_DIM), "attn_k_norm.weight": matrix(HEAD_DIM)}
        if architecture == "gemma3":
            block |= {"post_attention_norm.weight": matrix(HIDDEN), "post_ffw_norm.weight": matrix(HIDDEN)}
        tensors |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return tensors


def lfm2_tensors(architecture: str, matrix: Callable[..., Array]) -> dict[str, Array]:
    """Return a layer with a convolution and one with attention; in a mixture, that one has experts."""
    dense = {"ffn_gate.weight": (WIDE, HIDDEN), "ffn_up.weight": (WIDE, HIDDEN), "ffn_down.weight": (HIDDEN, WIDE)}
    experts = {
        "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
        "exp_probs_b.bias": (EXPERTS,),
        "ffn_gate_exps.weight": (EXPERTS, EXPERT_WIDE, HIDDEN),
        "ffn_up_exps.weight": (EXPERTS, EXPERT_WIDE, HIDDEN),
        "ffn_down_exps.weight": (EXPERTS, HIDDEN, EXPERT_WIDE),
    }
    layers = (
        {
            "shortconv.in_proj.weight": (3 * HIDDEN, HIDDEN),
            "shortconv.conv.weight": (HIDDEN, TAPS),
            "shortconv.out_proj.weight": (HIDDEN, HIDDEN),
            **dense,
        },
        {
            "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            "attn_q_norm.weight": (HEAD_DIM,),
            "attn_k_norm.weight": (HEAD_DIM,),
            **(experts if architecture == "lfm2moe" else dense),
        },
    )
    tensors = {"token_embd.weight": matrix(VOCABULARY, HIDDEN), "token_embd_norm.weight": matrix(HIDDEN)}
    for layer, shapes in enumerate(layers):
        both = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
        tensors |= {f"blk.{layer}.{name}": matrix(*shape) for name, shape in (both | shapes).items()}
    return tensors


def small_settings(architecture: str) -> dict[str, int | float | list[int]]:
    """Return the metadata that goes with small_tensors()."""
    settings: dict[str, int | float | list[int]] = {
        "context_length": 128, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": WIDE,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 50_000.0,
    }  # fmt: skip
    if architecture in ("qwen3", "gemma3"):
        settings |= {"attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM}
    if architecture == "gemma3":
        settings["attention.sliding_window"] = 8
    if architecture.startswith("lfm2"):
        settings |= {"attention.head_count_kv": [0, KV_HEADS], "shortconv.l_cache": TAPS}
    if architecture == "lfm2moe":
        settings |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": EXPERT_WIDE}
        settings |= {"leading_dense_block_count": 1, "expert_gating_func": 2}
    return settings


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """Return a function that writes a GGUF file and returns its path."""

    def write(
        architecture: str,
        tensors: Mapping[str, Array] | None = None,
        settings: Mapping[str, int | float | str] | None = None,
        *,
        kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
        extra: Callable[[gguf.GGUFWriter], None] | None = None,
        name: str = "model.gguf",
    ) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in (small_settings(architecture) | dict(settings or {})).items():
            adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add = adders[type(value)]
            add(f"{architecture}.{key}", value)  # type: ignore[arg-type]
        if extra is not None:
            extra(writer)
        for key, data in (tensors if tensors is not None else small_tensors(architecture)).items():
            writer.add_tensor(key, data, raw_dtype=(kinds or {}).get(key))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write

"""The tensors of LFM2-Audio's depth transformer and frame tables, under the names that DecoderLayers asks for.

Beside the names: queries, keys and values are one matrix in the file, and the pairs of a head that are rotated together
lie side by side. The norm before each group's output head goes into the head. A group's head but the first has no row
for the end of sound: only a frame's first code may say that.
"""

from __future__ import annotations

import functools
import re

import torch
from torch import Tensor

from voxlane.engine.errors import TensorError
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.lfm2_audio.config import CODES, Lfm2AudioConfig
from voxlane.engine.models.lfm2_audio.derived_tensors import Derived, DerivedTensors, NamedTensors, halves

PREFIX, FRAME_TABLE = "depthformer.", "audio_embedding.embedding.weight"

_SAME = {
    "operator_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "operator.out_proj": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
}  # fmt: skip
_LAYER = re.compile(r"(depthformer\.layers\.\d{1,3})\.(.+)\.weight")
_NORM = re.compile(r"operator\.bounded_attention\.([qk])_layernorm")
_GROUP = re.compile(r"depth_embeddings\.\d{1,3}\.(embedding|embedding_norm|to_logits)\.weight")
_KEPT = {FRAME_TABLE, "depth_linear.weight", "depth_linear.bias"}


def depth_tensors(file: NamedTensors, config: Lfm2AudioConfig) -> DerivedTensors:
    """Return the tensors of the depth transformer and of the frame table; other tensors of the file are left out."""
    names = file.names()
    sources: dict[str, str | Derived] = {name: name for name in names if name in _KEPT}
    sources[f"{PREFIX}norm.weight"] = Derived((), functools.partial(torch.ones, config.depth.hidden_size))
    for name in names:
        if found := _LAYER.fullmatch(name):
            sources |= _layer_sources(name, found[1], found[2], config.depth)
    present = {name for name in names if _GROUP.fullmatch(name)}
    for group in range(config.groups):
        sources |= _group_sources(group, present, config)
    return DerivedTensors(file, sources)


def _layer_sources(name: str, layer: str, part: str, config: DecoderConfig) -> dict[str, str | Derived]:
    if part in _SAME:
        return {f"{layer}.{_SAME[part]}.weight": name}
    if norm := _NORM.fullmatch(part):
        return {f"{layer}.self_attn.{norm[1]}_norm.weight": Derived((name,), _norm_halves)}
    if part == "operator.qkv_proj":
        return {
            f"{layer}.self_attn.{letter}_proj.weight": Derived((name,), functools.partial(_part, config, name, index))
            for index, letter in enumerate("qkv")
        }
    return {name: name}  # the reader names it as surplus


def _group_sources(group: int, present: set[str], config: Lfm2AudioConfig) -> dict[str, str | Derived]:
    """Return the table and the head of a group; a tied one may be in the file under either name."""
    name = f"depth_embeddings.{group}."
    table, head, norm = (f"{name}{part}.weight" for part in ("embedding", "to_logits", "embedding_norm"))
    if config.depth_tied:
        table, head = (table if table in present else head), (head if head in present else table)
    found: dict[str, str | Derived] = {}
    if table in present and group + 1 < config.groups:  # the last code is not read
        found[table_name(group)] = table
    if {head, norm} <= present:
        found[head_name(group)] = Derived((head, norm), functools.partial(_head, head, config.depth, head_codes(group)))
    return found


def table_name(group: int) -> str:
    """Return the name of a group's table [codes, dim]."""
    return f"depth_tables.{group}.weight"


def head_name(group: int) -> str:
    """Return the name of a group's head, with the norm before it."""
    return f"depth_heads.{group}.weight"


def head_codes(group: int) -> int:
    """Return how many codes a group's head chooses from."""
    return CODES + 1 if group == 0 else CODES


def _head(name: str, config: DecoderConfig, codes: int, head: Tensor, norm: Tensor) -> Tensor:
    if head.shape != (CODES + 1, config.hidden_size) or norm.shape != head.shape[1:]:
        wanted = [CODES + 1, config.hidden_size]
        raise TensorError(
            f"tensor {name} has shape {list(head.shape)}, not {wanted}, or the norm before it does not fit"
        )
    return head[:codes].to(torch.float32) * norm.to(torch.float32)


def _norm_halves(norm: Tensor) -> Tensor:
    return norm if norm.ndim != 1 or len(norm) % 2 else halves(norm, len(norm))  # the reader refuses other shapes


def _part(config: DecoderConfig, name: str, index: int, fused: Tensor) -> Tensor:
    """Return the matrix of the queries, the keys or the values from the one of all three."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if fused.ndim != 2 or fused.shape[0] != q + 2 * kv:
        raise TensorError(f"tensor {name} has shape {list(fused.shape)}, not [{q + 2 * kv}, {config.hidden_size}]")
    part = torch.split(fused, [q, kv, kv])[index]
    return part if index == 2 else halves(part, config.head_dim)

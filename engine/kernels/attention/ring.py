"""Attention over the last frames of a stream, whose keys and values lie in a ring: a codec's transformer.

Rotation, the write into the ring and attention are one operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_HEAD_DIM = 128
"""The kernel holds a tile of keys, and all their dimensions, at once."""


@dataclass(frozen=True, slots=True)
class Ring:
    """All streams' keys and values of one layer."""

    keys: Tensor  # [streams, ring, kv_heads, head_dim], position p at p % ring; already rotated
    values: Tensor
    window: int  # positions that a position attends to, itself included


@dataclass(frozen=True, slots=True)
class Moment:
    """The new positions of a call: the same for all layers."""

    rows: Tensor  # [B] int64: their streams
    begin: Tensor  # [B] int64: the first position
    cos: Tensor  # [B, frames, head_dim / 2] float32
    sin: Tensor


def ring_attention_ref(qkv: Tensor, heads: int, ring: Ring, moment: Moment) -> Tensor:
    """Return the attention [B * frames, heads * head_dim] of `qkv` [B, frames, (H + 2 KV) * D]."""
    batch, frames, _ = qkv.shape
    size, kv_heads, head_dim = ring.keys.shape[1:]
    q, k, v = torch.split(qkv.view(batch, frames, -1, head_dim), [heads, kv_heads, kv_heads], dim=2)
    rows, positions = moment.rows, moment.begin[:, None] + torch.arange(frames, device=qkv.device)
    slots, last = torch.arange(size, device=qkv.device), positions[:, -1:]
    held = last - (last - slots) % size  # [B, ring]: the newest position in each place of the ring
    age = positions[:, :, None] - held[:, None]
    seen = (age >= 0) & (age < ring.window) & (held >= 0)[:, None]
    ring.keys[rows[:, None], positions % size] = _rotate(k, moment)
    ring.values[rows[:, None], positions % size] = v
    keys, values = (part.index_select(0, rows).transpose(1, 2) for part in (ring.keys, ring.values))
    out = F.scaled_dot_product_attention(
        *(_rotate(q, moment).transpose(1, 2), keys, values), attn_mask=seen[:, None], enable_gqa=heads != kv_heads
    )
    return out.transpose(1, 2).reshape(batch * frames, -1)


def ring_attention(qkv: Tensor, heads: int, ring: Ring, moment: Moment) -> Tensor:
    """Rotate queries and keys, write keys and values into the rings; return their attention, [B * frames, heads * D].

    `qkv` [B, frames, (H + 2 KV) * D]; a ring must have room for the window and all frames but one. Rows that occur
    twice keep the keys of either.
    """
    batch, frames, width = qkv.shape
    _, size, kv_heads, head_dim = ring.keys.shape
    if width != (heads + 2 * kv_heads) * head_dim or size < ring.window - 1 + frames or moment.rows.shape != (batch,):
        raise ValueError(f"qkv {tuple(qkv.shape)} does not fit rings of {tuple(ring.keys.shape)}")
    if not qkv.is_cuda:
        return ring_attention_ref(qkv, heads, ring, moment)
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"heads of {head_dim}: {MAX_HEAD_DIM} is the most")
    from voxlane.engine.kernels.attention import ring_triton as kernel

    return kernel.ring_attention(qkv.contiguous(), heads, ring, moment)


def _rotate(x: Tensor, moment: Moment) -> Tensor:
    first, second = x.to(torch.float32).chunk(2, dim=-1)
    cos, sin = moment.cos[:, :, None], moment.sin[:, :, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

"""Attention of rows at the same few positions, each with a block of its own: a frame's inner steps.

Norm of query and key heads, rotary embedding, the write into the block and attention over it are one operation: with a
context of a handful of tokens each of them has little work, and would be a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.paged import paged_attention_ref
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import rope_write_ref


@dataclass(frozen=True, slots=True)
class Heads:
    """How a projection is cut into heads, with their norms and rotations."""

    heads: int
    kv_heads: int
    head_dim: int
    cos: Tensor  # [positions, head_dim / 2]
    sin: Tensor
    q_norm: Tensor | None  # [head_dim] float32
    k_norm: Tensor | None
    eps: float
    scale: float


def short_attention_ref(qkv: Tensor, heads: Heads, pages: Pages, start: int, count: int) -> Tensor:
    """Return attention's output [T, H * D] for `count` tokens a row from position `start` on; row r has block r."""
    rows = qkv.shape[0] // count
    device = qkv.device
    positions = torch.arange(start, start + count, dtype=torch.int32, device=device).repeat(rows)
    own = torch.arange(rows, dtype=torch.int32, device=device)
    layout = Layout(
        positions=positions,
        slots=own.repeat_interleave(count) * pages.k.shape[2] + positions,
        query_starts=torch.arange(0, (rows + 1) * count, count, dtype=torch.int32, device=device),
        context_lengths=torch.full((rows,), start + count, dtype=torch.int32, device=device),
        block_tables=own[:, None],
        max_query=count,
    )
    sizes = (heads.heads, heads.kv_heads, heads.head_dim)
    q = rope_write_ref(qkv, *sizes, heads.cos, heads.sin, layout, pages, heads.q_norm, heads.k_norm, heads.eps)
    return paged_attention_ref(q, pages, layout, heads.scale)


def short_attention(qkv: Tensor, heads: Heads, pages: Pages, start: int, count: int) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to block r of each row r; return [T, H * D].

    `qkv` [rows * count, (H + 2 KV) * D] are tokens from position `start` on, a row's after the other's; a row sees what
    lies before in its block.
    """
    width = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
    if qkv.ndim != 2 or qkv.shape[1] != width or qkv.shape[0] % count or not qkv.is_contiguous():
        raise ValueError(f"qkv {tuple(qkv.shape)} is not contiguous [rows * {count}, {width}]")
    blocks, _, block_tokens, _ = pages.k.shape
    if start + count > block_tokens or qkv.shape[0] // count > blocks or pages.k_scale is not None:
        raise ValueError(f"positions to {start + count} of {qkv.shape[0] // count} rows in {tuple(pages.k.shape)}")
    if not qkv.is_cuda:
        return short_attention_ref(qkv, heads, pages, start, count)
    from voxlane.engine.kernels.attention import short_triton as kernel

    return kernel.short_attention(qkv, heads, pages, start, count)

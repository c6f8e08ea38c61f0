"""Norm of query and key heads, rotary embedding and the write into the pages, in one Triton kernel.

One program takes one token's next few heads, whatever they are: queries come first in the fused projection, then keys,
then values. Arithmetic is float32 from the load to the store.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.triton_overlap import launch_options, overlaps

HEADS_PER_PROGRAM = 8

_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it leaves no bits below one, rounded half to even


@triton.jit
def _put(first, second, page, scales, place, scale_place, low, kept, HALF: tl.constexpr, INT8: tl.constexpr):
    """Store vectors [heads, 2, D / 2] to their places, as floats or as codes with one scale each."""
    if INT8:
        largest = tl.maximum(tl.max(tl.abs(first), axis=1), tl.max(tl.abs(second), axis=1))
        scale = (largest / 127.0).to(tl.bfloat16)
        wide = scale.to(tl.float32)
        inverse = tl.where(wide > 0, 1.0 / wide, 0.0)[:, None]
        first = tl.minimum(tl.maximum((first * inverse + _ROUNDING) - _ROUNDING, -127.0), 127.0)
        second = tl.minimum(tl.maximum((second * inverse + _ROUNDING) - _ROUNDING, -127.0), 127.0)
        tl.store(scales + scale_place, scale, mask=kept != 0)
    inside = (kept[:, None] & (low < HALF)) != 0  # some versions of the interpreter widen a flag that is passed on
    tl.store(page + place[:, None] + low, first.to(page.dtype.element_ty), mask=inside)
    tl.store(page + place[:, None] + low + HALF, second.to(page.dtype.element_ty), mask=inside)


@triton.jit
def _rope_kernel(
    qkv, q_out, cos, sin, positions, slots, k_page, v_page, k_scale, v_scale, q_norm, k_norm, eps,
    heads, kv_heads, block_tokens, page_block, page_head, page_token, scale_block, scale_head,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr, INT8: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    all_heads = heads + 2 * kv_heads
    low = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < all_heads)[:, None] & (low < HALF)
    start = qkv + (token * all_heads + head)[:, None] * (2 * HALF) + low
    position = tl.load(positions + token).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    c = tl.load(cos + position * HALF + low, mask=low < HALF, other=1.0)
    s = tl.load(sin + position * HALF + low, mask=low < HALF, other=0.0)
    if PDL:  # places and tables were there before the layers began; only the projection is awaited
        gdc_launch_dependents()
        gdc_wait()
    first = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(start + HALF, mask=inside, other=0.0).to(tl.float32)
    is_query = head < heads
    is_key = (head >= heads) & (head < heads + kv_heads)
    is_value = (head >= heads + kv_heads) & (head < all_heads)

    if NORM:
        squares = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        scale = tl.where(is_value, 1.0, tl.rsqrt(squares + eps))[:, None]
        query, key, value = is_query[:, None], is_key[:, None], is_value[:, None]
        column = low + tl.where(value, 0, 0)  # one for each head
        gain = tl.where(value, 1.0, 0.0)
        gain_low = gain + tl.load(q_norm + column, mask=query & inside, other=0.0)
        gain_low += tl.load(k_norm + column, mask=key & inside, other=0.0)
        gain_high = gain + tl.load(q_norm + HALF + column, mask=query & inside, other=0.0)
        gain_high += tl.load(k_norm + HALF + column, mask=key & inside, other=0.0)
        first, second = first * scale * gain_low, second * scale * gain_high

    still = is_value[:, None]
    c, s = tl.where(still, 1.0, c), tl.where(still, 0.0, s)
    first, second = first * c - second * s, second * c + first * s

    out = q_out + (token * heads + head)[:, None] * (2 * HALF) + low
    tl.store(out, first.to(q_out.dtype.element_ty), mask=is_query[:, None] & inside)
    tl.store(out + HALF, second.to(q_out.dtype.element_ty), mask=is_query[:, None] & inside)

    block, offset = slot // block_tokens, slot % block_tokens
    key_head, value_head = head - heads, head - heads - kv_heads
    common, scale_common = block * page_block + offset * page_token, block * scale_block + offset
    _put(first, second, k_page, k_scale, common + key_head * page_head, scale_common + key_head * scale_head,
         low, is_key & (slot >= 0), HALF, INT8)  # fmt: skip
    _put(first, second, v_page, v_scale, common + value_head * page_head, scale_common + value_head * scale_head,
         low, is_value & (slot >= 0), HALF, INT8)  # fmt: skip


def rope_write(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    pages: Pages,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """Split `qkv`, norm and rotate queries and keys, write keys and values to their slots; return q [T, H, D]."""
    tokens, half = qkv.shape[0], head_dim // 2
    q = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens == 0:
        return q
    scale = pages.k_scale
    overlap = overlaps(qkv.device)
    _rope_kernel[(tokens, triton.cdiv(heads + 2 * kv_heads, HEADS_PER_PROGRAM))](
        *(qkv, q, cos, sin, layout.positions, layout.slots, pages.k, pages.v, pages.k_scale, pages.v_scale),
        *(q_norm, k_norm, eps, heads, kv_heads, pages.k.shape[2], *pages.k.stride()[:3]),
        *((0, 0) if scale is None else scale.stride()[:2]),
        HALF=half,
        HALF_BLOCK=triton.next_power_of_2(half),
        HEADS=HEADS_PER_PROGRAM,
        NORM=q_norm is not None,
        INT8=scale is not None,
        PDL=overlap,
        num_warps=2,
        **launch_options(overlap=overlap),
    )
    return q

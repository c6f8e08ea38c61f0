"""Attention over a handful of positions in Triton, with norms, rotation and the write of keys and values before it.

A program takes one row and one of its key heads: the queries of that group and all keys there are fit into registers,
as halves, because rotation pairs the halves. Arithmetic is float32; what is stored, and queries, are rounded to the
pages' type first, as they are where rotation and attention are two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.attention.pages import Pages
from voxlane.engine.kernels.attention.short import Heads
from voxlane.engine.kernels.triton_overlap import launch_options, overlaps

WARPS = 2
"""Of 1, 2 and 4 the one that serves both one row and 64: 1.85 and 3.25 ms for all inner steps of a frame."""


@triton.jit
def _turned(place, gain, cos, sin, low, eps, inside, HALF: tl.constexpr, NORM: tl.constexpr):
    """Return the halves of some heads [n, HALF], normed and rotated."""
    first = tl.load(place + low, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + HALF + low, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(first * first + second * second, axis=1) / (2 * HALF) + eps)[:, None]
        first = first * scale * tl.load(gain + low, mask=low < HALF, other=0.0)
        second = second * scale * tl.load(gain + HALF + low, mask=low < HALF, other=0.0)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit(do_not_specialize=["start"])
def _short_kernel(
    qkv, out, cos, sin, k_page, v_page, q_norm, k_norm, eps, scale, page_block, page_head, start,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr, COUNT: tl.constexpr, KEYS: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = tl.arange(0, HALF_BLOCK)[None, :]
    key = tl.arange(0, KEYS)
    member = tl.arange(0, GROUP_BLOCK)
    some = (member < GROUP)[:, None] & (low < HALF)
    one = (tl.arange(0, 1) < 1)[:, None] & (low < HALF)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    home = row * page_block + kv_head * page_head
    places = home + key[:, None] * (2 * HALF) + low  # [KEYS, HALF]
    before = (key < start)[:, None] & (low < HALF)
    k_first = tl.load(k_page + places, mask=before, other=0.0).to(tl.float32)
    k_second = tl.load(k_page + places + HALF, mask=before, other=0.0).to(tl.float32)
    v_first = tl.load(v_page + places, mask=before, other=0.0).to(tl.float32)
    v_second = tl.load(v_page + places + HALF, mask=before, other=0.0).to(tl.float32)
    for number in tl.static_range(COUNT):
        token = row * COUNT + number
        position = start + number
        projected = qkv + token * ((HEADS + 2 * KV_HEADS) * 2 * HALF)
        c = tl.load(cos + position * HALF + low, mask=low < HALF, other=1.0)
        s = tl.load(sin + position * HALF + low, mask=low < HALF, other=0.0)
        # All is read before anything is written: a load cannot overtake a store it might depend on.
        heads = (kv_head * GROUP + member)[:, None] * (2 * HALF)
        q_first, q_second = _turned(projected + heads, q_norm, c, s, low, eps, some, HALF, NORM)
        first, second = _turned(projected + (HEADS + kv_head) * 2 * HALF, k_norm, c, s, low, eps, one, HALF, NORM)
        value = projected + (HEADS + KV_HEADS + kv_head) * 2 * HALF + low
        early = tl.load(value, mask=one, other=0.0).to(v_page.dtype.element_ty)
        late = tl.load(value + HALF, mask=one, other=0.0).to(v_page.dtype.element_ty)
        first, second = first.to(k_page.dtype.element_ty), second.to(k_page.dtype.element_ty)
        here = (key == position)[:, None]
        k_first = tl.where(here, first.to(tl.float32), k_first)
        k_second = tl.where(here, second.to(tl.float32), k_second)
        v_first = tl.where(here, early.to(tl.float32), v_first)
        v_second = tl.where(here, late.to(tl.float32), v_second)

        q_first = q_first.to(qkv.dtype.element_ty).to(tl.float32)
        q_second = q_second.to(qkv.dtype.element_ty).to(tl.float32)
        scores = tl.sum(q_first[:, None, :] * k_first[None, :, :] + q_second[:, None, :] * k_second[None, :, :], axis=2)
        scores = tl.where((key <= position)[None, :], scores * scale, -float("inf"))  # [GROUP, KEYS]
        weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        weights = weights / tl.sum(weights, axis=1)[:, None]
        seen = out + (token * HEADS * 2 * HALF) + heads + low
        seen_first = tl.sum(weights[:, :, None] * v_first[None, :, :], axis=1)
        seen_second = tl.sum(weights[:, :, None] * v_second[None, :, :], axis=1)
        tl.store(seen, seen_first.to(out.dtype.element_ty), mask=some)
        tl.store(seen + HALF, seen_second.to(out.dtype.element_ty), mask=some)
        place = home + position * (2 * HALF) + low
        tl.store(k_page + place, first, mask=one)
        tl.store(k_page + place + HALF, second, mask=one)
        tl.store(v_page + place, early, mask=one)
        tl.store(v_page + place + HALF, late, mask=one)


def short_attention(qkv: Tensor, heads: Heads, pages: Pages, start: int, count: int) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to block r of each row r; return [T, H * D]."""
    tokens, half = qkv.shape[0], heads.head_dim // 2
    out = torch.empty((tokens, heads.heads * heads.head_dim), dtype=qkv.dtype, device=qkv.device)
    overlap = overlaps(qkv.device)
    group = heads.heads // heads.kv_heads
    _short_kernel[(tokens // count, heads.kv_heads)](
        *(qkv, out, heads.cos, heads.sin, pages.k, pages.v, heads.q_norm, heads.k_norm, heads.eps, heads.scale),
        *(pages.k.stride(0), pages.k.stride(1), start),
        HEADS=heads.heads,
        KV_HEADS=heads.kv_heads,
        HALF=half,
        HALF_BLOCK=triton.next_power_of_2(half),
        GROUP=group,
        GROUP_BLOCK=triton.next_power_of_2(group),
        COUNT=count,
        KEYS=triton.next_power_of_2(pages.k.shape[2]),
        NORM=heads.q_norm is not None,
        PDL=overlap,
        num_warps=WARPS,
        **launch_options(overlap=overlap),
    )
    return out

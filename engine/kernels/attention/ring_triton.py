"""Attention over rings in Triton: a program takes one head of one stream, all its new positions and all its ring.

Long rings, which do not fit into registers, are walked a tile at a time.

New keys and values are not read back from the ring: they are computed here, and their scores stand beside those of the
ring's old content. No new position attends to the places that the new positions take, so it does not matter whether
another head's program has written them yet.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxlane.engine.kernels.attention.ring import Moment, Ring

_LEAST = 16  # rows of a matrix product
_WHOLE = 128
"""Places of the longest ring that is held at once, and of a tile of a longer one. 512 at once spill 20 KB a thread."""


@triton.jit
def _halves(place, cos, sin, inside, HALF: tl.constexpr, TURN: tl.constexpr):
    """Return two halves of vectors, rotated if they are to be, in their own type."""
    first = tl.load(place, mask=inside, other=0.0)
    second = tl.load(place + HALF, mask=inside, other=0.0)
    if TURN:
        low, high = first.to(tl.float32), second.to(tl.float32)
        first, second = (low * cos - high * sin).to(first.dtype), (high * cos + low * sin).to(second.dtype)
    return first, second


@triton.jit
def _product(a_first, a_second, b_first, b_second):
    scores = tl.dot(a_first, tl.trans(b_first), input_precision="ieee")
    return tl.dot(a_second, tl.trans(b_second), scores, input_precision="ieee")


@triton.jit(do_not_specialize=["frames", "ring", "window"])
def _ring_kernel(
    qkv, out, keys, values, rows, begin, cos, sin, scale, frames, ring, window, ring_stream, ring_place,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, FRAMES: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // group
    frame, place, low = tl.arange(0, FRAMES), tl.arange(0, PLACES), tl.arange(0, WIDTH)[None, :]
    new = (frame < frames)[:, None] & (low < HALF)
    turn = (stream * frames + frame)[:, None] * HALF + low
    c, s = tl.load(cos + turn, mask=new, other=1.0), tl.load(sin + turn, mask=new, other=0.0)
    own = qkv + (stream * frames + frame)[:, None] * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + low
    q_first, q_second = _halves(own + head * 2 * HALF, c, s, new, HALF, True)
    k_first, k_second = _halves(own + (HEADS + kv_head) * 2 * HALF, c, s, new, HALF, True)
    v_first, v_second = _halves(own + (HEADS + KV_HEADS + kv_head) * 2 * HALF, c, s, new, HALF, False)

    home = tl.load(rows + stream) * ring_stream + kv_head * 2 * HALF
    at = tl.load(begin + stream)
    held = at - 1 - (at - 1 - place + ring) % ring  # the position in each place before this call
    held = tl.where(at > 0, held, -1)
    old = (place < ring) & (held >= 0)
    spots = home + place[:, None] * ring_place + low
    there = old[:, None] & (low < HALF)
    old_first = tl.load(keys + spots, mask=there, other=0.0)
    old_second = tl.load(keys + spots + HALF, mask=there, other=0.0)
    scores = _product(q_first, q_second, old_first, old_second) * scale  # [FRAMES, PLACES]
    age = (at + frame)[:, None] - held[None, :]
    scores = tl.where(old[None, :] & (age < window), scores, -float("inf"))
    fresh = _product(q_first, q_second, k_first, k_second) * scale  # [FRAMES, FRAMES]
    back = frame[:, None] - frame[None, :]
    fresh = tl.where((back >= 0) & (back < window), fresh, -float("inf"))  # each attends to itself at least

    peak = tl.maximum(tl.max(scores, axis=1), tl.max(fresh, axis=1))[:, None]
    weights, fresh_weights = tl.exp(scores - peak), tl.exp(fresh - peak)
    total = (tl.sum(weights, axis=1) + tl.sum(fresh_weights, axis=1))[:, None]
    weights, fresh_weights = weights.to(v_first.dtype), fresh_weights.to(v_first.dtype)
    seen = out + ((stream * frames + frame)[:, None] * HEADS + head) * (2 * HALF) + low
    for half in tl.static_range(2):
        past = tl.load(values + spots + half * HALF, mask=there, other=0.0)
        sums = tl.dot(weights, past, input_precision="ieee")
        sums = tl.dot(fresh_weights, v_first if half == 0 else v_second, sums, input_precision="ieee")
        tl.store(seen + half * HALF, (sums / total).to(out.dtype.element_ty), mask=new)
    if head % group == 0:
        spot = home + ((at + frame) % ring)[:, None] * ring_place + low
        tl.store(keys + spot, k_first, mask=new)
        tl.store(keys + spot + HALF, k_second, mask=new)
        tl.store(values + spot, v_first, mask=new)
        tl.store(values + spot + HALF, v_second, mask=new)


@triton.jit(do_not_specialize=["frames", "ring", "window"])
def _long_ring_kernel(
    qkv, out, keys, values, rows, begin, cos, sin, scale, frames, ring, window, ring_stream, ring_place,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, FRAMES: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """Do _ring_kernel's work for a ring of more than PLACES places, with running sums."""
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // group
    frame, low = tl.arange(0, FRAMES), tl.arange(0, WIDTH)[None, :]
    new = (frame < frames)[:, None] & (low < HALF)
    turn = (stream * frames + frame)[:, None] * HALF + low
    c, s = tl.load(cos + turn, mask=new, other=1.0), tl.load(sin + turn, mask=new, other=0.0)
    own = qkv + (stream * frames + frame)[:, None] * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + low
    q_first, q_second = _halves(own + head * 2 * HALF, c, s, new, HALF, True)
    k_first, k_second = _halves(own + (HEADS + kv_head) * 2 * HALF, c, s, new, HALF, True)
    v_first, v_second = _halves(own + (HEADS + KV_HEADS + kv_head) * 2 * HALF, c, s, new, HALF, False)
    home = tl.load(rows + stream) * ring_stream + kv_head * 2 * HALF
    at = tl.load(begin + stream)

    fresh = _product(q_first, q_second, k_first, k_second) * scale  # [FRAMES, FRAMES]
    back = frame[:, None] - frame[None, :]
    fresh = tl.where((back >= 0) & (back < window), fresh, -float("inf"))  # each attends to itself at least
    peak = tl.max(fresh, axis=1)[:, None]
    fresh = tl.exp(fresh - peak)
    total = tl.sum(fresh, axis=1)[:, None]
    first = tl.dot(fresh.to(v_first.dtype), v_first, input_precision="ieee")
    second = tl.dot(fresh.to(v_first.dtype), v_second, input_precision="ieee")
    for begins in range(0, ring, PLACES):
        place = begins + tl.arange(0, PLACES)
        held = at - 1 - (at - 1 - place + ring) % ring  # the position in each place before this call
        held = tl.where(at > 0, held, -1)
        old = (place < ring) & (held >= 0)
        spots = home + place[:, None] * ring_place + low
        there = old[:, None] & (low < HALF)
        old_first = tl.load(keys + spots, mask=there, other=0.0)
        old_second = tl.load(keys + spots + HALF, mask=there, other=0.0)
        scores = _product(q_first, q_second, old_first, old_second) * scale  # [FRAMES, PLACES]
        age = (at + frame)[:, None] - held[None, :]
        scores = tl.where(old[None, :] & (age < window), scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1)[:, None])
        shrink, weights = tl.exp(peak - higher), tl.exp(scores - higher)
        peak, total = higher, total * shrink + tl.sum(weights, axis=1)[:, None]
        weights = weights.to(v_first.dtype)
        past = tl.load(values + spots, mask=there, other=0.0)
        first = tl.dot(weights, past, first * shrink, input_precision="ieee")
        past = tl.load(values + spots + HALF, mask=there, other=0.0)
        second = tl.dot(weights, past, second * shrink, input_precision="ieee")
    seen = out + ((stream * frames + frame)[:, None] * HEADS + head) * (2 * HALF) + low
    tl.store(seen, (first / total).to(out.dtype.element_ty), mask=new)
    tl.store(seen + HALF, (second / total).to(out.dtype.element_ty), mask=new)
    if head % group == 0:
        spot = home + ((at + frame) % ring)[:, None] * ring_place + low
        tl.store(keys + spot, k_first, mask=new)
        tl.store(keys + spot + HALF, k_second, mask=new)
        tl.store(values + spot, v_first, mask=new)
        tl.store(values + spot + HALF, v_second, mask=new)


def ring_attention(qkv: Tensor, heads: int, ring: Ring, moment: Moment) -> Tensor:
    """Rotate queries and keys, write keys and values into the rings; return attention [B * frames, heads * D]."""
    batch, frames, _ = qkv.shape
    _, size, kv_heads, head_dim = ring.keys.shape
    out = torch.empty((batch * frames, heads * head_dim), dtype=qkv.dtype, device=qkv.device)
    kernel = _long_ring_kernel if size > _WHOLE else _ring_kernel
    kernel[(batch, heads)](
        *(qkv, out, ring.keys, ring.values, moment.rows, moment.begin, moment.cos, moment.sin, head_dim**-0.5),
        *(frames, size, ring.window, ring.keys.stride(0), ring.keys.stride(1)),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        WIDTH=max(_LEAST, triton.next_power_of_2(head_dim // 2)),
        FRAMES=max(_LEAST, triton.next_power_of_2(frames)),
        PLACES=min(_WHOLE, max(_LEAST, triton.next_power_of_2(size))),
        num_warps=4,
        num_stages=2,  # of the walk over tiles: three take 143 KB of shared memory in float32, two take 78
    )
    return out

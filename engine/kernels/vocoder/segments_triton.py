"""Attention in sequences laid end to end, in Triton: a program reads only the keys that its queries attend to.

Torch's kernel with a mask reads all keys for every query: on an H200 193 µs a layer for eight clauses of 155 phonemes,
where this one takes 92; for one clause they take 29 and 25.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, KEYS = 16, 32
"""Small: a clause has fifty phonemes, and the device should be busy with one clause."""

_NEVER = tl.constexpr(-1.0e30)  # a score without weight; minus itself it is 0, not NaN


@triton.jit
def _segment_attention_kernel(
    qkv, start, stop, out, rows, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    head = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    real = column < DIM
    known = query < rows
    first = tl.load(start + query, mask=known, other=rows)
    last = tl.load(stop + query, mask=known, other=0)
    stride = 3 * HEADS * DIM
    base = qkv + head * DIM
    q = tl.load(base + query[:, None] * stride + column[None, :], mask=known[:, None] & real[None, :], other=0.0)
    q *= scale
    low = tl.min(first, axis=0)
    high = tl.max(last, axis=0)
    most = tl.full([QUERIES], _NEVER, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
    for at in range(low, high, KEYS):
        key = at + tl.arange(0, KEYS)
        place = base + key[:, None] * stride + column[None, :]
        present = (key < high)[:, None] & real[None, :]
        k = tl.load(place + HEADS * DIM, mask=present, other=0.0)
        v = tl.load(place + 2 * HEADS * DIM, mask=present, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        sees = (key[None, :] >= first[:, None]) & (key[None, :] < last[:, None])
        scores = tl.where(sees, scores, _NEVER)
        higher = tl.maximum(most, tl.max(scores, axis=1))
        weights = tl.where(sees, tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
        most = higher
    mixed /= tl.where(total > 0, total, 1.0)[:, None]
    place = out + query[:, None] * (HEADS * DIM) + head * DIM + column[None, :]
    tl.store(place, mixed, mask=known[:, None] & real[None, :])


def segment_attention(qkv: Tensor, heads: int, start: Tensor, stop: Tensor) -> Tensor:
    """Return the attention of each row over the rows from start to stop."""
    rows, width = len(qkv), qkv.shape[1] // (3 * heads)
    out = torch.empty((rows, heads * width), device=qkv.device)
    if rows:
        _segment_attention_kernel[(triton.cdiv(rows, QUERIES), heads)](
            *(qkv, start, stop, out, rows, width**-0.5),
            HEADS=heads,
            DIM=width,
            WIDTH=max(triton.next_power_of_2(width), 16),
            QUERIES=QUERIES,
            KEYS=KEYS,
            num_warps=4,
        )
    return out

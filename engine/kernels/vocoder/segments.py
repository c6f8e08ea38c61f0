"""Attention in sequences laid end to end: every row attends to the whole of its own sequence and nothing else.

Queries, keys and values are float32; there are no pages, and rows have no order.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_attention_ref(qkv: Tensor, heads: int, start: Tensor, stop: Tensor) -> Tensor:
    """Return softmax(q · kᵀ / √width) · v of each row over the rows from start to stop."""
    rows = len(qkv)
    query, key, value = qkv.view(rows, 3, heads, -1).permute(1, 2, 0, 3).unsqueeze(1)  # [1, heads, rows, width] each
    index = torch.arange(rows, device=qkv.device)
    sees = (index >= start[:, None]) & (index < stop[:, None])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=sees)[0].transpose(0, 1).reshape(rows, -1)


def segment_attention(qkv: Tensor, heads: int, start: Tensor, stop: Tensor) -> Tensor:
    """Return the attention of `qkv` [T, 3 · heads · width], queries first, then keys, then values; [T, heads · width].

    A row attends to rows from start[t] up to and without stop[t], at least one; both are int32 [T].
    """
    rows = len(qkv)
    if qkv.shape[1] % (3 * heads) or not qkv.is_contiguous() or qkv.dtype is not torch.float32:
        raise ValueError(f"qkv {tuple(qkv.shape)} {qkv.dtype} is not three times {heads} heads of float32")
    if any(part.shape != (rows,) or part.dtype is not torch.int32 for part in (start, stop)):
        raise ValueError(f"start {tuple(start.shape)} and stop {tuple(stop.shape)} must be int32, one for each row")
    if qkv.is_cuda:
        from voxlane.engine.kernels.vocoder import segments_triton  # here: without a device there may be no Triton

        return segments_triton.segment_attention(qkv, heads, start, stop)
    return segment_attention_ref(qkv, heads, start, stop)

"""Attention within a clip whose scores depend on the distance of two rows too, as Transformer-XL's do.

A row's query meets the keys with one bias, and the distances with another. torch's own products do the work, one clip
after the other, so that a clip's bits do not depend on the clips beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Distances:
    """What one layer knows of distances."""

    keys: Tensor  # [2 R - 1, H * D]: of the distances R - 1, R - 2, … 1 - R from a row back to another
    content_bias: Tensor  # [H, D], added to a query before it meets keys
    distance_bias: Tensor  # [H, D], added to a query before it meets distances


def relative_attention(qkv: Tensor, lengths: Sequence[int], distances: Distances) -> Tensor:
    """Return the attention [T, H * D] of `qkv` [T, 3 * H * D]: clips of so many rows, one after the other."""
    heads, head_dim = distances.content_bias.shape
    reach = (len(distances.keys) + 1) // 2
    if qkv.shape != (sum(lengths), 3 * heads * head_dim) or max(lengths) > reach:
        raise ValueError(f"qkv {tuple(qkv.shape)} is not clips of {list(lengths)} rows, each of at most {reach}")
    return torch.cat([attend_clip(clip, distances, fused=qkv.is_cpu) for clip in torch.split(qkv, list(lengths))])


def attend_clip(qkv: Tensor, distances: Distances, *, fused: bool = False, valid: Tensor | None = None) -> Tensor:
    """Return the attention of one clip, by torch's fused attention or by products.

    Products are for CUDA: there the fused one wants biases that are aligned, and its kernel depends on sizes. They
    attend to the `valid` rows [rows] bool alone, if these are named.
    """
    heads, head_dim = distances.content_bias.shape
    reach = (len(distances.keys) + 1) // 2
    rows, scale = len(qkv), float(head_dim) ** -0.5
    q, k, v = qkv.view(rows, 3, heads, head_dim).permute(1, 2, 0, 3)  # [H, rows, D] each
    far = distances.keys[reach - rows : reach + rows - 1].view(-1, heads, head_dim).permute(1, 2, 0)
    by_distance = torch.matmul(
        (q + distances.distance_bias[:, None]) * scale, far
    ).contiguous()  # [H, rows, 2 rows - 1]
    # Row i needs the distance i - j of row j, which is column rows - 1 - i + j: each row starts one column earlier.
    step = 2 * rows - 1
    bias = by_distance.as_strided((heads, rows, rows), (rows * step, step - 1, 1), rows - 1)
    content = q + distances.content_bias[:, None]
    if fused:
        seen = F.scaled_dot_product_attention(content[None], k[None], v[None], attn_mask=bias[None], scale=scale)[0]
    else:
        wide = [part.to(torch.float32) for part in (bias.contiguous(), content, k.transpose(1, 2))]
        scores = torch.baddbmm(*wide, alpha=scale)
        if valid is not None:
            scores = scores.masked_fill(~valid, -torch.inf)
        seen = torch.bmm(scores.softmax(dim=2).to(v.dtype), v)
    return seen.transpose(0, 1).reshape(rows, heads * head_dim)

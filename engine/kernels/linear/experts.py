"""Products of rows with the matrices of their experts, all experts in one call.

A step has pairs: each token with each of its experts. They are put in the order of the experts (`group_pairs`), and
each expert multiplies its own run of them. No number is read back and shapes depend on the number of tokens alone: on
CUDA it can be captured in a graph. A pair's bits do not depend on the other pairs of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ExpertPairs:
    """The pairs of a step: pair p is token p // chosen with the expert in its place p % chosen."""

    order: Tensor  # [pairs] int32: pairs in the order of their experts
    counts: Tensor  # [experts] int32: how many pairs an expert has
    chosen: int  # experts of a token


def group_pairs(experts: Tensor, count: int) -> ExpertPairs:
    """Return the pairs of `experts` [T, chosen] int64, numbers below `count`; those of an expert keep their order."""
    flat = experts.flatten()
    own = flat[:, None] == torch.arange(count, device=flat.device)
    mine = own.cumsum(dim=0)  # [pairs, experts]: how many pairs an expert has up to each
    counts = mine[-1]
    place = (counts.cumsum(0) - counts)[flat] + mine.gather(1, flat[:, None])[:, 0] - 1
    order = torch.empty(len(flat), dtype=torch.int32, device=flat.device)
    order.index_copy_(0, place, torch.arange(len(flat), dtype=torch.int32, device=flat.device))
    return ExpertPairs(order, counts.to(torch.int32), experts.shape[1])


def expert_linear_ref(x: Tensor, weight: Tensor, pairs: ExpertPairs, shares: Tensor | None = None) -> Tensor:
    """Do expert_linear's work, one expert after the other, in float32."""
    order = pairs.order.long()
    rows = (x[order // pairs.chosen] if shares is None else x).to(torch.float32)
    bounds = [0, *pairs.counts.cumsum(0).tolist()]
    parts = [
        rows[bounds[index] : bounds[index + 1]] @ matrix.T.to(torch.float32) for index, matrix in enumerate(weight)
    ]
    product = torch.cat(parts)
    if shares is None:
        return product.to(x.dtype)
    return torch.empty_like(product).index_copy_(0, order, product * shares[order, None])


def expert_linear(x: Tensor, weight: Tensor, pairs: ExpertPairs, shares: Tensor | None = None) -> Tensor:
    """Return the product of every pair with its expert's matrix of `weight` [experts, out, in].

    Without `shares`: `x` [T, in] are tokens, and the products [pairs, out] come in the order of the experts. With
    `shares` [pairs] float32: `x` [pairs, in] are in that order, and the products, each times its share, come by the
    pairs' numbers, float32.
    """
    rows = len(pairs.order) if shares is not None else len(pairs.order) // pairs.chosen
    if x.shape != (rows, weight.shape[2]) or x.dtype is not weight.dtype or not x.is_contiguous():
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} is not contiguous [{rows}, {weight.shape[2]}] {weight.dtype}")
    if weight.ndim != 3 or len(weight) != len(pairs.counts) or not weight.is_contiguous():
        raise ValueError(f"weight {tuple(weight.shape)} is not contiguous [{len(pairs.counts)}, out, in]")
    if not x.is_cuda:
        return expert_linear_ref(x, weight, pairs, shares)
    from voxlane.engine.kernels.linear import experts_triton

    return experts_triton.expert_linear(x, weight, pairs, shares)

"""The choice of experts: each token's best ones by a router's scores, and what their outputs count."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from voxlane.engine.kernels import native

_NO_ZERO = 1e-6  # added to the sum that shares are divided by, as in Hugging Face's implementation


def route_ref(scores: Tensor, bias: Tensor | None, chosen: int, *, normed: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return each token's experts [T, chosen] int64, the best first, and their shares [T, chosen] float32."""
    scores = scores.sigmoid()
    ranked = scores if bias is None else scores + bias
    experts = ranked.argsort(dim=1, descending=True, stable=True)[:, :chosen]
    shares = scores.gather(1, experts)
    if normed:
        shares = shares / (shares.sum(dim=1, keepdim=True) + _NO_ZERO)
    return experts, shares * scale


def route_native(
    library: ctypes.CDLL, scores: Tensor, bias: Tensor | None, chosen: int, *, normed: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Do route_ref's work in linear/routing.cpp; `scores` are overwritten."""
    tokens, count = scores.shape
    experts, shares = torch.empty((tokens, chosen), dtype=torch.int64), torch.empty((tokens, chosen))
    library.vox_route(
        scores.data_ptr(),
        native.pointer(bias),
        experts.data_ptr(),
        shares.data_ptr(),
        tokens,
        count,
        chosen,
        normed,
        scale,
    )
    return experts, shares


def route(scores: Tensor, bias: Tensor | None, chosen: int, *, normed: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return each token's experts [T, chosen] int64 and their shares [T, chosen], from `scores` [T, experts].

    `scores` may be overwritten. `bias` [experts] takes part in the choice, not in the shares. A token's bits do not
    depend on the other tokens.
    """
    if scores.ndim != 2 or not 0 < chosen <= scores.shape[1] or not scores.is_contiguous():
        raise ValueError(f"scores {tuple(scores.shape)} are not contiguous [T, experts] with at least {chosen} experts")
    library = native.library(scores)
    if library is None:
        return route_ref(scores, bias, chosen, normed=normed, scale=scale)
    return route_native(library, scores, bias, chosen, normed=normed, scale=scale)

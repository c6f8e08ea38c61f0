"""Copies whole blocks between storages [layers, 2, blocks, ...]: within a device, or to and from the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copy_blocks_ref(source: Tensor, target: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy blocks `sources` of one storage over `targets` of another; every block is read before any is written."""
    picked = source.index_select(2, torch.tensor(sources, device=source.device))
    target.index_copy_(2, torch.tensor(targets, device=target.device), picked.to(target.device))


def copy_blocks(source: Tensor, target: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Copy blocks `sources` of one storage over `targets` of another, as if all at once.

    With a CUDA device this is queued on its current stream: only the device may read the host's blocks until the host
    has waited for it.
    """
    if source.shape[:2] != target.shape[:2] or source.shape[3:] != target.shape[3:] or source.dtype is not target.dtype:
        raise ValueError(f"blocks of {tuple(source.shape)} do not fit into {tuple(target.shape)}")
    device = source.device if source.is_cuda else target.device
    reachable = all(storage.is_cuda or storage.is_pinned() for storage in (source, target))
    chained = source is target and not set(sources).isdisjoint(targets)
    if device.type != "cuda" or not reachable or chained:
        copy_blocks_ref(source, target, sources, targets)
        return
    from voxlane.engine.kernels.attention import swap_triton

    pairs = torch.tensor(list(zip(sources, targets, strict=True)), dtype=torch.int64)
    swap_triton.copy_blocks(source, target, pairs.to(device))

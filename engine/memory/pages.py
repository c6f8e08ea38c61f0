"""The tensors behind the KV blocks: one page tensor per layer, and host memory for what is swapped out.

It moves bytes between given block numbers. blocks.py knows which request owns a block and whether a block may be
overwritten.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Pages
from voxlane.engine.kernels.attention.swap import copy_blocks

PAGE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
"""The element types a page may have, under their names in the configuration."""

_SCALE_DTYPE = torch.bfloat16  # of int8 pages: one scale for each key and each value of each (token, head)


@dataclass(frozen=True, slots=True)
class PageShape:
    """What a model keeps of one token: in each layer a key and a value per head."""

    layers: int  # those with attention
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the cache bytes one token takes over all layers, keys and values and their scales."""
        scale_bytes = _SCALE_DTYPE.itemsize if dtype is torch.int8 else 0
        return self.layers * 2 * self.kv_heads * (self.head_dim * dtype.itemsize + scale_bytes)


@dataclass(frozen=True, slots=True)
class _Storage:
    """All layers in one tensor, so that a block moves through every layer with one call."""

    values: Tensor  # [layers, 2 (k, v), blocks, kv_heads, block_tokens, head_dim]
    scales: Tensor | None  # [layers, 2, blocks, kv_heads, block_tokens]

    @classmethod
    def allocate(
        cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, pinned: bool, shared: bool = False
    ) -> _Storage:
        # Never filled: the kernel hands out zero pages on first touch, so an idle cache costs address space only.
        # Attention masks by length, not by value, so what lies past a sequence's end is never read.
        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            if shared:
                return shared_memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            return torch.empty(shape, dtype=dtype, device=device, pin_memory=pinned)

        return cls(empty(shape, dtype), empty(shape[:-1], _SCALE_DTYPE) if dtype is torch.int8 else None)

    def write(self, targets: Sequence[int], source: _Storage, blocks: Sequence[int]) -> None:
        """Copy `blocks` of `source` over this storage's `targets`; every block is read before any is written."""
        copy_blocks(source.values, self.values, blocks, targets)
        if self.scales is not None and source.scales is not None:
            copy_blocks(source.scales, self.scales, blocks, targets)


def shared_memory(size: int) -> Tensor:
    """Return bytes that this process and its forks share, all zero and untouched."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


class KVCache:
    """Pages for every layer of one model, on the device and on the host."""

    def __init__(
        self,
        shape: PageShape,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        host_blocks: int = 0,
        *,
        shared: bool = False,
    ) -> None:
        """Reserve the memory; nothing is touched until a block is written. Forks write to the same `shared` pages."""
        if dtype not in PAGE_DTYPES.values():
            raise ValueError(f"pages cannot be {dtype}: only {', '.join(PAGE_DTYPES)}")
        layers, kv_heads, head_dim = shape.layers, shape.kv_heads, shape.head_dim
        if min(layers, kv_heads, head_dim, num_blocks, block_tokens) < 1 or host_blocks < 0:
            raise ValueError("a cache needs at least one layer, head, dimension, block and token per block")
        device = torch.device(device)
        self.num_blocks = num_blocks
        self.host_blocks = host_blocks
        self.block_tokens = block_tokens
        self.dtype = dtype
        self.bytes_per_token = shape.bytes_per_token(dtype)
        block = (kv_heads, block_tokens, head_dim)
        self._device = _Storage.allocate((layers, 2, num_blocks, *block), dtype, device, pinned=False, shared=shared)
        self._host = _Storage.allocate(
            (layers, 2, host_blocks, *block), dtype, torch.device("cpu"), pinned=device.type == "cuda"
        )
        self.pages = [_layer_pages(self._device, layer) for layer in range(layers)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (source, target) blocks in every layer, as if all at once."""
        self._transfer(self._device, self._device, pairs)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (device, host) blocks to host memory, bit for bit."""
        self._transfer(self._device, self._host, pairs)

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy (host, device) blocks back, bit for bit."""
        self._transfer(self._host, self._device, pairs)

    def _transfer(self, source: _Storage, target: _Storage, pairs: Sequence[tuple[int, int]]) -> None:
        if not pairs:
            return
        sources, targets = zip(*pairs, strict=True)
        assert len(set(targets)) == len(targets), "two blocks cannot land in one"
        assert min(*sources, *targets) >= 0, "a block number is never negative"
        target.write(targets, source, sources)


def _layer_pages(storage: _Storage, layer: int) -> Pages:
    k, v = storage.values[layer]
    if storage.scales is None:
        return Pages(k, v)
    k_scale, v_scale = storage.scales[layer]
    return Pages(k, v, k_scale, v_scale)

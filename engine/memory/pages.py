"""The tensors behind the KV blocks: pages for every layer, and host memory for what is swapped out.

An attention layer keeps the keys and values of all tokens of a block, a convolution the vectors of its last ones. They
are parts of the same block: what is copied, swapped or shared is shared with both.

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

from voxlane.engine.kernels.attention.pages import LayerPages, Pages, StatePages
from voxlane.engine.kernels.attention.swap import copy_blocks
from voxlane.engine.memory.blocks import StateWindow

PAGE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
"""The element types a page may have, under their names in the configuration."""

_SCALE_DTYPE = torch.bfloat16  # of int8 pages: one scale for each key and each value of each (token, head)

# Of convolutions' vectors, whatever type the pages have. The product of two bfloat16 numbers fits into a float32: a
# vector read back has the bits of the vector computed.
_STATE_DTYPE = torch.float32


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a model's convolutions keep in each block."""

    layers: tuple[int, ...]  # their places among all layers
    channels: int
    taps: int  # tokens that a convolution sees, the newest included

    def window(self, block_tokens: int) -> StateWindow:
        """Return how many vectors a block keeps: the fewest from which the next block can go on.

        More would let a rejected draft be dropped without computing a block's first tokens again, but a vector is
        large: of LFM2-1.2B, 80 KiB over all layers, as much as the keys and values of 7 tokens in bfloat16.
        """
        return StateWindow(self.taps - 1, min(self.taps - 1, block_tokens))

    def bytes_per_block(self, block_tokens: int) -> int:
        """Return what the vectors of one block take."""
        return len(self.layers) * self.window(block_tokens).slots * self.channels * _STATE_DTYPE.itemsize


@dataclass(frozen=True, slots=True)
class PageShape:
    """What a model keeps of one token: in each attention layer a key and a value per head."""

    layers: int  # those with attention
    kv_heads: int
    head_dim: int
    states: StateShape | None = None  # what its convolutions keep; None: it has none

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Return the cache bytes one token takes over all attention layers, keys and values and their scales."""
        scale_bytes = _SCALE_DTYPE.itemsize if dtype is torch.int8 else 0
        return self.layers * 2 * self.kv_heads * (self.head_dim * dtype.itemsize + scale_bytes)

    def bytes_per_block(self, dtype: torch.dtype, block_tokens: int) -> int:
        """Return the cache bytes one block takes over all layers."""
        states = 0 if self.states is None else self.states.bytes_per_block(block_tokens)
        return self.bytes_per_token(dtype) * block_tokens + states


@dataclass(frozen=True, slots=True)
class _Storage:
    """All layers in one tensor, so that a block moves through every layer with one call."""

    values: Tensor  # [layers, 2 (k, v), blocks, kv_heads, block_tokens, head_dim]
    scales: Tensor | None  # [layers, 2, blocks, kv_heads, block_tokens]
    states: Tensor | None  # [convolutions, 1, blocks, slots, channels]

    @classmethod
    def allocate(
        cls,
        shape: PageShape,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        pinned: bool,
        shared: bool = False,
    ) -> _Storage:
        # Never filled: the kernel hands out zero pages on first touch, so an idle cache costs address space only.
        # Attention masks by length, not by value, so what lies past a sequence's end is never read.
        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            if shared:
                return shared_memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
            return torch.empty(shape, dtype=dtype, device=device, pin_memory=pinned)

        tokens = (shape.layers, 2, blocks, shape.kv_heads, block_tokens)
        states = None
        if shape.states is not None:
            slots = shape.states.window(block_tokens).slots
            states = empty((len(shape.states.layers), 1, blocks, slots, shape.states.channels), _STATE_DTYPE)
        scales = empty(tokens, _SCALE_DTYPE) if dtype is torch.int8 else None
        return cls(empty((*tokens, shape.head_dim), dtype), scales, states)

    def write(self, targets: Sequence[int], source: _Storage, blocks: Sequence[int]) -> None:
        """Copy `blocks` of `source` over this storage's `targets`; every block is read before any is written."""
        copy_blocks(source.values, self.values, blocks, targets)
        if self.scales is not None and source.scales is not None:
            copy_blocks(source.scales, self.scales, blocks, targets)
        if self.states is not None and source.states is not None:
            copy_blocks(source.states, self.states, blocks, targets)


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
        self.bytes_per_token = shape.bytes_per_block(dtype, block_tokens) // block_tokens
        self.state = None if shape.states is None else shape.states.window(block_tokens)
        self._device = _Storage.allocate(shape, num_blocks, block_tokens, dtype, device, pinned=False, shared=shared)
        self._host = _Storage.allocate(
            shape, host_blocks, block_tokens, dtype, torch.device("cpu"), pinned=device.type == "cuda"
        )
        # Of the layers with attention.
        self.pages = [_layer_pages(self._device, layer) for layer in range(layers)]
        # Of all layers.
        self.layers = _in_order(shape, self.pages, self._device.states)

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


def _in_order(shape: PageShape, pages: list[Pages], states: Tensor | None) -> list[LayerPages]:
    """Return what every layer keeps, in the order of the layers."""
    found: list[LayerPages] = list(pages)
    block_tokens = pages[0].k.shape[2]
    if shape.states is not None and states is not None:
        for place, layer in zip(shape.states.layers, states, strict=True):
            found.insert(place, StatePages(layer[0], block_tokens))
    return found


def _layer_pages(storage: _Storage, layer: int) -> Pages:
    k, v = storage.values[layer]
    if storage.scales is None:
        return Pages(k, v)
    k_scale, v_scale = storage.scales[layer]
    return Pages(k, v, k_scale, v_scale)

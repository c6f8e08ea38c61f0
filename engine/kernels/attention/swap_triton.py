"""Whole KV blocks from one place to another in Triton: within the device, or between it and pinned host memory.

Every block is moved through all layers, keys and values, in one launch. Host memory is read and written in place, over
the bus, so nothing is staged.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 2048
"""8-byte words that one program moves at a time."""


@triton.jit
def _copy_kernel(source, target, pairs, source_outer, target_outer, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    outer, pair = tl.program_id(0).to(tl.int64), tl.program_id(1)
    from_block, to_block = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    start = source + outer * source_outer + from_block * SIZE
    end = target + outer * target_outer + to_block * SIZE
    for begin in range(0, SIZE, BLOCK):
        word = begin + tl.arange(0, BLOCK)
        value = tl.load(start + word, mask=word < SIZE)
        tl.store(end + word, value, mask=word < SIZE)


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """Copy blocks between storages [layers, 2, blocks, ...], contiguous; `pairs` [n, 2] int64 is (from, to).

    No block may be both read and written: programs run in any order.
    """
    if pairs.shape[0] == 0:
        return
    flat_source, flat_target = _words(source), _words(target)
    words = flat_source.shape[2]
    _copy_kernel[(flat_source.shape[0], pairs.shape[0])](
        *(flat_source, flat_target, pairs, flat_source.stride(0), flat_target.stride(0)),
        SIZE=words,
        BLOCK=min(WORDS, triton.next_power_of_2(words)),
        num_warps=4,
    )


def _words(storage: Tensor) -> Tensor:
    """Return a storage as [layers * 2, blocks, words] of the widest integer a block's bytes divide into."""
    layers, parts, blocks = storage.shape[:3]
    flat = storage.view(torch.uint8) if storage.dtype is torch.int8 else storage
    flat = flat.view(layers * parts, blocks, -1)
    for wide in (torch.int64, torch.int32, torch.int16):
        if flat.shape[2] * flat.element_size() % wide.itemsize == 0 and wide.itemsize >= flat.element_size():
            return flat.view(wide)
    return flat

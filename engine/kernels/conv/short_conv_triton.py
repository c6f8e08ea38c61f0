"""A gated short convolution in Triton, whose past lies in the KV blocks.

One program takes one token's next few channels. Where every row has one token, it also writes that token's products, to
the slot that it has read the oldest of its past from, or to another one of its own row. Else a second launch writes:
a row's later tokens overwrite what its first ones read. Arithmetic is float32 from the load to the store.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, StatePages

CHANNELS_PER_PROGRAM = 1024


@triton.jit
def _row_of(starts, token, rows, ROWS: tl.constexpr, SINGLE: tl.constexpr):
    """Return a token's row, or the number of rows if it has none, and the row's first and next token."""
    row, first, stop = token, token, token + 1
    if not SINGLE:
        number = tl.arange(0, ROWS)
        begins = tl.load(starts + number, mask=number <= rows, other=2147483647)
        before = begins <= token
        row = tl.sum(before.to(tl.int32), axis=0).to(tl.int64) - 1
        first = tl.max(tl.where(before, begins, 0), axis=0).to(tl.int64)
        stop = tl.min(tl.where(before, 2147483647, begins), axis=0).to(tl.int64)
    return row, first, stop


@triton.jit
def _conv_kernel(
    bcx, weight, bias, out, vectors, positions, slots, starts, tables, rows, table_stride, block_tokens, slot_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, ROWS: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < CHANNELS
    row, first, _ = _row_of(starts, token, rows, ROWS, SINGLE)
    position = tl.load(positions + token)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    product = total  # the newest token's, after the loop
    for tap in tl.static_range(TAPS):
        back = TAPS - 1 - tap
        here = bcx + (token - back) * 3 * CHANNELS + channel
        fresh = (real & (token - back >= first) & (row < rows)) != 0
        product = tl.load(here, mask=fresh, other=0.0).to(tl.float32)
        product *= tl.load(here + 2 * CHANNELS, mask=fresh, other=0.0).to(tl.float32)
        if back > 0:
            where = tl.maximum(position - back, 0)
            old = ((token - back < first) & (position >= back) & (row < rows)) != 0
            block = tl.load(tables + row * table_stride + where // block_tokens, mask=old, other=0).to(tl.int64)
            place = (block * slot_count + where % block_tokens % slot_count) * CHANNELS + channel
            product += tl.load(vectors + place, mask=(real & old) != 0, other=0.0)
        total += product * tl.load(weight + tap * CHANNELS + channel, mask=real, other=0.0)
    if bias is not None:
        total += tl.load(bias + channel, mask=real, other=0.0)
    gate = tl.load(bcx + (token * 3 + 1) * CHANNELS + channel, mask=real, other=0.0).to(tl.float32)
    result = tl.where(row < rows, gate * total, 0.0)
    tl.store(out + token * CHANNELS + channel, result.to(out.dtype.element_ty), mask=real)
    if SINGLE:
        slot = tl.load(slots + token).to(tl.int64)
        block, offset = slot // block_tokens, slot % block_tokens
        kept = vectors + (block * slot_count + offset % slot_count) * CHANNELS + channel
        tl.store(kept, product, mask=(real & (slot >= 0)) != 0)


@triton.jit
def _store_kernel(
    bcx, vectors, slots, starts, rows, block_tokens, slot_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write a token's products unless a later token of its row and block has their slot."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token).to(tl.int64)
    row, _, stop = _row_of(starts, token, rows, ROWS, False)
    block, offset = slot // block_tokens, slot % block_tokens
    last = ((token + slot_count >= stop) | (offset + slot_count >= block_tokens)) != 0
    kept = ((channel < CHANNELS) & (slot >= 0) & (row < rows) & last) != 0
    here = bcx + token * 3 * CHANNELS + channel
    product = tl.load(here, mask=kept, other=0.0).to(tl.float32)
    product *= tl.load(here + 2 * CHANNELS, mask=kept, other=0.0).to(tl.float32)
    tl.store(vectors + (block * slot_count + offset % slot_count) * CHANNELS + channel, product, mask=kept)


def short_conv(bcx: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, pages: StatePages) -> Tensor:
    """Return C * (conv(B * x) + bias) [T, channels] for `bcx` [T, 3 * channels]; write the tokens' products."""
    tokens, (taps, channels) = bcx.shape[0], weight.shape
    rows, slot_count = layout.block_tables.shape[0], pages.vectors.shape[1]
    out = torch.empty((tokens, channels), dtype=bcx.dtype, device=bcx.device)
    if tokens == 0:
        return out
    block = min(CHANNELS_PER_PROGRAM, triton.next_power_of_2(channels))
    grid = (tokens, triton.cdiv(channels, block))
    single, row_block = layout.max_query == 1, triton.next_power_of_2(rows + 1)
    _conv_kernel[grid](
        *(bcx, weight, bias, out, pages.vectors, layout.positions, layout.slots, layout.query_starts),
        *(layout.block_tables, rows, layout.block_tables.stride(0), pages.block_tokens, slot_count),
        CHANNELS=channels,
        BLOCK=block,
        TAPS=taps,
        ROWS=1 if single else row_block,
        SINGLE=single,
        num_warps=4,
    )
    if not single:
        _store_kernel[grid](
            *(bcx, pages.vectors, layout.slots, layout.query_starts, rows, pages.block_tokens, slot_count),
            CHANNELS=channels,
            BLOCK=block,
            ROWS=row_block,
            num_warps=4,
        )
    return out

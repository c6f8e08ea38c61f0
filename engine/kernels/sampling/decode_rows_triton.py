"""Fills a decode step's tokens and layout, in Triton, from the few numbers per row that the host sends.

PACKET is one row of int32: the token (~n: the last one chosen for row n), its position (negative: the row is empty),
the block of its key and value, and how the next token is chosen. Floats and halves of seeds are stored as their bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout

PACKET = 12
"""token, position, block, seed low, seed high, temperature, top_k, top_p, min_p, penalties' slot; padding."""


@triton.jit
def _unpack_kernel(
    packet, tokens, positions, slots, lengths, tables, chosen, rows, columns, block_tokens, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK)
    inside = row < rows
    start = packet + row * WIDTH
    position = tl.load(start + 1, mask=inside, other=-1)
    active = inside & (position >= 0)
    token = tl.load(start, mask=active, other=0)
    named = active & (token < 0)
    last = tl.load(chosen + tl.where(named, -1 - token, 0), mask=named, other=0)
    token = tl.where(named, tl.maximum(last, 0), token)  # a choice that failed is -1: its request has ended
    block = tl.load(start + 2, mask=active, other=0)
    tl.store(tables + row * columns + position // block_tokens, block, mask=active)
    tl.store(tokens + row, token.to(tl.int64), mask=inside)
    tl.store(positions + row, tl.maximum(position, 0), mask=inside)
    tl.store(slots + row, tl.where(active, block * block_tokens + position % block_tokens, -1), mask=inside)
    tl.store(lengths + row, position + 1, mask=inside)


def unpack(packet: Tensor, tokens: Tensor, layout: Layout, block_tokens: int, chosen: Tensor) -> None:
    """Fill tokens and layout for the rows of a packet [rows, PACKET]; each row's block goes into its table."""
    rows = packet.shape[0]
    _unpack_kernel[(1,)](
        *(packet, tokens, layout.positions, layout.slots, layout.context_lengths, layout.block_tables),
        *(chosen, rows, layout.block_tables.stride(0), block_tokens),
        WIDTH=PACKET,
        BLOCK=triton.next_power_of_2(rows),
        num_warps=1 if rows <= 32 else 4,
    )

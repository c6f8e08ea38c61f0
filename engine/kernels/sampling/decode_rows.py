"""Fills a decode step's tokens and layout from the few numbers per row that the host sends.

A packet's row (columns: sampling.py) holds the token, its position, which is negative for an empty row, and the block
of its key and value. A negative token ~n is the last one chosen for row n, which the host need not know yet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.kernels.sampling.sampling import BLOCK, MIN_P, POSITION, TOKEN


def unpack_ref(packet: Tensor, tokens: Tensor, layout: Layout, block_tokens: int, chosen: Tensor) -> None:
    """Fill tokens and layout for the rows of a packet; each row's block goes into its table."""
    token, position, block = packet[:, TOKEN], packet[:, POSITION], packet[:, BLOCK]
    # A row whose choice failed, -1, gets any token: its request has ended.
    token = torch.where(token < 0, chosen[(~token).clamp(min=0).long()].clamp(min=0), token)
    active = position >= 0
    rows = active.nonzero()[:, 0]
    layout.block_tables[rows, (position[rows] // block_tokens).long()] = block[rows]
    tokens.copy_(torch.where(active, token, 0))
    layout.positions.copy_(position.clamp(min=0))
    layout.slots.copy_(torch.where(active, block * block_tokens + position % block_tokens, -1))
    layout.context_lengths.copy_(position + 1)


def unpack(packet: Tensor, tokens: Tensor, layout: Layout, block_tokens: int, chosen: Tensor) -> None:
    """Fill tokens [rows] and layout for the rows of a packet [rows, columns]; each row's block goes into its table.

    `chosen` [rows before, int32] are the tokens chosen last, for packets that name a row instead of a token.
    An empty row gets token and position 0, a context of 0, and slot -1: nothing is read or written for it.
    """
    rows = packet.shape[0]
    if packet.dtype is not torch.int32 or packet.ndim != 2 or packet.shape[1] <= MIN_P or not packet.is_contiguous():
        raise ValueError(f"packet {tuple(packet.shape)} {packet.dtype}: contiguous int32 rows are needed")
    if tokens.shape != (rows,) or layout.block_tables.shape[0] != rows or layout.slots.shape != (rows,):
        raise ValueError(f"tokens and layout do not have the packet's {rows} rows")
    if chosen.dtype is not torch.int32 or chosen.ndim != 1 or not chosen.is_contiguous():
        raise ValueError(f"chosen {tuple(chosen.shape)} {chosen.dtype}: contiguous int32 tokens are needed")
    if packet.is_cuda:
        from voxlane.engine.kernels.sampling import decode_rows_triton

        decode_rows_triton.unpack(packet, tokens, layout, block_tokens, chosen)
    else:
        unpack_ref(packet, tokens, layout, block_tokens, chosen)

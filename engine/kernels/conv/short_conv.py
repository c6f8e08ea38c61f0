"""A gated short convolution over a step's tokens, whose past lies in the KV blocks.

Each token has an input x and two gates B and C. The convolution runs over the products B * x of a request's tokens, and
C gates its output. A token sees the tokens just before it: those of the same step come from the input, earlier ones
from the request's blocks. A block keeps the products of its last tokens, see StatePages.
"""

from __future__ import annotations

import ctypes
import itertools

import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.pages import Layout, StatePages


def short_conv_ref(bcx: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, pages: StatePages) -> Tensor:
    """Return C * (conv(B * x) + bias) [T, channels], one row of the batch after the other; write their products."""
    b, c, x = bcx.to(torch.float32).chunk(3, dim=1)
    product, taps = b * x, weight.shape[0]
    out = torch.zeros_like(product)
    starts, tables = layout.query_starts.tolist(), layout.block_tables.tolist()
    for table, (first, last) in zip(tables, itertools.pairwise(starts), strict=True):
        if first == last:
            continue
        begin = int(layout.positions[first])
        past = [_stored(pages, table, begin - back) for back in range(taps - 1, 0, -1)]
        seen = torch.cat([torch.stack(past), product[first:last]]) if past else product[first:last]
        total = torch.zeros_like(product[first:last])
        for tap in range(taps):
            total = total + seen[tap : tap + last - first] * weight[tap]
        out[first:last] = c[first:last] * (total if bias is None else total + bias)
    _store(product, layout, pages)
    return out.to(bcx.dtype)


def _stored(pages: StatePages, table: list[int], position: int) -> Tensor:
    """Return the product at a position before the step's first one; zeros before the first token."""
    if position < 0:
        return torch.zeros_like(pages.vectors[0, 0])
    return pages.vectors[table[position // pages.block_tokens], position % pages.block_tokens % pages.vectors.shape[1]]


def _store(product: Tensor, layout: Layout, pages: StatePages) -> None:
    """Write every product to its slot, in the order of the tokens: the last one in a slot stays."""
    slots, block_tokens = pages.vectors.shape[1], pages.block_tokens
    for token, slot in enumerate(layout.slots.tolist()):
        if slot >= 0:  # -1 is padding: nothing is written
            pages.vectors[slot // block_tokens, slot % block_tokens % slots] = product[token]


def short_conv_native(
    library: ctypes.CDLL,
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layout: Layout,
    pages: StatePages,
) -> Tensor:
    """Do short_conv_ref's work in conv/short_conv.cpp."""
    tokens, (taps, channels) = bcx.shape[0], weight.shape
    out = torch.empty((tokens, channels))
    library.vox_short_conv(
        bcx.data_ptr(),
        weight.data_ptr(),
        native.pointer(bias),
        out.data_ptr(),
        tokens,
        channels,
        taps,
        pages.vectors.data_ptr(),
        pages.vectors.shape[1],
        pages.block_tokens,
        layout.positions.data_ptr(),
        layout.slots.data_ptr(),
        layout.query_starts.data_ptr(),
        layout.block_tables.data_ptr(),
        *layout.block_tables.shape,
    )
    return out


def short_conv(bcx: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, pages: StatePages) -> Tensor:
    """Return C * (conv(B * x) + bias) [T, channels] for `bcx` [T, 3 * channels]; write the tokens' products.

    `weight` [taps, channels] float32 has the newest token's factors last. A slot of -1 writes nothing. The additions
    have one order, the oldest token first, so that bits depend neither on the batch nor on how a prompt was cut.
    """
    taps, channels = weight.shape
    if bcx.ndim != 2 or bcx.shape[1] != 3 * channels or not bcx.is_contiguous():
        raise ValueError(f"bcx {tuple(bcx.shape)} is not contiguous [T, 3 * {channels}]")
    vectors = pages.vectors
    if vectors.ndim != 3 or vectors.shape[2] != channels or vectors.shape[1] < min(taps - 1, pages.block_tokens):
        raise ValueError(f"pages {tuple(vectors.shape)} do not hold {taps - 1} vectors of {channels}")
    if vectors.dtype is not torch.float32 or not vectors.is_contiguous() or not weight.is_contiguous():
        raise ValueError("a convolution's pages are float32, and contiguous like its weight")
    if bcx.is_cuda:
        from voxlane.engine.kernels.conv import short_conv_triton

        return short_conv_triton.short_conv(bcx, weight, bias, layout, pages)
    library = native.library(bcx)
    if library is None:
        return short_conv_ref(bcx, weight, bias, layout, pages)
    return short_conv_native(library, bcx, weight, bias, layout, pages)

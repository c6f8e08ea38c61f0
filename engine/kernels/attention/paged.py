"""Attention over paged keys and values: every row of a batch, prefill chunks and decodes alike, in one call.

The native kernel walks the keys in tiles of 128 at fixed positions and joins the tiles in order, so that the bits of a
result depend neither on the batch, nor on how a prompt was cut into chunks, nor on the number of threads. On CUDA only
the Triton kernels serve: there decodes are cut so that every program reads equally much, and their last bits depend on
the batch.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import check_pages

MAX_HEAD_DIM = 256
"""The native kernel keeps a query tile's partial sums on the stack."""


def paged_attention_ref(
    q: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int = 0,
    *,
    causal: bool = True,
    softcap: float = 0.0,
) -> Tensor:
    """Return attention's output [T, H * D] for `q` [T, H, D], one row of the batch after the other."""
    tokens, heads, head_dim = q.shape
    out = torch.zeros((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    starts = layout.query_starts.tolist()
    for row, length in enumerate(layout.context_lengths.tolist()):
        first, last = starts[row], starts[row + 1]
        if first == last or length == 0:
            continue
        k, v = (gather(pages, layout.block_tables[row], length, part) for part in ("k", "v"))  # [KV, length, D]
        group = heads // k.shape[0]
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        scores = torch.einsum("thd,hcd->htc", q[first:last].to(torch.float32), k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        behind = layout.positions[first:last, None] - torch.arange(length, device=q.device)  # [t, length]
        hidden = (behind < 0) if causal else torch.zeros_like(behind, dtype=torch.bool)
        if window:
            hidden = hidden | (behind >= window)
        if layout.thinned_from is not None:
            scores[..., int(layout.thinned_from[row]) :] += math.log(layout.thinned)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out[first:last] = torch.einsum("htc,hcd->thd", weights, v).to(q.dtype)
    return out.view(tokens, heads * head_dim)


def gather(pages: Pages, table: Tensor, length: int, part: str) -> Tensor:
    """Return `part` ("k" or "v") of a row's first `length` positions as float32 [kv_heads, length, head_dim]."""
    page, scale = (pages.k, pages.k_scale) if part == "k" else (pages.v, pages.v_scale)
    blocks = table[: -(-length // page.shape[2])].long()
    found = page[blocks].transpose(0, 1).flatten(1, 2)[:, :length].to(torch.float32)
    if scale is None:
        return found
    return found * scale[blocks].transpose(0, 1).flatten(1, 2)[:, :length, None].to(torch.float32)


def paged_attention_native(
    library: ctypes.CDLL,
    q: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int,
    causal: bool,
    softcap: float,
) -> Tensor:
    """Do paged_attention_ref's work in attention/paged.cpp."""
    tokens, heads, head_dim = q.shape
    kv_heads = pages.k.shape[1]
    out = torch.empty((tokens, heads * head_dim))
    library.vox_paged_attention(
        q.data_ptr(),
        out.data_ptr(),
        heads,
        kv_heads,
        head_dim,
        native.page_type(pages.k),
        pages.k.data_ptr(),
        pages.v.data_ptr(),
        native.pointer(pages.k_scale),
        native.pointer(pages.v_scale),
        pages.k.shape[2],
        layout.positions.data_ptr(),
        layout.query_starts.data_ptr(),
        layout.context_lengths.data_ptr(),
        layout.block_tables.data_ptr(),
        layout.block_tables.shape[0],
        layout.block_tables.shape[1],
        scale,
        window,
        causal,
        softcap,
        native.pointer(layout.thinned_from),
        math.log(layout.thinned),
    )
    return out


def paged_attention(
    q: Tensor,
    pages: Pages,
    layout: Layout,
    scale: float,
    window: int = 0,
    *,
    causal: bool = True,
    softcap: float = 0.0,
) -> Tensor:
    """Return attention's output [T, H * D] for `q` [T, H, D].

    The query at layout.positions[t] attends to cached positions up to its own (all of them if not `causal`), and with
    a `window` only to those less than `window` behind it. Other positions contribute exactly nothing. From
    layout.thinned_from on, each key counts as `layout.thinned` equal ones; CPUs only.
    """
    _, heads, head_dim = q.shape
    kv_heads = pages.k.shape[1]
    if heads % kv_heads or not q.is_contiguous():
        raise ValueError(f"q {tuple(q.shape)} must be contiguous, with a multiple of {kv_heads} heads")
    if head_dim % 4 or head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim {head_dim} is not a multiple of 4 up to {MAX_HEAD_DIM}")
    check_pages(pages, kv_heads, head_dim)
    if q.is_cuda:
        from voxlane.engine.kernels.attention.paged_triton import (
            paged_attention_triton,  # here: without a device there may be no Triton
        )

        return paged_attention_triton(q, pages, layout, scale, window, causal=causal, softcap=softcap)
    library = native.library(q)
    if library is None:
        return paged_attention_ref(q, pages, layout, scale, window, causal=causal, softcap=softcap)
    return paged_attention_native(library, q, pages, layout, scale, window, causal, softcap)

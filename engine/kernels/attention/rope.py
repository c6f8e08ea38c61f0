"""From a fused projection to attention's input: norm of query and key heads, rotary embedding, write into the pages.

models/rotary.py makes the tables of cosines and sines.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.norm.rms_norm import rms_norm_ref

_PAGE_TYPES = (torch.float32, torch.bfloat16, torch.int8)


def quantise_heads(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 codes of `x` [..., D] and one bfloat16 scale per vector: largest magnitude / 127, rounded first."""
    scales = (x.abs().amax(dim=-1) / 127.0).to(torch.bfloat16)
    wide = scales.to(torch.float32)
    inverse = torch.where(wide > 0, 1.0 / wide, torch.zeros_like(wide))
    codes = (x * inverse[..., None]).round().clamp(-127, 127).to(torch.int8)
    return codes, scales


def rope_write_ref(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    pages: Pages,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Split `qkv`, norm and rotate queries and keys, write keys and values to their slots; return q [T, H, D]."""
    tokens = qkv.shape[0]
    all_heads = qkv.view(tokens, heads + 2 * kv_heads, head_dim)
    q = _rotate(_head_norm(all_heads[:, :heads], q_norm, eps), cos, sin, layout.positions)
    k = _rotate(_head_norm(all_heads[:, heads : heads + kv_heads], k_norm, eps), cos, sin, layout.positions)
    v = all_heads[:, heads + kv_heads :]
    kept = layout.slots >= 0  # -1 is padding: nothing is written
    slots = layout.slots[kept].long()
    block_tokens = pages.k.shape[2]
    where = (slots // block_tokens, slice(None), slots % block_tokens)
    _store(k[kept], pages.k, pages.k_scale, where)
    _store(v[kept], pages.v, pages.v_scale, where)
    return q.to(qkv.dtype)


def _head_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else rms_norm_ref(x, weight, eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    index = positions.long()
    c, s = cos[index][:, None, :], sin[index][:, None, :]  # [T, 1, D / 2]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


def _store(x: Tensor, page: Tensor, scale: Tensor | None, where: tuple[Tensor, slice, Tensor]) -> None:
    if scale is None:
        page[where] = x.to(page.dtype)
    else:
        page[where], scale[where] = quantise_heads(x)


def rope_write_native(
    library: ctypes.CDLL,
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    pages: Pages,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """Do rope_write_ref's work in attention/rope.cpp."""
    tokens = qkv.shape[0]
    q = torch.empty((tokens, heads, head_dim))
    library.vox_rope_write(
        qkv.data_ptr(),
        q.data_ptr(),
        tokens,
        heads,
        kv_heads,
        head_dim,
        cos.data_ptr(),
        sin.data_ptr(),
        layout.positions.data_ptr(),
        layout.slots.data_ptr(),
        native.page_type(pages.k),
        pages.k.data_ptr(),
        pages.v.data_ptr(),
        native.pointer(pages.k_scale),
        native.pointer(pages.v_scale),
        pages.k.shape[2],
        native.pointer(q_norm),
        native.pointer(k_norm),
        eps,
    )
    return q


def rope_write(
    qkv: Tensor,
    heads: int,
    kv_heads: int,
    head_dim: int,
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    pages: Pages,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Split `qkv`, norm and rotate queries and keys, write keys and values to their slots; return q [T, H, D].

    `cos` and `sin` [positions, D / 2] are indexed by layout.positions; a slot of -1 writes nothing. int8 pages get one
    bfloat16 scale per (token, head), rounded before the codes are taken from it.
    """
    if qkv.ndim != 2 or qkv.shape[1] != (heads + 2 * kv_heads) * head_dim or head_dim % 4 or not qkv.is_contiguous():
        raise ValueError(f"qkv {tuple(qkv.shape)} is not contiguous [T, ({heads} + 2 * {kv_heads}) * {head_dim}]")
    if cos.shape[1] * 2 != head_dim or sin.shape != cos.shape:
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not fit head_dim {head_dim}")
    check_pages(pages, kv_heads, head_dim)
    if qkv.is_cuda:
        from voxlane.engine.kernels.attention import rope_triton

        return rope_triton.rope_write(qkv, heads, kv_heads, head_dim, cos, sin, layout, pages, q_norm, k_norm, eps)
    library = native.library(qkv)
    if library is None:
        return rope_write_ref(qkv, heads, kv_heads, head_dim, cos, sin, layout, pages, q_norm, k_norm, eps)
    return rope_write_native(library, qkv, heads, kv_heads, head_dim, cos, sin, layout, pages, q_norm, k_norm, eps)


def check_pages(pages: Pages, kv_heads: int, head_dim: int) -> None:
    """Raise ValueError unless `pages` hold `kv_heads` vectors of `head_dim` a token, with scales if they are int8."""
    k = pages.k
    if k.dtype not in _PAGE_TYPES or k.ndim != 4 or k.shape[1] != kv_heads or k.shape[3] != head_dim:
        raise ValueError(f"pages {tuple(k.shape)} {k.dtype} do not hold {kv_heads} heads of {head_dim}")
    if (k.dtype is torch.int8) != (pages.k_scale is not None):
        raise ValueError("int8 pages need scales, and only they have them")

"""A whole stack of layers in one call gives the bits of the loop it replaces."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.paged import gather, paged_attention
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import rope_write
from voxlane.engine.kernels.linear.linear import PackedWeight, linear, pack
from voxlane.engine.kernels.linear.stack import Stack, fits
from voxlane.engine.kernels.norm.activation import gelu_tanh_mul, silu_mul
from voxlane.engine.kernels.norm.rms_norm import add_rms_norm, rms_norm
from voxlane.engine.weights.tensors import quantise

from .batches import Shape, layout, new_pages, rotary, tables

SHAPE = Shape(heads=4, kv_heads=2, head_dim=16)
HIDDEN, INNER, LAYERS = 64, 96, 3
Weight = Tensor | PackedWeight


@dataclass(frozen=True, slots=True)
class Layer:
    qkv: Weight
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    cos: Tensor
    sin: Tensor
    window: int
    out: Weight
    out_bias: Tensor | None
    after_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Weight
    gate_up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None
    after_mlp_norm: Tensor | None
    next_norm: Tensor


def make_layer(kind: str, *, rich: bool, window: int, random: torch.Generator) -> Layer:
    """Return a random layer; a rich one has every part that some model leaves out."""

    def matrix(out: int, inputs: int) -> Weight:
        dense = torch.randn((out, inputs), generator=random) * inputs**-0.5
        return pack(quantise(dense)) if kind == "packed" else dense.to(getattr(torch, kind))

    def vector(size: int, *, there: bool = True) -> Tensor | None:
        return torch.rand(size, generator=random) + 0.5 if there else None

    mlp_norm, next_norm = vector(HIDDEN), vector(HIDDEN)
    assert mlp_norm is not None
    assert next_norm is not None
    return Layer(
        matrix(SHAPE.columns, HIDDEN),
        vector(SHAPE.columns, there=rich),
        vector(SHAPE.head_dim, there=rich),
        vector(SHAPE.head_dim, there=rich),
        *rotary(256, SHAPE.head_dim),
        window,
        matrix(HIDDEN, SHAPE.heads * SHAPE.head_dim),
        vector(HIDDEN, there=rich),
        vector(HIDDEN, there=rich),
        mlp_norm,
        matrix(2 * INNER, HIDDEN),
        vector(2 * INNER, there=rich),
        matrix(HIDDEN, INNER),
        vector(HIDDEN, there=rich),
        vector(HIDDEN, there=rich),
        next_norm,
    )


def loop(
    layers: list[Layer], first: Tensor, residual: Tensor, place: Layout, pages: list[Pages], *, gelu: bool
) -> Tensor:
    """The order of operations, spelled out."""
    x = rms_norm(residual, first, 1e-5)
    for layer, page in zip(layers, pages, strict=True):
        qkv = linear(x, layer.qkv, layer.qkv_bias)
        sizes = (SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim)
        q = rope_write(qkv, *sizes, layer.cos, layer.sin, place, page, layer.q_norm, layer.k_norm, 1e-5)
        x = linear(paged_attention(q, page, place, 0.25, layer.window, softcap=20.0), layer.out, layer.out_bias)
        if layer.after_attention_norm is not None:
            x = rms_norm(x, layer.after_attention_norm, 1e-5)
        x, residual = add_rms_norm(x, residual, layer.mlp_norm, 1e-5)
        gated = (gelu_tanh_mul if gelu else silu_mul)(linear(x, layer.gate_up, layer.gate_up_bias))
        x = linear(gated, layer.down, layer.down_bias)
        if layer.after_mlp_norm is not None:
            x = rms_norm(x, layer.after_mlp_norm, 1e-5)
        x, residual = add_rms_norm(x, residual, layer.next_norm, 1e-5)
    return x


@pytest.mark.parametrize("kind", ["packed", "float32", "bfloat16"])
@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("page", [torch.float32, torch.bfloat16, torch.int8])
def test_stack_is_the_loop_to_the_bit(
    kind: str, rich: bool, page: torch.dtype, library: ctypes.CDLL, random: torch.Generator
) -> None:
    layers = [make_layer(kind, rich=rich, window=9 * index, random=random) for index in range(LAYERS)]
    first = torch.rand(HIDDEN, generator=random)
    table, blocks = tables([40, 40], 16, random)
    ours, theirs = ([new_pages(SHAPE, blocks, page) for _ in range(LAYERS)] for _ in range(2))
    stack = Stack(layers, first, 4, 2, 16, 1e-5, 0.25, 20.0, gelu=rich)
    assert fits(layers)
    for rows in ([(0, 30), (0, 7)], [(30, 1), (7, 1)], [(31, 4), (8, 0)]):  # prefill, decode, one row alone
        place = layout(rows, table, 16)
        x = torch.randn((place.positions.shape[0], HIDDEN), generator=random)
        got = stack.run(x.clone(), place, ours)
        assert got is not None
        assert torch.equal(got, loop(layers, first, x.clone(), place, theirs, gelu=rich))
    for mine, other in zip(ours, theirs, strict=True):
        for part in ("k", "v"):
            assert torch.equal(gather(mine, table[0], 35, part), gather(other, table[0], 35, part))


def test_stack_leaves_the_work_where_it_cannot_do_it(
    monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL, random: torch.Generator
) -> None:
    layer = make_layer("float32", rich=False, window=0, random=random)
    stack = Stack([layer], layer.next_norm, 4, 2, 16, 1e-5, 0.25, 0.0, gelu=False)
    table, blocks = tables([3], 16, random)
    pages, place = [new_pages(SHAPE, blocks, torch.float32)], layout([(0, 3)], table, 16)
    assert stack.run(torch.zeros((3, HIDDEN), dtype=torch.bfloat16), place, pages) is None
    monkeypatch.setattr(native, "_library", None)
    assert stack.run(torch.zeros((3, HIDDEN)), place, pages) is None
    assert not fits([replace(layer, out=torch.zeros((64, 64), dtype=torch.float64))])

"""A whole stack of layers in one call gives the bits of the loop it replaces."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.paged import gather, paged_attention
from voxlane.engine.kernels.attention.pages import LayerPages, Layout, Pages, StatePages
from voxlane.engine.kernels.attention.rope import rope_write
from voxlane.engine.kernels.conv.short_conv import short_conv
from voxlane.engine.kernels.linear.linear import linear, pack
from voxlane.engine.kernels.linear.stack import Stack, fits
from voxlane.engine.kernels.linear.weights import (
    AttentionWeights,
    ConvolutionWeights,
    DenseWeights,
    ExpertWeights,
    LayerWeights,
    Weight,
)
from voxlane.engine.kernels.norm.activation import gelu_tanh_mul, silu_mul
from voxlane.engine.kernels.norm.rms_norm import add_rms_norm, rms_norm
from voxlane.engine.weights.tensors import quantise

from .batches import Shape, layout, new_pages, rotary, tables

SHAPE = Shape(heads=4, kv_heads=2, head_dim=16)
HIDDEN, INNER, LAYERS, TAPS = 64, 96, 4, 3
CONVOLVING = (1, 3)  # layers of the hybrid stack


def make_layer(kind: str, *, rich: bool, window: int, random: torch.Generator, convolves: bool = False) -> LayerWeights:
    """Return a random layer; a rich one has every part that some model leaves out."""

    def matrix(out: int, inputs: int) -> Weight:
        dense = torch.randn((out, inputs), generator=random) * inputs**-0.5
        return pack(quantise(dense)) if kind == "packed" else dense.to(getattr(torch, kind))

    def vector(size: int) -> Tensor:
        return torch.rand(size, generator=random) + 0.5

    def maybe(size: int) -> Tensor | None:
        return vector(size) if rich else None

    feed = DenseWeights(matrix(2 * INNER, HIDDEN), maybe(2 * INNER), matrix(HIDDEN, INNER), maybe(HIDDEN))
    if convolves:
        return ConvolutionWeights(
            mix=matrix(3 * HIDDEN, HIDDEN),
            mix_bias=maybe(3 * HIDDEN),
            out=matrix(HIDDEN, HIDDEN),
            out_bias=maybe(HIDDEN),
            mlp_norm=vector(HIDDEN),
            feed=feed,
            next_norm=vector(HIDDEN),
            taps=torch.randn((TAPS, HIDDEN), generator=random),
            taps_bias=maybe(HIDDEN),
        )
    cos, sin = rotary(256, SHAPE.head_dim)
    return AttentionWeights(
        mix=matrix(SHAPE.columns, HIDDEN),
        mix_bias=maybe(SHAPE.columns),
        out=matrix(HIDDEN, SHAPE.heads * SHAPE.head_dim),
        out_bias=maybe(HIDDEN),
        after_attention_norm=maybe(HIDDEN),
        mlp_norm=vector(HIDDEN),
        feed=feed,
        after_mlp_norm=maybe(HIDDEN),
        next_norm=vector(HIDDEN),
        q_norm=maybe(SHAPE.head_dim),
        k_norm=maybe(SHAPE.head_dim),
        cos=cos,
        sin=sin,
        window=window,
    )


def pages_of(layer: LayerWeights, blocks: int, kind: torch.dtype) -> LayerPages:
    """Return pages of a layer's kind that hold nothing of use."""
    if isinstance(layer, ConvolutionWeights):
        return StatePages(torch.full((blocks, TAPS - 1, HIDDEN), float("nan")), SHAPE.block_tokens)
    return new_pages(SHAPE, blocks, kind)


def mix(inputs: Tensor, layer: LayerWeights, page: LayerPages, place: Layout) -> Tensor:
    if isinstance(layer, ConvolutionWeights):
        assert isinstance(page, StatePages)
        return short_conv(inputs, layer.taps, layer.taps_bias, place, page)
    assert isinstance(page, Pages)
    sizes = (SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim)
    q = rope_write(inputs, *sizes, layer.cos, layer.sin, place, page, layer.q_norm, layer.k_norm, 1e-5)
    return paged_attention(q, page, place, 0.25, layer.window, softcap=20.0)


def loop(
    layers: list[LayerWeights], first: Tensor, residual: Tensor, place: Layout, pages: list[LayerPages], *, gelu: bool
) -> Tensor:
    """The order of operations, spelled out."""
    x = rms_norm(residual, first, 1e-5)
    for layer, page in zip(layers, pages, strict=True):
        x = linear(mix(linear(x, layer.mix, layer.mix_bias), layer, page, place), layer.out, layer.out_bias)
        if layer.after_attention_norm is not None:
            x = rms_norm(x, layer.after_attention_norm, 1e-5)
        x, residual = add_rms_norm(x, residual, layer.mlp_norm, 1e-5)
        feed = layer.feed
        assert isinstance(feed, DenseWeights)
        gated = (gelu_tanh_mul if gelu else silu_mul)(linear(x, feed.gate_up, feed.gate_up_bias))
        x = linear(gated, feed.down, feed.down_bias)
        if layer.after_mlp_norm is not None:
            x = rms_norm(x, layer.after_mlp_norm, 1e-5)
        x, residual = add_rms_norm(x, residual, layer.next_norm, 1e-5)
    return x


@pytest.mark.parametrize("kind", ["packed", "float32", "bfloat16"])
@pytest.mark.parametrize("rich", [False, True])
@pytest.mark.parametrize("page", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("hybrid", [False, True])
def test_stack_is_the_loop_to_the_bit(
    kind: str, rich: bool, page: torch.dtype, hybrid: bool, library: ctypes.CDLL, random: torch.Generator
) -> None:
    convolving = CONVOLVING if hybrid else ()
    layers = [
        make_layer(kind, rich=rich, window=9 * index, random=random, convolves=index in convolving)
        for index in range(LAYERS)
    ]
    first = torch.rand(HIDDEN, generator=random)
    table, blocks = tables([40, 40], 16, random)
    ours, theirs = ([pages_of(layer, blocks, page) for layer in layers] for _ in range(2))
    stack = Stack(layers, first, 4, 2, 16, 1e-5, 0.25, 20.0, gelu=rich)
    assert fits(layers)
    for rows in ([(0, 30), (0, 7)], [(30, 1), (7, 1)], [(31, 4), (8, 0)]):  # prefill, decode, one row alone
        place = layout(rows, table, 16)
        x = torch.randn((place.positions.shape[0], HIDDEN), generator=random)
        got = stack.run(x.clone(), place, ours)
        assert got is not None
        assert torch.equal(got, loop(layers, first, x.clone(), place, theirs, gelu=rich))
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(mine, StatePages):
            assert isinstance(other, StatePages)
            assert torch.equal(mine.vectors.nan_to_num(7.0), other.vectors.nan_to_num(7.0))
            continue
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
    experts = ExpertWeights(torch.zeros((2, HIDDEN)), None, (), (), chosen=1, normed=True, scale=1.0)
    assert not fits([replace(layer, feed=experts)])

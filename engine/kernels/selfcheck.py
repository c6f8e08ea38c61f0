"""Checks one small call of every native operation against its reference, when the library is loaded or a person asks.

A compiler's bug or an untested instruction set then costs speed, and gives no wrong results. The shapes reach each code
path once; the tests are thorough.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxlane.engine.kernels.attention import paged, rope
from voxlane.engine.kernels.attention.pages import Layout, Pages, StatePages
from voxlane.engine.kernels.conv import short_conv
from voxlane.engine.kernels.linear import linear, routing
from voxlane.engine.kernels.norm import activation, layer_norm, rms_norm
from voxlane.engine.weights.tensors import Blocks, quantise

_CLOSE = 2e-4
"""float32 sums in another order stay far below this, a wrong lane far above."""

_ONE_CODE = 0.01
"""Keys that differ in their last bit may be stored one int8 or bfloat16 code apart."""

Comparison = tuple[Tensor, Tensor, float]  # result, expected result, largest error as a part of the latter
Check = Callable[[ctypes.CDLL, torch.Generator], Iterator[Comparison]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close an operation came to its reference: the largest error as a part of the largest number."""

    name: str
    error: float
    tolerance: float
    failure: str = ""  # one line, if it did not run

    @property
    def good(self) -> bool:
        """Whether the operation may be used."""
        return not self.failure and self.error <= self.tolerance


def agreement(name: str, comparisons: Iterable[Comparison]) -> Agreement:
    """Return the worst of some comparisons, relative to each one's tolerance."""
    found = [Agreement(name, relative_error(got, expected), tolerance) for got, expected, tolerance in comparisons]
    return max(found, key=lambda each: each.error / each.tolerance)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a part of the largest expected number; infinity if a number is not finite."""
    scale = float(expected.abs().max())
    error = float((got.to(torch.float32) - expected.to(torch.float32)).abs().max()) / (scale or 1.0)
    return error if math.isfinite(error) else math.inf


def agreements(library: ctypes.CDLL) -> Iterator[Agreement]:
    """Check every native operation."""
    random = torch.Generator().manual_seed(7)
    checks: dict[str, Check] = {
        "linear": _linear,
        "packed linear": _packed,
        "row operations": _rows,
        "rope and attention": _attention,
        "short convolution": _short_conv,
        "routing": _routing,
    }
    for name, check in checks.items():
        yield agreement(name, check(library, random))


def first_mismatch(library: ctypes.CDLL) -> str:
    """Return the name of the first operation that disagrees with its reference, or ""."""
    return next((each.name for each in agreements(library) if not each.good), "")


def _linear(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    x, weight, bias = (torch.randn(shape, generator=random) for shape in ((5, 70), (9, 70), (9,)))
    yield linear.linear_native(library, x, weight, bias), linear.linear_ref(x, weight, bias), _CLOSE
    narrow = weight.to(torch.bfloat16)
    yield linear.linear_native(library, x, narrow, bias), linear.linear_ref(x, narrow, bias), _CLOSE


def _packed(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    bias = torch.randn(40, generator=random)
    for blocks in _blocks(random):
        weight = linear.pack(blocks)
        for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 19):
            x = torch.randn((tokens, 64), generator=random)
            yield linear.linear_native(library, x, weight, bias), linear.linear_ref(x, weight, bias), _CLOSE
        ids = torch.tensor([0, 17, 39])
        yield linear.embed_native(library, ids, weight), blocks.dequantise()[ids], _CLOSE


def _blocks(random: torch.Generator) -> Iterator[Blocks]:
    """Yield a matrix of 40 x 64 in every form that can be packed."""
    yield quantise(torch.randn((40, 64), generator=random))
    for bits, groups, minimum in ((4, 2, False), (4, 2, True), (5, 2, False), (5, 2, True), (6, 4, False)):
        codes = torch.randint(0, 1 << bits, (40, 64), generator=random, dtype=torch.uint8)
        scales, minimums = torch.rand((2, 40, groups), generator=random).to(torch.float16).to(torch.float32)
        yield Blocks(bits, codes, scales, -8.0 * minimums if minimum else None)


def _rows(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    x = torch.randn((3, 70), generator=random) * 4.0
    weight = torch.rand(70, generator=random)
    yield rms_norm.rms_norm_native(library, x, weight, 1e-5), rms_norm.rms_norm_ref(x, weight, 1e-5), _CLOSE
    got = rms_norm.add_rms_norm_native(library, x, x.flip(0), weight, 1e-5)
    expected = rms_norm.add_rms_norm_ref(x, x.flip(0), weight, 1e-5)
    yield got[0], expected[0], _CLOSE
    yield got[1], expected[1], _CLOSE
    bias = x[0].clone()
    yield (
        layer_norm.layer_norm_native(library, x, weight, bias, 1e-5),
        layer_norm.layer_norm_ref(x, weight, bias, 1e-5),
        _CLOSE,
    )
    summed = layer_norm.add_layer_norm_native(library, x, x.flip(0), weight, bias, 1e-5)
    wanted = layer_norm.add_layer_norm_ref(x, x.flip(0), weight, bias, 1e-5)
    yield summed[0], wanted[0], _CLOSE
    yield summed[1], wanted[1], _CLOSE
    yield layer_norm.curve_native(library, x.clone(), "vox_gelu"), torch.nn.functional.gelu(x), _CLOSE
    yield layer_norm.curve_native(library, x.clone(), "vox_tanh"), torch.tanh(x), _CLOSE
    yield activation.gate_native(library.vox_silu_mul, x), activation.silu_mul_ref(x), _CLOSE
    yield activation.gate_native(library.vox_gelu_tanh_mul, x), activation.gelu_tanh_mul_ref(x), _CLOSE


def _attention(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    """Fill 150 positions of one row in a single prefill, for every type of page."""
    tokens, heads, kv_heads, dim, block = 150, 4, 2, 24, 16
    qkv = torch.randn((tokens, (heads + 2 * kv_heads) * dim), generator=random)
    angles = torch.rand((tokens, dim // 2), generator=random) * 6.0
    index = torch.arange(tokens, dtype=torch.int32)
    table = torch.arange(10, dtype=torch.int32)[None]
    ends = torch.tensor([0, tokens], dtype=torch.int32)
    layout = Layout(index, index, ends, ends[1:], table)
    thinned = replace(layout, thinned_from=ends[1:] // 3, thinned=4)
    gain = torch.rand(dim, generator=random)
    for kind in (torch.float32, torch.bfloat16, torch.int8):
        pages = [_pages(kind, (10, kv_heads, block, dim)) for _ in range(2)]
        q = rope.rope_write_native(
            library, qkv, heads, kv_heads, dim, angles.cos(), angles.sin(), layout, pages[0], gain, gain, 1e-6
        )
        expected = rope.rope_write_ref(
            qkv, heads, kv_heads, dim, angles.cos(), angles.sin(), layout, pages[1], gain, gain, 1e-6
        )
        yield q, expected, _CLOSE
        for place, window, softcap in ((layout, 0, 0.0), (layout, 33, 20.0), (thinned, 0, 0.0)):
            got = paged.paged_attention_native(library, expected, pages[1], place, 0.2, window, True, softcap)
            wanted = paged.paged_attention_ref(expected, pages[1], place, 0.2, window, softcap=softcap)
            yield got, wanted, _CLOSE
        for part in ("k", "v"):
            stored = [paged.gather(page, table[0], tokens, part) for page in pages]
            yield stored[0], stored[1], _CLOSE if kind is torch.float32 else _ONE_CODE


def _short_conv(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    """Read 21 tokens of one row and one of another, then a few more of both."""
    channels, block = 40, 4
    weight, bias = torch.randn((3, channels), generator=random), torch.randn(channels, generator=random)
    tables = torch.arange(16, dtype=torch.int32).view(2, 8)
    states = [StatePages(torch.zeros((16, 2, channels)), block) for _ in range(2)]
    for begins, ends in (((0, 0), (21, 1)), ((21, 1), (24, 2))):
        layout = _rows_layout(tables, begins, ends, block)
        bcx = torch.randn((len(layout.positions), 3 * channels), generator=random)
        got = short_conv.short_conv_native(library, bcx, weight, bias, layout, states[0])
        yield got, short_conv.short_conv_ref(bcx, weight, bias, layout, states[1]), _CLOSE
        yield states[0].vectors, states[1].vectors, _CLOSE


def _routing(library: ctypes.CDLL, random: torch.Generator) -> Iterator[Comparison]:
    scores, bias = torch.randn((5, 37), generator=random), torch.randn(37, generator=random)
    for added, normed in ((None, False), (bias, True)):
        got = routing.route_native(library, scores.clone(), added, 4, normed=normed, scale=1.5)
        expected = routing.route_ref(scores, added, 4, normed=normed, scale=1.5)
        yield got[0], expected[0], 1e-9
        yield got[1], expected[1], _CLOSE


def _rows_layout(tables: Tensor, begins: Sequence[int], ends: Sequence[int], block_tokens: int) -> Layout:
    """Return the layout of rows whose tokens from `begins` to `ends` are computed."""
    positions = [torch.arange(begin, end) for begin, end in zip(begins, ends, strict=True)]
    slots = [
        table[where // block_tokens] * block_tokens + where % block_tokens
        for table, where in zip(tables, positions, strict=True)
    ]
    starts = torch.tensor([0, *itertools.accumulate(map(len, positions))], dtype=torch.int32)
    lengths = torch.tensor(ends, dtype=torch.int32)
    return Layout(torch.cat(positions).int(), torch.cat(slots).int(), starts, lengths, tables)


def _pages(kind: torch.dtype, shape: tuple[int, ...]) -> Pages:
    k, v = torch.zeros(shape, dtype=kind), torch.zeros(shape, dtype=kind)
    if kind is not torch.int8:
        return Pages(k, v)
    return Pages(k, v, torch.zeros(shape[:3], dtype=torch.bfloat16), torch.zeros(shape[:3], dtype=torch.bfloat16))

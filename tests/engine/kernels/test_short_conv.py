"""Short convolutions over paged pasts: against a convolution over whole sequences, and fast paths against the slow."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, StatePages
from voxlane.engine.kernels.conv import short_conv_triton
from voxlane.engine.kernels.conv.short_conv import short_conv, short_conv_native, short_conv_ref

from .batches import layout, tables

CHANNELS, BLOCK = 40, 4
STEPS = (
    [(0, 9), (0, 1), (0, 0), (0, 4)],  # a long prompt, a single token, a row that waits, a whole block
    [(9, 1), (1, 1), (0, 3), (4, 1)],  # decodes beside a prompt
    [(10, 5), (2, 1), (3, 1), (5, 2)],  # chunks that begin inside a block
    [(15, 1), (3, 1), (4, 1), (7, 1)],  # decodes alone
)

Convolve = Callable[[Tensor, Tensor, Tensor | None, Layout, StatePages], Tensor]


class Case:
    """Weights, pages that hold nothing of use, and tables in scrambled order."""

    def __init__(self, taps: int, slots: int, random: torch.Generator, *, biased: bool = True) -> None:
        self.weight = torch.randn((taps, CHANNELS), generator=random)
        self.bias = torch.randn(CHANNELS, generator=random) if biased else None
        self.table, self.blocks = tables([20] * 4, BLOCK, random)
        self.slots = slots
        self.inputs = torch.randn((4, 20, 3 * CHANNELS), generator=random)

    def pages(self) -> StatePages:
        return StatePages(torch.full((self.blocks, self.slots, CHANNELS), float("nan")), BLOCK)

    def step(self, rows: list[tuple[int, int]]) -> tuple[Tensor, Layout]:
        bcx = torch.cat([self.inputs[row, start : start + count] for row, (start, count) in enumerate(rows)])
        return bcx, layout(rows, self.table, BLOCK)

    def run(self, convolve: Convolve, steps: tuple[list[tuple[int, int]], ...] = STEPS) -> tuple[Tensor, Tensor]:
        """Return the outputs of all steps, and the pages after them."""
        pages, outs = self.pages(), []
        for rows in steps:
            bcx, place = self.step(rows)
            outs.append(convolve(bcx, self.weight, self.bias, place, pages))
        return torch.cat(outs), pages.vectors.nan_to_num(7.0)


def triton(bcx: Tensor, weight: Tensor, bias: Tensor | None, place: Layout, pages: StatePages) -> Tensor:
    """Run as the runners do: they say so if every row has one token."""
    counts = place.query_starts.diff()
    return short_conv_triton.short_conv(
        bcx, weight, bias, replace(place, max_query=1) if bool((counts == 1).all()) else place, pages
    )


SIZES = [(2, 1), (3, 4), (4, 3), (6, 4)]
sizes = pytest.mark.parametrize(("taps", "slots"), SIZES)


@sizes
def test_pieces_are_a_convolution_over_the_whole(taps: int, slots: int, random: torch.Generator) -> None:
    case = Case(taps, slots, random)
    pages = case.pages()
    found: list[list[Tensor]] = [[], [], [], []]
    for rows in STEPS:
        bcx, place = case.step(rows)
        out = short_conv_ref(bcx, case.weight, case.bias, place, pages)
        for row, (first, last) in enumerate(itertools.pairwise(place.query_starts.tolist())):
            found[row].append(out[first:last])
    for row, parts in enumerate(found):
        b, c, x = case.inputs[row].chunk(3, dim=1)
        whole = torch.nn.functional.conv1d(
            torch.nn.functional.pad((b * x).T[None], (taps - 1, 0)), case.weight.T[:, None], case.bias, groups=CHANNELS
        )[0].T
        got = torch.cat(parts)
        torch.testing.assert_close(got, (c * whole)[: len(got)], rtol=1e-5, atol=1e-5)


@sizes
@pytest.mark.parametrize("biased", [False, True])
def test_native_has_the_bits_of_the_reference(
    taps: int, slots: int, biased: bool, threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    case = Case(taps, slots, random, biased=biased)
    expected = case.run(short_conv_ref)
    got = case.run(lambda *parts: short_conv_native(library, *parts))
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_bits_depend_neither_on_threads_nor_on_cuts(
    threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    """A long row is shared among threads; its bits are those of single tokens."""
    channels, count = 1024, 40
    weight, inputs = torch.randn((3, channels), generator=random), torch.randn((count, 3 * channels), generator=random)
    table, blocks = tables([count], 16, random)

    def run(cuts: list[int]) -> tuple[Tensor, Tensor]:
        pages = StatePages(torch.zeros((blocks, 2, channels)), 16)
        outs = [
            short_conv(inputs[begin:end], weight, None, layout([(begin, end - begin)], table, 16), pages)
            for begin, end in itertools.pairwise(cuts)
        ]
        return torch.cat(outs), pages.vectors

    whole, single, odd = run([0, count]), run(list(range(count + 1))), run([0, 7, 15, 18, 33, count])
    for out, kept in (single, odd):
        assert torch.equal(out, whole[0])
        assert torch.equal(kept, whole[1])


@pytest.mark.parametrize("dtype", sweep([torch.float32, torch.bfloat16]))
@pytest.mark.parametrize(("taps", "slots"), sweep([(3, 2), *SIZES]))
def test_triton_is_the_reference(taps: int, slots: int, dtype: torch.dtype, random: torch.Generator) -> None:
    case = Case(taps, slots, random)
    case.inputs = case.inputs.to(dtype)
    out, kept = case.run(triton)
    expected, stored = case.run(short_conv_ref)
    assert torch.equal(kept, stored)  # one product, rounded once
    assert out.dtype is dtype
    tolerance = 1e-5 if dtype is torch.float32 else 8e-3
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("convolve", [short_conv_ref, short_conv, triton])
def test_padding_writes_nothing_and_reads_nothing(convolve: Convolve, random: torch.Generator) -> None:
    """Rows without tokens, tokens without rows, and slots of -1, as graphs pad their steps."""
    case = Case(3, 2, random)
    bcx, place = case.step([(0, 3), (0, 2), (0, 0), (0, 0)])
    padded = replace(
        place,
        positions=torch.cat([place.positions, torch.zeros(3, dtype=torch.int32)]),
        slots=torch.cat([place.slots[:3], torch.full((5,), -1, dtype=torch.int32)]),
    )
    pages, exact = case.pages(), case.pages()
    out = convolve(torch.cat([bcx, bcx[:3]]), case.weight, case.bias, padded, pages)
    wanted = short_conv_ref(bcx, case.weight, case.bias, place, exact)
    torch.testing.assert_close(out[:5], wanted, rtol=1e-5, atol=1e-5)
    assert not out[5:].any()
    written = ~exact.vectors.isnan()
    written[case.table[1, 0].long()] = False  # the second row's slots were -1
    assert torch.equal(~pages.vectors.isnan(), written)


def test_wrong_shapes_are_refused(random: torch.Generator) -> None:
    case = Case(4, 3, random)
    bcx, place = case.step([(0, 3), (0, 2), (0, 0), (0, 0)])
    with pytest.raises(ValueError, match="contiguous"):
        short_conv(bcx[:, :-3], case.weight, None, place, case.pages())
    with pytest.raises(ValueError, match="3 vectors"):
        short_conv(bcx, case.weight, None, place, StatePages(torch.zeros((case.blocks, 2, CHANNELS)), BLOCK))
    half = StatePages(torch.zeros((case.blocks, 3, CHANNELS), dtype=torch.bfloat16), BLOCK)
    with pytest.raises(ValueError, match="float32"):
        short_conv(bcx, case.weight, None, place, half)

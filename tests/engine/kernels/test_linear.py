"""Products and embeddings: against their references, to the bit across batches and threads, and NaN in its own row."""

from __future__ import annotations

import ctypes

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from voxlane.engine.kernels.linear import linear as kernels
from voxlane.engine.kernels.linear.linear import PackedWeight, embed, linear, linear_ref, pack
from voxlane.engine.weights.tensors import Blocks, quantise

SHAPES = [(1, 32), (16, 32), (17, 64), (50, 96), (64, 1056), (200, 576)]  # 1056: more groups than are spread at a time


FORMS = ["4", "4m", "5", "5m", "6", "8"]  # bits, and whether there are minimums


def blocks(form: str, out: int, inputs: int, random: torch.Generator) -> Blocks:
    if form == "8":
        return quantise(torch.randn((out, inputs), generator=random))
    bits, group = int(form[0]), 16 if form == "6" else 32
    codes = torch.randint(0, 1 << bits, (out, inputs), generator=random, dtype=torch.uint8)
    factors = torch.tensor([2.0 / (1 << bits), -1.0]).view(2, 1, 1)
    floats = torch.rand((2, out, inputs // group), generator=random) * factors
    scales, minimums = floats.to(torch.float16).to(torch.float32)  # what a file holds
    return Blocks(bits, codes, scales, minimums if "m" in form else None)


def exact(x: Tensor, weight: PackedWeight) -> Tensor:
    """What the documented arithmetic gives without any rounding after the activations': float64 throughout."""
    codes, scales = kernels.quantise_rows_ref(x)
    seen = (codes.double() * scales.double()[:, :, None]).reshape(x.shape)
    return seen @ weight.dequantise().double().T


@given(st.sampled_from(FORMS), st.integers(1, 70), st.integers(1, 5), st.integers(0, 2**31))
@settings(max_examples=examples(60), deadline=None)
def test_pack_loses_nothing(form: str, out: int, groups: int, seed: int) -> None:
    given_blocks = blocks(form, out, groups * 32, torch.Generator().manual_seed(seed))
    found = pack(given_blocks).parts[0].unpack()
    assert found.bits == given_blocks.bits
    assert torch.equal(found.codes, given_blocks.codes)
    assert torch.equal(found.scales, given_blocks.scales)
    if given_blocks.minimums is None:
        assert found.minimums is None
    else:
        assert found.minimums is not None
        assert torch.equal(found.minimums, given_blocks.minimums)


def test_packed_size_is_what_the_layout_says(random: torch.Generator) -> None:
    bits = {"4": 4.5, "4m": 5, "5": 5.5, "5m": 6, "6": 7, "8": 8.5}  # of a weight: as in the file, but for the 6
    for form in FORMS:
        assert pack(blocks(form, 160, 64, random)).nbytes == 160 * 64 * bits[form] / 8


def test_pack_refuses_what_it_cannot_hold(random: torch.Generator) -> None:
    good = blocks("4m", 16, 32, random)
    with pytest.raises(ValueError, match="7-bit codes with minimums"):
        pack(Blocks(7, good.codes, good.scales, good.minimums))
    with pytest.raises(ValueError, match="8-bit codes with minimums"):
        pack(Blocks(8, good.codes.view(torch.int8), good.scales, good.minimums))
    with pytest.raises(ValueError, match="4 x 33 by 33"):
        pack(Blocks(8, torch.zeros((4, 33), dtype=torch.int8), torch.zeros((4, 1)), None))
    with pytest.raises(ValueError, match="16 x 32 by 16"):
        pack(Blocks(4, good.codes, good.scales.repeat(1, 2), None))
    for factor in (1e9, float("nan")):
        with pytest.raises(ValueError, match="float16"):
            pack(Blocks(4, good.codes, good.scales * factor, good.minimums))


@given(st.integers(0, 2**31), st.floats(1e-9, 1e6))
@settings(max_examples=examples(60), deadline=None)
def test_quantised_scales_are_float16_and_never_too_small(seed: int, size: float) -> None:
    weight = torch.randn((5, 64), generator=torch.Generator().manual_seed(seed)) * size
    found = quantise(weight)
    assert torch.equal(found.scales, found.scales.to(torch.float16).to(torch.float32))
    steps = (found.dequantise() - weight).view(5, 2, 32).abs() / found.scales[:, :, None]
    assert (steps <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_packed_linear_matches_exact_arithmetic(
    form: str, out: int, inputs: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    weight = pack(blocks(form, out, inputs, random))
    sizes = weight.dequantise().double().abs().T
    for tokens in (0, 1, 2, 3, 4, 5, 8, 12, 37):
        x, bias = torch.randn((tokens, inputs), generator=random), torch.randn(out, generator=random)
        got = linear(x, weight, bias)
        expected = exact(x, weight) + bias
        assert got.shape == (tokens, out)
        size = x.double().abs() @ sizes + 1.0
        assert ((got - expected).abs() <= 1e-6 * size).all(), tokens
        assert ((linear_ref(x, weight, bias) - expected).abs() <= 1e-6 * size).all(), tokens


@pytest.mark.parametrize("form", FORMS)
def test_packed_linear_is_close_to_the_float_product(form: str, random: torch.Generator) -> None:
    """Rounding activations to 127 steps per group of 32 costs under 1 % of the output's spread."""
    weight = pack(blocks(form, 128, 576, random))
    x = torch.randn((64, 576), generator=random)
    expected = x @ weight.dequantise().T
    assert (linear(x, weight) - expected).std() < 0.01 * expected.std()


@pytest.mark.parametrize("form", ["", *FORMS])
def test_rows_do_not_depend_on_batch_or_threads(
    form: str, threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    out, inputs = 200, 1056
    weight: Tensor | PackedWeight = torch.randn((out, inputs), generator=random)
    if form:
        weight = pack(blocks(form, out, inputs, random))
    x = torch.randn((67, inputs), generator=random)
    library.vox_set_threads(1)
    alone = torch.cat([linear(row[None], weight) for row in x])
    library.vox_set_threads(threads)
    assert torch.equal(linear(x, weight), alone)
    for size in (1, 2, 3, 4, 5, 7, 8, 33):
        for start in (0, 1, 34):
            assert torch.equal(linear(x[start : start + size], weight), alone[start : start + size])


@pytest.mark.parametrize("form", ["", *FORMS])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_bad_input_stays_in_its_row(form: str, poison: float, library: ctypes.CDLL, random: torch.Generator) -> None:
    weight: Tensor | PackedWeight = torch.randn((40, 64), generator=random)
    if form:
        weight = pack(blocks(form, 40, 64, random))
    x = torch.randn((6, 64), generator=random)
    clean = linear(x, weight)
    x[2, 33] = poison
    got = linear(x, weight)
    assert not got[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-31, 1e-29, 1e30])
def test_extreme_groups(value: float, library: ctypes.CDLL, random: torch.Generator) -> None:
    weight = pack(blocks("8", 16, 64, random))
    x = torch.randn((1, 64), generator=random)
    x[0, :32] = value
    got, expected = linear(x, weight), linear_ref(x, weight)
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, value))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "out", "inputs"), [(0, 5, 8), (1, 1, 1), (5, 9, 70), (66, 33, 128)])
def test_dense_linear(
    kind: torch.dtype, tokens: int, out: int, inputs: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    x = torch.randn((tokens, inputs), generator=random)
    weight = torch.randn((out, inputs), generator=random).to(kind)
    bias = torch.randn(out, generator=random)
    expected = x.double() @ weight.double().T + bias.double()
    assert torch.allclose(linear(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.allclose(linear_ref(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-4)


def test_parts_of_different_bits_are_one_matrix(threads: int, library: ctypes.CDLL, random: torch.Generator) -> None:
    parts = [blocks(form, 8 * n + 16, 96, random) for n, form in enumerate(FORMS)]
    x, bias = (
        torch.randn((11, 96), generator=random),
        torch.randn(sum(part.shape[0] for part in parts), generator=random),
    )
    whole = pack(*parts)
    assert whole.out_features == len(bias)
    assert torch.equal(whole.dequantise(), torch.cat([part.dequantise() for part in parts]))
    starts = bias.split([part.shape[0] for part in parts])
    alone = [linear(x, pack(part), start) for part, start in zip(parts, starts, strict=True)]
    assert torch.equal(linear(x, whole, bias), torch.cat(alone, dim=1))
    with pytest.raises(ValueError, match="one part"):
        embed(torch.tensor([0]), whole)


def test_linear_takes_any_strides(library: ctypes.CDLL, random: torch.Generator) -> None:
    x = torch.randn((64, 6), generator=random).T
    weight = pack(blocks("4m", 20, 64, random))
    assert torch.equal(linear(x, weight), linear(x.contiguous(), weight))
    dense = torch.randn((64, 20), generator=random)
    assert torch.allclose(linear(x, dense.T), x @ dense, atol=1e-4)


def test_linear_says_what_does_not_fit(random: torch.Generator) -> None:
    weight = pack(blocks("4m", 20, 64, random))
    with pytest.raises(ValueError, match="20 x 64"):
        linear(torch.zeros((2, 32)), weight)
    with pytest.raises(ValueError, match="20 x 64"):
        linear(torch.zeros((2, 64)), weight, torch.zeros(19))


@pytest.mark.parametrize("form", FORMS)
def test_embed_is_the_dequantised_row(form: str, library: ctypes.CDLL, random: torch.Generator) -> None:
    table = blocks(form, 50, 96, random)
    ids = torch.tensor([0, 15, 16, 49, 16])
    expected = table.dequantise()[ids]
    weight = pack(table)
    assert torch.equal(embed(ids, weight), expected)
    assert torch.equal(kernels.embed_ref(ids, weight), expected)
    assert torch.equal(embed(ids, expected[:1].expand(50, 96)), expected[:1].expand(5, 96))
    assert embed(ids[:0], weight).shape == (0, 96)


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
def test_embed_refuses_ids_outside_the_table(bad: int, random: torch.Generator) -> None:
    with pytest.raises(IndexError, match="50 rows"):
        embed(torch.tensor([3, bad]), pack(blocks("4m", 50, 96, random)))
    with pytest.raises(ValueError, match="int64"):
        embed(torch.zeros(3, dtype=torch.int32), pack(blocks("4m", 50, 96, random)))


def test_weights_packed_in_inference_mode_leave_room_for_others(random: torch.Generator) -> None:
    blocks = quantise(torch.randn((64, 64), generator=random))
    with torch.inference_mode():
        first = pack(blocks)
    assert torch.equal(pack(blocks).dequantise(), first.dequantise())

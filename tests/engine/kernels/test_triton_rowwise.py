"""Norms, gates, rope, few rows, decodes, block copies in Triton, interpreted on the CPU: against their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.kernels.attention import paged, rope, swap
from voxlane.engine.kernels.attention import rope_triton as ropes
from voxlane.engine.kernels.attention import swap_triton as moves
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear import skinny
from voxlane.engine.kernels.linear import skinny_triton as few
from voxlane.engine.kernels.norm import activation, rms_norm
from voxlane.engine.kernels.norm import activation_triton as gates
from voxlane.engine.kernels.norm import rms_norm_triton as norms
from voxlane.engine.kernels.sampling import decode_rows, sampling
from voxlane.engine.kernels.sampling import decode_rows_triton as packets

from . import attention_steps
from .batches import Shape, clone, filled, layout, new_pages, rotary, tables

# The interpreter computes in numpy, which warns where a GPU gives an infinity or a NaN and goes on.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
TOLERANCES = {F32: 2e-6, F16: 1e-3, BF16: 6e-3}
"""The error's norm over the result's, by the type of what comes out: sums in another order, or one rounding."""


def off(got: Tensor, expected: Tensor) -> float:
    """Return the error's norm over the result's."""
    return float((got.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(("rows", "columns"), [(0, 64), (1, 1), (3, 576)])
def test_norms(dtype: torch.dtype, rows: int, columns: int, random: torch.Generator) -> None:
    x = torch.randn((rows, columns), generator=random).to(dtype)
    gain = torch.rand(columns, generator=random)
    got = norms.rms_norm(x, gain, 1e-5, dtype)
    assert got.dtype is dtype
    assert off(got, rms_norm.rms_norm_ref(x.float(), gain, 1e-5)) <= TOLERANCES[dtype]
    residual = torch.randn((rows, columns), generator=random)
    expected, total = rms_norm.add_rms_norm_ref(x.float(), residual.clone(), gain, 1e-5)
    normed, updated = norms.add_rms_norm(x, residual, gain, 1e-5)
    assert updated is residual
    assert torch.equal(residual, total)
    assert normed.dtype is dtype
    assert off(normed, expected) <= TOLERANCES[dtype]


def test_norm_of_a_wider_residual_is_narrow(random: torch.Generator) -> None:
    residual, gain = torch.randn((4, 96), generator=random), torch.rand(96, generator=random)
    got = norms.rms_norm(residual, gain, 1e-6, BF16)
    assert got.dtype is BF16
    assert off(got, rms_norm.rms_norm_ref(residual, gain, 1e-6)) <= TOLERANCES[BF16]


def test_norm_of_rows_that_lie_apart(random: torch.Generator) -> None:
    wide, gain = torch.randn((6, 200), generator=random), torch.rand(64, generator=random)
    part = wide[::2, 10:74]
    assert off(norms.rms_norm(part, gain, 1e-6, F32), rms_norm.rms_norm_ref(part, gain, 1e-6)) <= TOLERANCES[F32]


def test_nan_stays_in_its_row(random: torch.Generator) -> None:
    x, gain = torch.randn((3, 70), generator=random), torch.rand(70, generator=random)
    clean = norms.rms_norm(x, gain, 1e-6, F32)
    x[1, 5] = float("nan")
    got = norms.rms_norm(x, gain, 1e-6, F32)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (1, 1), (2, 1100)])
def test_gates(dtype: torch.dtype, rows: int, columns: int, random: torch.Generator) -> None:
    both = (torch.randn((rows, 2 * columns), generator=random) * 3).to(dtype)
    for gelu, reference in ((False, activation.silu_mul_ref), (True, activation.gelu_tanh_mul_ref)):
        got = gates.gate_mul(both, gelu=gelu)
        assert got.shape == (rows, columns)
        assert got.dtype is dtype
        assert off(got, reference(both.float())) <= TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("kind", "dtype", "normed", "shape"),
    sweep(
        [
            (INT8, F32, True, Shape(4, 4, 20, 5)), (F32, F32, False, Shape(9, 3, 64, 16)),
            (F32, F32, True, Shape(4, 4, 20, 5)), (BF16, BF16, True, Shape(2, 1, 128, 32)),
            (BF16, F32, False, Shape(4, 4, 20, 5)), (INT8, F32, True, Shape(9, 3, 64, 16)),
            (INT8, BF16, False, Shape(4, 4, 20, 5)),
        ]
    ),
)  # fmt: skip
def test_rope(kind: torch.dtype, dtype: torch.dtype, normed: bool, shape: Shape, random: torch.Generator) -> None:
    rows = [(0, 7), (30, 1), (11, 4), (5, 0)]
    table, blocks = tables([start + count for start, count in rows], shape.block_tokens, random)
    place = layout(rows, table, shape.block_tokens)
    place.slots[2] = -1
    qkv = torch.randn((12, shape.columns), generator=random).to(dtype)
    gains = torch.rand((2, shape.head_dim), generator=random) if normed else (None, None)
    cos, sin = rotary(64, shape.head_dim)
    sizes = (shape.heads, shape.kv_heads, shape.head_dim, cos, sin, place)
    pages = new_pages(shape, blocks, kind)
    other = clone(pages)
    q = ropes.rope_write(qkv, *sizes, pages, gains[0], gains[1], 1e-6)
    expected = rope.rope_write_ref(qkv.float(), *sizes, other, gains[0], gains[1], 1e-6)
    assert q.dtype is dtype
    assert off(q, expected) <= TOLERANCES[dtype]
    for mine, theirs in zip(_parts(pages), _parts(other), strict=True):
        if mine.dtype is INT8:
            assert ((mine.int() - theirs.int()).abs() <= 1).all()  # one code: sums in another order
        else:
            assert torch.equal(mine.isnan(), theirs.isnan())  # exactly the slots' places are written
            assert off(mine.nan_to_num(), theirs.nan_to_num()) <= (TOLERANCES[F32] if mine.dtype is F32 else 6e-3)


def _parts(pages: Pages) -> list[Tensor]:
    return [part for part in (pages.k, pages.v, pages.k_scale, pages.v_scale) if part is not None]


def test_rope_of_nothing(random: torch.Generator) -> None:
    shape = Shape()
    table, blocks = tables([3], shape.block_tokens, random)
    cos, sin = rotary(8, shape.head_dim)
    place = layout([(3, 0)], table, shape.block_tokens)
    empty = torch.zeros((0, shape.columns))
    pages = new_pages(shape, blocks, F32)
    q = ropes.rope_write(empty, shape.heads, shape.kv_heads, shape.head_dim, cos, sin, place, pages, None, None, 0.0)
    assert q.shape == (0, shape.heads, shape.head_dim)


@pytest.mark.parametrize(
    ("dtype", "rows", "outputs", "inputs"),
    sweep([(F32, 2, 34, 96), (F32, 2, 20, 600), (BF16, 1, 34, 600), (BF16, 2, 8, 4500)]),
)
def test_products_of_few_rows(
    dtype: torch.dtype, rows: int, outputs: int, inputs: int, random: torch.Generator
) -> None:
    residual, gain = torch.randn((rows, inputs), generator=random), torch.rand(inputs, generator=random)
    matrix = (torch.randn((outputs, inputs), generator=random) * 0.1).to(dtype)
    bias = torch.randn(outputs, generator=random).to(dtype)
    bound = 2e-6 if dtype is F32 else 2e-2  # a gate rounds both its factors
    wide = matrix.float()
    for given in (None, bias):
        expected = skinny.norm_linear_ref(residual, gain, 1e-5, wide, None if given is None else given.float())
        got = few.norm_linear(residual, gain, 1e-5, matrix, given)
        assert got.dtype is dtype
        assert off(got, expected) <= bound
    for gelu in (False, True):
        expected = skinny.norm_gate_ref(residual, gain, 1e-5, wide, gelu=gelu)
        assert off(few.norm_gate(residual, gain, 1e-5, matrix, gelu=gelu), expected) <= bound
    total = torch.randn((rows, outputs), generator=random)
    expected = total.clone()
    skinny.linear_add_ref(residual.to(dtype).float(), wide, expected)
    few.linear_add(residual.to(dtype), matrix, total)
    assert off(total, expected) <= bound
    got = few.linear_wide(residual.to(dtype), matrix)
    assert got.dtype is F32
    assert off(got, skinny.linear_wide_ref(residual.to(dtype), matrix)) <= 2e-6


@pytest.mark.usefixtures("interpreter")
def test_attention_of_few_rows_is_the_usual_one(random: torch.Generator) -> None:
    """Rows of several short pieces, of one, and a place without a request."""
    shape = Shape(4, 2, 32, 16)
    lengths = [300, 7]
    table, blocks = tables(lengths, shape.block_tokens, random)
    place = replace(layout([(length - 1, 1) for length in lengths], table, shape.block_tokens), max_query=1)
    pages = new_pages(shape, blocks, F32)
    for page in (pages.k, pages.v):
        page.normal_(generator=random)
    q = torch.randn((2, shape.heads, shape.head_dim), generator=random)
    expected = paged.paged_attention_ref(q, pages, place, 0.2)
    assert off(few.attend(q, pages, place, 0.2, 0), expected) <= TOLERANCES[F32]
    assert off(skinny.attend(q, pages, place, 0.2, 0), expected) <= TOLERANCES[F32]
    place.context_lengths[1] = 0
    assert not few.attend(q, pages, place, 0.2, 0)[1].any()


@pytest.mark.usefixtures("interpreter")
def test_decodes_of_a_padded_batch(random: torch.Generator) -> None:
    """What a captured graph runs: one query a row, tables wider than needed, rows that are padding."""
    rows = [(99, 1), (0, 1), (31, 1), (32, 1), (-1, 1)]
    shape = Shape(2, 1, 32, 32)
    table, pages = filled(shape, BF16, [100, 1, 32, 33, 0], random)
    wide = torch.zeros((8, 20), dtype=torch.int32)
    wide[:5, : table.shape[1]] = table
    place = replace(layout(rows, wide[:5], 32), max_query=1)
    q = torch.randn((5, 2, 32), generator=random).to(BF16)
    got = attention_steps.run(q, pages, place)
    attention_steps.check(got, q, pages, place, 0.25)
    assert (got[4] == 0.0).all()
    assert torch.equal(got, attention_steps.run(q, pages, replace(place, block_tables=wide[:5, : table.shape[1]])))


def test_few_rows_refuse_what_does_not_fit() -> None:
    matrix, residual, gain = torch.zeros((8, 32)), torch.zeros((2, 32)), torch.ones(32)
    assert torch.equal(skinny.norm_linear(residual, gain, 1e-5, matrix), torch.zeros((2, 8)))
    assert torch.equal(skinny.norm_gate(residual, gain, 1e-5, matrix), torch.zeros((2, 4)))
    assert torch.equal(skinny.linear_wide(residual, matrix), torch.zeros((2, 8)))
    with pytest.raises(ValueError, match="at most 2 rows"):
        skinny.norm_linear(torch.zeros((3, 32)), gain, 1e-5, matrix)
    with pytest.raises(ValueError, match="as long as a row"):
        skinny.norm_linear(residual, gain[1:], 1e-5, matrix)
    with pytest.raises(ValueError, match="does not take"):
        skinny.linear_add(residual, matrix, torch.zeros((2, 9)))
    assert not skinny.serves(4, matrix)  # of the CPU's kind
    assert not skinny.serves(0)


@pytest.mark.parametrize(("dtype", "shape"), [(F32, (1, 3, 5)), (BF16, (2, 16, 64)), (INT8, (1, 1, 1))])
def test_blocks_are_copied_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...], random: torch.Generator) -> None:
    source = torch.randint(-99, 99, (3, 2, 7, *shape), generator=random).to(dtype)
    target, expected = torch.zeros((2, 3, 2, 9, *shape), dtype=dtype)
    pairs = [(6, 0), (2, 8), (2, 3)]
    moves.copy_blocks(source, target, torch.tensor(pairs))
    swap.copy_blocks(source, expected, *zip(*pairs, strict=True))
    assert torch.equal(target, expected)
    moves.copy_blocks(source, target, torch.zeros((0, 2), dtype=torch.int64))
    assert torch.equal(target, expected)


def test_copies_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        swap.copy_blocks(torch.zeros((1, 2, 3, 4)), torch.zeros((1, 2, 3, 5)), [0], [0])


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_packets_become_layouts(rows: int, random: torch.Generator) -> None:
    packet = torch.randint(0, 90, (rows, 12), generator=random, dtype=torch.int32)
    packet[:: 2 if rows > 1 else 5, sampling.POSITION] = -1
    chosen = torch.randint(-1, 90, (50,), generator=random, dtype=torch.int32)
    packet[1::3, sampling.TOKEN] = ~torch.randint(0, 50, packet[1::3, 0].shape, generator=random, dtype=torch.int32)

    def empty() -> tuple[Tensor, Layout]:
        numbers = torch.full((3, rows), 77, dtype=torch.int32)
        table = torch.full((rows, 12), 5, dtype=torch.int32)
        return torch.full((rows,), 7), Layout(numbers[0], numbers[1], numbers[2], numbers[2], table)

    (tokens, mine), (expected_tokens, expected) = empty(), empty()
    packets.unpack(packet, tokens, mine, 8, chosen)
    decode_rows.unpack(packet, expected_tokens, expected, 8, chosen)
    assert torch.equal(tokens, expected_tokens)
    assert all(
        tokens[row] == max(int(chosen[~token]), 0) if token < 0 else tokens[row] == token
        for row, (token, position) in enumerate(packet[:, :2].tolist())
        if position >= 0
    )
    for name in ("positions", "slots", "context_lengths", "block_tables"):
        assert torch.equal(getattr(mine, name), getattr(expected, name)), name
    with pytest.raises(ValueError, match="rows"):
        decode_rows.unpack(packet, tokens[1:], mine, 8, chosen)
    with pytest.raises(ValueError, match="int32"):
        decode_rows.unpack(packet.long(), tokens, replace(mine), 8, chosen)

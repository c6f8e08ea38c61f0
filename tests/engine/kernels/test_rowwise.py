"""Norms and gates."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.norm import activation, rms_norm

SIZES = [(0, 8), (1, 1), (1, 576), (3, 70), (130, 192)]
GATES = [(activation.silu_mul, activation.silu_mul_ref), (activation.gelu_tanh_mul, activation.gelu_tanh_mul_ref)]
Gate = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_rms_norm(rows: int, n: int, library: ctypes.CDLL, random: torch.Generator) -> None:
    x, weight = torch.randn((rows, n), generator=random) * 3.0, torch.randn(n, generator=random)
    expected = F.rms_norm(x.double(), (n,), weight.double(), 1e-5)
    assert torch.allclose(rms_norm.rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(rms_norm.rms_norm_ref(x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("add", [rms_norm.add_rms_norm, rms_norm.add_rms_norm_ref])
@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_add_rms_norm_updates_the_residual(
    add: Callable[..., tuple[Tensor, Tensor]], rows: int, n: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    x, residual = torch.randn((2, rows, n), generator=random)
    weight = torch.randn(n, generator=random)
    expected = x + residual
    normed, updated = add(x, residual, weight, 1e-5)
    assert updated is residual
    assert torch.equal(residual, expected)
    assert torch.allclose(normed, rms_norm.rms_norm_ref(expected, weight, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("gate", "reference"), GATES)
@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_gates(gate: Gate, reference: Gate, rows: int, n: int, library: ctypes.CDLL, random: torch.Generator) -> None:
    x = torch.randn((rows, 2 * n), generator=random) * 6.0
    expected = reference(x.double())
    assert torch.allclose(gate(x).double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(reference(x).double(), expected, rtol=1e-5, atol=1e-5)  # torch's own tanh cancels


@pytest.mark.parametrize(("gate", "reference"), GATES)
def test_gates_at_the_ends(gate: Gate, reference: Gate, library: ctypes.CDLL) -> None:
    ends = torch.tensor([[-1e30, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e30]])
    got, expected = (call(torch.cat((ends, torch.ones_like(ends)), dim=1)) for call in (gate, reference))
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-30)


def test_silu_shows_an_exponential_good_to_the_last_place(library: ctypes.CDLL) -> None:
    x = torch.linspace(-80.0, 80.0, 200_001)[None]
    got = activation.silu_mul(torch.cat((x, torch.ones_like(x)), dim=1)).double()
    expected = F.silu(x.double())
    assert ((got - expected).abs() <= 3e-7 * expected.abs()).all()


@pytest.mark.parametrize("gate", [gate for gate, _ in GATES])
def test_rows_do_not_depend_on_batch_or_threads(gate: Gate, threads: int, random: torch.Generator) -> None:
    x = torch.randn((301, 2 * 70), generator=random)
    weight = torch.randn(140, generator=random)
    assert torch.equal(gate(x), torch.cat([gate(row[None]) for row in x]))
    normed = rms_norm.rms_norm(x, weight, 1e-6)
    assert torch.equal(normed, torch.cat([rms_norm.rms_norm(row[None], weight, 1e-6) for row in x]))


@pytest.mark.parametrize("gate", [gate for gate, _ in GATES])
def test_nan_stays_in_its_row(gate: Gate, library: ctypes.CDLL, random: torch.Generator) -> None:
    x = torch.randn((4, 2 * 12), generator=random)
    clean, clean_norm = gate(x), rms_norm.rms_norm(x, torch.ones(24), 1e-6)
    x[1, 3] = float("nan")
    got, got_norm = gate(x), rms_norm.rms_norm(x, torch.ones(24), 1e-6)
    assert got[1, 3].isnan()
    assert got_norm[1].isnan().all()
    others = [0, 2, 3]
    assert torch.equal(got[others], clean[others])
    assert torch.equal(got_norm[others], clean_norm[others])


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        rms_norm.rms_norm(torch.zeros((3, 4)), torch.ones(5), 1e-6)
    with pytest.raises(ValueError, match="contiguous"):
        rms_norm.rms_norm(torch.zeros((4, 3)).T, torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="residual"):
        rms_norm.add_rms_norm(torch.zeros((3, 4)), torch.zeros((2, 4)), torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="2n"):
        activation.silu_mul(torch.zeros((3, 5)))

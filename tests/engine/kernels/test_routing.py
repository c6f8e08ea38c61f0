"""The choice of experts: native against the reference, ties, and tokens that do not depend on each other."""

from __future__ import annotations

import ctypes

import pytest
import torch

from voxlane.engine.kernels.linear.routing import route, route_native, route_ref


@pytest.mark.parametrize(("count", "chosen"), [(1, 1), (6, 2), (32, 4), (37, 37)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_native_is_the_reference(
    count: int, chosen: int, biased: bool, normed: bool, threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    scores = torch.randn((2000, count), generator=random) * 3.0
    bias = torch.randn(count, generator=random) if biased else None
    experts, shares = route_native(library, scores.clone(), bias, chosen, normed=normed, scale=2.0)
    wanted, parts = route_ref(scores, bias, chosen, normed=normed, scale=2.0)
    torch.testing.assert_close(shares, parts, rtol=1e-5, atol=1e-6)
    assert (experts == wanted).float().mean() > 0.999  # two scores may be one rounding apart


def test_a_tokens_bits_do_not_depend_on_the_others(library: ctypes.CDLL, random: torch.Generator) -> None:
    scores, bias = torch.randn((97, 6), generator=random), torch.randn(6, generator=random)
    together = route(scores.clone(), bias, 3, normed=True, scale=1.0)
    for token in range(97):
        alone = route(scores[token : token + 1].clone(), bias, 3, normed=True, scale=1.0)
        assert torch.equal(alone[0][0], together[0][token])
        assert torch.equal(alone[1][0], together[1][token])


@pytest.mark.parametrize("native", [False, True])
def test_of_equal_scores_the_first_wins(native: bool, library: ctypes.CDLL) -> None:
    scores = torch.tensor([[0.5, 2.0, 2.0, 0.5, 2.0]])
    found = (
        route_native(library, scores.clone(), None, 4, normed=False, scale=1.0)
        if native
        else route_ref(scores, None, 4, normed=False, scale=1.0)
    )
    assert found[0].tolist() == [[1, 2, 4, 0]]


def test_what_is_not_a_number_stays_in_its_row(library: ctypes.CDLL, random: torch.Generator) -> None:
    scores = torch.randn((3, 8), generator=random)
    scores[1] = float("nan")
    experts, shares = route(scores.clone(), None, 2, normed=True, scale=1.0)
    assert ((experts >= 0) & (experts < 8)).all()
    assert shares[1].isnan().all()
    assert shares[[0, 2]].isfinite().all()


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 experts"):
        route(torch.zeros((4, 2)), None, 3, normed=True, scale=1.0)

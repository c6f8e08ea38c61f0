"""Products of pairs with their experts: against one pair after the other, and the kernel against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.kernels.linear import experts_triton
from voxlane.engine.kernels.linear.experts import ExpertPairs, expert_linear, expert_linear_ref, group_pairs

pytestmark = pytest.mark.usefixtures("interpreter")

EXPERTS, CHOSEN, DEPTH, COLUMNS = 6, 3, 40, 72

Product = Callable[[Tensor, Tensor, ExpertPairs, Tensor | None], Tensor]


def choices(tokens: int, random: torch.Generator, experts: int = EXPERTS) -> Tensor:
    """Return each token's experts, all different."""
    return torch.rand((tokens, experts), generator=random).argsort(dim=1)[:, :CHOSEN]


@pytest.mark.parametrize("tokens", [1, 2, 37])
def test_pairs_are_in_the_order_of_their_experts(tokens: int, random: torch.Generator) -> None:
    chosen = choices(tokens, random)
    pairs = group_pairs(chosen, EXPERTS)
    flat = chosen.flatten()
    assert pairs.order.tolist() == flat.argsort(stable=True).tolist()
    assert pairs.counts.tolist() == flat.bincount(minlength=EXPERTS).tolist()


def slow(x: Tensor, gate: Tensor, down: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Return the weighed outputs, one pair after the other."""
    out = torch.zeros(len(x), CHOSEN, down.shape[1])
    for token, own in enumerate(chosen.tolist()):
        for place, expert in enumerate(own):
            out[token, place] = down[expert] @ (gate[expert] @ x[token]) * shares[token, place]
    return out.flatten(0, 1)


@pytest.mark.parametrize("tokens", sweep([5, 1, 64, 200]))
@pytest.mark.parametrize("product", [expert_linear_ref, experts_triton.expert_linear], ids=["reference", "triton"])
def test_both_products_are_those_of_single_pairs(tokens: int, product: Product, random: torch.Generator) -> None:
    """200 tokens have more than 16 pairs an expert: the kernel's other tile."""
    x = torch.randn((tokens, DEPTH), generator=random)
    gate = torch.randn((EXPERTS, COLUMNS, DEPTH), generator=random)
    down = torch.randn((EXPERTS, DEPTH, COLUMNS), generator=random)
    chosen, shares = choices(tokens, random), torch.rand((tokens, CHOSEN), generator=random)
    pairs = group_pairs(chosen, EXPERTS)
    inner = product(x, gate, pairs, None)
    got = product(inner, down, pairs, shares.flatten())
    torch.testing.assert_close(got, slow(x, gate, down, chosen, shares), rtol=1e-4, atol=1e-3)


def test_all_tokens_may_choose_the_same_experts(random: torch.Generator) -> None:
    chosen = torch.tensor([[4, 1, 0]] * 50)
    x, weight = torch.randn((50, DEPTH), generator=random), torch.randn((EXPERTS, COLUMNS, DEPTH), generator=random)
    pairs = group_pairs(chosen, EXPERTS)
    expected = expert_linear_ref(x, weight, pairs)
    torch.testing.assert_close(experts_triton.expert_linear(x, weight, pairs, None), expected, rtol=1e-4, atol=1e-4)


def test_the_kernels_bits_depend_on_no_other_token(random: torch.Generator) -> None:
    x, weight = torch.randn((9, DEPTH), generator=random), torch.randn((EXPERTS, COLUMNS, DEPTH), generator=random)
    chosen = choices(9, random)

    def by_pair(first: int, last: int) -> Tensor:
        pairs = group_pairs(chosen[first:last], EXPERTS)
        products = experts_triton.expert_linear(x[first:last], weight, pairs, None)
        return torch.empty_like(products).index_copy_(0, pairs.order.long(), products)

    together = by_pair(0, 9).view(9, CHOSEN, -1)
    for token in range(9):
        assert torch.equal(by_pair(token, token + 1), together[token])


@pytest.mark.parametrize("product", [expert_linear_ref, experts_triton.expert_linear], ids=["reference", "triton"])
def test_what_is_not_finite_stays_in_its_token(product: Product, random: torch.Generator) -> None:
    x, weight = torch.randn((8, DEPTH), generator=random), torch.randn((EXPERTS, COLUMNS, DEPTH), generator=random)
    x[3] = float("nan")
    pairs = group_pairs(choices(8, random), EXPERTS)
    bad = product(x, weight, pairs, None).isnan().all(dim=1)
    assert torch.equal(bad, pairs.order // CHOSEN == 3)


def test_narrow_types_are_summed_in_float32(random: torch.Generator) -> None:
    """In float16: the interpreter's products of bfloat16 are those of its bits."""
    x = torch.randn((20, DEPTH), generator=random).half()
    weight = torch.randn((EXPERTS, COLUMNS, DEPTH), generator=random).half()
    pairs = group_pairs(choices(20, random), EXPERTS)
    exact = expert_linear_ref(x.float(), weight.float(), pairs)
    got = experts_triton.expert_linear(x, weight, pairs, None)
    assert got.dtype is torch.float16
    torch.testing.assert_close(got.float(), exact, rtol=1e-3, atol=1e-3)


def test_wrong_shapes_are_refused() -> None:
    pairs = ExpertPairs(torch.arange(6, dtype=torch.int32), torch.full((EXPERTS,), 1, dtype=torch.int32), CHOSEN)
    weight = torch.zeros((EXPERTS, COLUMNS, DEPTH))
    with pytest.raises(ValueError, match=r"contiguous \[2, 40\]"):
        expert_linear(torch.zeros((6, DEPTH)), weight, pairs)
    with pytest.raises(ValueError, match=r"contiguous \[6, 40\]"):
        expert_linear(torch.zeros((2, DEPTH)), weight, pairs, torch.ones(6))
    with pytest.raises(ValueError, match="weight"):
        expert_linear(torch.zeros((2, DEPTH)), weight[1:], pairs)

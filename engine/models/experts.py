"""A feed-forward network of experts: a router sends each token to a few of them and weighs their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from voxlane.engine.kernels.linear.experts import expert_linear, group_pairs
from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.kernels.linear.routing import route
from voxlane.engine.kernels.linear.weights import ExpertWeights
from voxlane.engine.models.decoder_config import Experts
from voxlane.engine.models.loading import TensorReader, Weight


def read_experts(reader: TensorReader, experts: Experts, hidden: int, prefix: str) -> ExpertWeights:
    """Read the experts of the layer whose names begin with `prefix`."""
    gate_up, down = _matrices(reader, experts, hidden, f"{prefix}experts.")
    all_gate_up = all_down = None
    if reader.device.type != "cpu":
        all_gate_up, all_down = _together(gate_up), _together(down)
        gate_up, down = all_gate_up.unbind(0), all_down.unbind(0)
    return ExpertWeights(
        router=reader.floats(f"{prefix}gate.weight", (experts.count, hidden)).contiguous(),
        router_bias=reader.vector(f"{prefix}expert_bias", experts.count) if experts.biased else None,
        gate_up=tuple(gate_up),
        down=tuple(down),
        chosen=experts.chosen,
        normed=experts.normed,
        scale=experts.scale,
        all_gate_up=all_gate_up,
        all_down=all_down,
    )


def _matrices(
    reader: TensorReader, experts: Experts, hidden: int, prefix: str
) -> tuple[Sequence[Weight], Sequence[Weight]]:
    """Return each expert's gate with its input, and its output: a tensor each in the file, or one for all experts."""
    count, inner = experts.count, experts.inner
    if reader.has(f"{prefix}gate_up_proj"):
        gate_up = reader.matrices(f"{prefix}gate_up_proj", count, 2 * inner, hidden)
        return gate_up, reader.matrices(f"{prefix}down_proj", count, hidden, inner)
    names = [f"{prefix}{index}." for index in range(count)]
    return (
        [reader.matrix([f"{name}w1.weight", f"{name}w3.weight"], [inner, inner], hidden) for name in names],
        [reader.matrix([f"{name}w2.weight"], [hidden], inner) for name in names],
    )


def run_experts(
    x: Tensor,
    weights: ExpertWeights,
    project: Callable[[Tensor, Weight, Tensor | None], Tensor],
    activate: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the weighed outputs of each token's experts, for rows `x` [T, hidden].

    A token's outputs are added in one order, so that its bits do not depend on the other tokens.
    """
    if weights.all_gate_up is not None and weights.all_down is not None:
        return _run_together(x, weights, weights.all_gate_up, weights.all_down, activate)
    scores = linear(x, weights.router)
    chosen, shares = route(scores, weights.router_bias, weights.chosen, normed=weights.normed, scale=weights.scale)
    out = torch.zeros_like(x)
    for number in sorted(set(chosen.flatten().tolist())):
        rows, places = (chosen == number).nonzero(as_tuple=True)
        inner = activate(project(x[rows], weights.gate_up[number], None))
        out[rows] += project(inner, weights.down[number], None) * shares[rows, places, None]
    return out


def _run_together(
    x: Tensor, weights: ExpertWeights, gate_up: Tensor, down: Tensor, activate: Callable[[Tensor], Tensor]
) -> Tensor:
    """Do run_experts' work without reading a number back: all experts in one product each way."""
    scores = linear(x.to(torch.float32), weights.router)
    chosen, shares = route(scores, weights.router_bias, weights.chosen, normed=weights.normed, scale=weights.scale)
    pairs = group_pairs(chosen, len(gate_up))
    inner = activate(expert_linear(x, gate_up, pairs))
    return expert_linear(inner, down, pairs, shares.flatten()).view(len(x), weights.chosen, -1).sum(dim=1).to(x.dtype)


def _together(parts: Sequence[Weight]) -> Tensor:
    """Return the matrices of all experts as one tensor."""
    whole = [part for part in parts if isinstance(part, Tensor)]
    assert len(whole) == len(parts), "packed weights are for CPUs"
    return torch.stack(whole)

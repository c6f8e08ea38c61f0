"""Chooses tokens from logits.

A choice depends only on the request's own logits, history, seed and position. So it is the same in every batch, and
after a pause, a swap or a recompute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from voxlane.engine.api import SamplingParams
from voxlane.engine.schedule.request import ChatPayload, Request

CANDIDATES = (256, 4096)
"""How many of the likeliest tokens top-p and min-p try, in turn, before they sort the whole vocabulary (19 ms)."""

_MASK = (1 << 64) - 1


class SampledToken(NamedTuple):
    """A token; if requested, its log-probability and the likeliest alternatives as (token, log-probability)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: Tensor, requests: Sequence[Request]) -> list[SampledToken | None]:
    """Choose a token per row of `logits` [rows, vocabulary]; None for a row where no token can be chosen.

    Its logits are not finite, or its constraint allows no token. A probe gets the likeliest token, with the
    log-probability of all its `ends` together.
    """
    peaks = logits.amax(dim=1)  # NaN wins a maximum: one pass finds every bad row
    finite = torch.isfinite(peaks).tolist()
    best = logits.argmax(dim=1).tolist()
    return [
        _choose_row(logits[row], request, best[row]) if finite[row] else None for row, request in enumerate(requests)
    ]


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that looks random and depends on the arguments alone (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def _choose_row(logits: Tensor, request: Request, best: int) -> SampledToken | None:
    payload = request.payload
    if isinstance(payload, ChatPayload) and payload.ends:
        return SampledToken(best, float(torch.log_softmax(logits, dim=0)[sorted(payload.ends)].logsumexp(dim=0)))
    if barred := request.next_barred:
        logits = logits.index_fill(0, torch.tensor(sorted(barred)), -torch.inf)
        best = int(logits.argmax())
    if not isinstance(payload, ChatPayload) or payload.constraint is None:
        return _choose_one(logits, request, best)
    allowed = payload.constraint.allowed(request.tokens)
    if allowed is None:
        return None
    # Over 49,152 logits these two take 75 µs each, argmax 225; `allowed` takes 10 to 100.
    masked = torch.where(torch.from_numpy(allowed), logits, -torch.inf)
    peak, place = masked.max(dim=0)
    return _choose_one(masked, request, int(place)) if math.isfinite(peak) else None


def _choose_one(logits: Tensor, request: Request, best: int) -> SampledToken:
    sampling = request.sampling
    if sampling.is_plain_greedy:
        token = best
    else:
        scores = _penalised(logits, request)
        if sampling.temperature == 0:
            token = int(scores.argmax())
        else:
            token = _draw(scores, sampling, uniform(request.seed, len(request.tokens)))
    if sampling.logprobs < 0:
        return SampledToken(token)
    logprobs = torch.log_softmax(logits, dim=0)
    top: tuple[tuple[int, float], ...] = ()
    if sampling.logprobs:
        values, indices = logprobs.topk(min(sampling.logprobs, logits.shape[0]))
        pairs = zip(indices.tolist(), values.tolist(), strict=True)
        top = tuple((other, value) for other, value in pairs if value > -torch.inf)  # a constraint may leave fewer
    return SampledToken(token, float(logprobs[token]), top)


def _penalised(logits: Tensor, request: Request) -> Tensor:
    sampling = request.sampling
    scores = logits.clone()
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        scores.index_add_(0, torch.tensor(tokens), torch.tensor(biases, dtype=scores.dtype))
    if sampling.repetition_penalty != 1:
        seen = _counts(request.tokens, scores) > 0
        penalty = sampling.repetition_penalty
        scores = torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = _counts(request.tokens[request.prompt_tokens :], scores)
        scores -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    return scores


def _counts(tokens: list[int], scores: Tensor) -> Tensor:
    """Return how often each token of the vocabulary occurs; positions that are no tokens have larger numbers."""
    vocabulary = scores.shape[0]
    numbers = torch.tensor(tokens, dtype=torch.int64)
    return torch.bincount(numbers[numbers < vocabulary], minlength=vocabulary)


def _draw(scores: Tensor, sampling: SamplingParams, luck: float) -> int:
    """Draw by inverting the distribution function at `luck`, after top-k, top-p and min-p in that order."""
    scaled = (scores - scores.max()).double() / sampling.temperature  # double: sums over a vocabulary stay exact enough
    if sampling.top_k <= 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return _invert(torch.softmax(scaled, dim=0), luck)
    values, indices = _candidates(scaled, sampling)
    probabilities = torch.exp(values - torch.logsumexp(values if sampling.top_k else scaled, dim=0))
    keep = probabilities >= sampling.min_p * probabilities[0]
    keep &= probabilities.cumsum(dim=0) - probabilities < sampling.top_p
    keep[0] = True
    return int(indices[_invert(torch.where(keep, probabilities, 0.0), luck)])


def _candidates(scaled: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return, largest first, a set of values that holds every token the rules could keep, and their indices."""
    vocabulary = scaled.shape[0]
    if sampling.top_k > 0:
        return scaled.topk(min(sampling.top_k, vocabulary))
    for size in CANDIDATES:
        if size < vocabulary:
            values, indices = scaled.topk(size)
            if _enough(values, scaled, sampling):
                return values, indices
    return scaled.sort(descending=True, stable=True)


def _enough(values: Tensor, scaled: Tensor, sampling: SamplingParams) -> bool:
    """Return whether the candidates hold every token that top-p and min-p could keep."""
    probabilities = torch.exp(values - torch.logsumexp(scaled, dim=0))
    by_mass = sampling.top_p < 1 and float(probabilities.sum()) >= sampling.top_p
    by_floor = sampling.min_p > 0 and float(probabilities[-1]) < sampling.min_p * float(probabilities[0])
    return by_mass or by_floor


def _invert(probabilities: Tensor, luck: float) -> int:
    mass = probabilities.cumsum(dim=0)
    index = int(torch.searchsorted(mass, luck * float(mass[-1]), right=True))
    while index >= len(mass) or probabilities[index] == 0:  # luck rounded up past the last likely token
        index -= 1
    return index

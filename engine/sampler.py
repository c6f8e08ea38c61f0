"""Logits in, tokens out. It knows distributions; it does not know text, batches or schedules.

A choice depends on the request's own logits, history, seed and position and on nothing else, so it is the same
whatever the batch, and the same again after a pause, a swap or a recompute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.api import SamplingParams
from voxlane.engine.request import Request

CANDIDATES = 256
"""How many of the likeliest tokens top-p and min-p look at before they fall back to sorting the whole vocabulary."""

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, and if asked for its log-probability and the likeliest alternatives as (token, log-probability)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: Tensor, requests: Sequence[Request]) -> list[Choice | None]:
    """Pick a token per row of `logits` [rows, vocabulary]; None for a row whose logits are not finite."""
    peaks = logits.amax(dim=1)  # NaN wins a maximum, so one pass finds every bad row
    finite = torch.isfinite(peaks).tolist()
    best = logits.argmax(dim=1).tolist()
    return [
        _choose_one(logits[row], request, best[row]) if finite[row] else None for row, request in enumerate(requests)
    ]


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that looks random and depends on the arguments alone (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = ((z ^ (z >> shift)) * factor) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def is_plain_greedy(sampling: SamplingParams) -> bool:
    """Return whether the choice is simply the largest logit."""
    return (
        sampling.temperature == 0
        and not sampling.logit_bias
        and sampling.repetition_penalty == 1
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
    )


def _choose_one(logits: Tensor, request: Request, best: int) -> Choice:
    sampling = request.sampling
    if is_plain_greedy(sampling):
        token = best
    else:
        scores = _penalised(logits, request)
        if sampling.temperature == 0:
            token = int(scores.argmax())
        else:
            token = _draw(scores, sampling, uniform(request.seed, len(request.tokens)))
    if sampling.logprobs < 0:
        return Choice(token)
    logprobs = torch.log_softmax(logits, dim=0)
    top: tuple[tuple[int, float], ...] = ()
    if sampling.logprobs:
        values, indices = logprobs.topk(min(sampling.logprobs, logits.shape[0]))
        top = tuple(zip(indices.tolist(), values.tolist(), strict=True))
    return Choice(token, float(logprobs[token]), top)


def _penalised(logits: Tensor, request: Request) -> Tensor:
    sampling = request.sampling
    scores = logits.clone()
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(request.tokens)), device=logits.device)
        values = scores[seen]
        penalty = sampling.repetition_penalty
        scores[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, times in Counter(request.tokens[request.prompt_tokens :]).items():
            scores[token] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return scores


def _draw(scores: Tensor, sampling: SamplingParams, luck: float) -> int:
    """Draw by inverting the distribution function at `luck`, after top-k, top-p and min-p in that order."""
    scaled = (scores - scores.max()).double() / sampling.temperature  # double: sums over a vocabulary stay exact enough
    if sampling.top_k <= 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return _invert(torch.softmax(scaled, dim=0), luck)
    vocabulary = scaled.shape[0]
    size = min(sampling.top_k or CANDIDATES, vocabulary)
    values, indices = scaled.topk(size)
    if not sampling.top_k and size < vocabulary and not _enough(values, scaled, sampling):
        values, indices = scaled.sort(descending=True, stable=True)
    probabilities = torch.exp(values - torch.logsumexp(values if sampling.top_k else scaled, dim=0))
    keep = probabilities >= sampling.min_p * probabilities[0]
    keep &= probabilities.cumsum(dim=0) - probabilities < sampling.top_p
    keep[0] = True
    return int(indices[_invert(torch.where(keep, probabilities, 0.0), luck)])


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

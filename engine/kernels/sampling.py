"""Choosing tokens on the device: largest logit, or a seeded draw after top-k, top-p and min-p in that order.

It knows rows of logits and the numbers beside them; requests are the caller's business. What else a request may ask of
a choice (constraints, penalties, alternatives) is sampler.py's, on the host. The two draw differently: there the
distribution function is inverted, here the largest of logit / temperature + Gumbel noise wins, which needs no sort. In
both a draw depends on the row's own logits, seed and position alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOKEN, POSITION, BLOCK, SEED_LOW, SEED_HIGH, TEMPERATURE, TOP_K, TOP_P, MIN_P = range(9)
"""Columns of a packet: int32, floats by their bits."""

_MASK = 0xFFFFFFFF


def sample_ref(logits: Tensor, packet: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token [rows] int32 for each row of `logits` [rows, vocabulary], and its log-probability.

    -1 where a row's largest logit is not finite. Equal logits are kept or excluded together.
    """
    chosen = [_sample_row(row, rules) for row, rules in zip(logits.to(torch.float32), packet, strict=True)]
    tokens = torch.tensor(chosen, dtype=torch.int32, device=logits.device)
    picked = logits.to(torch.float32).gather(1, tokens.clamp(min=0).long()[:, None])[:, 0]
    return tokens, picked - logits.to(torch.float32).logsumexp(dim=1)


def gumbel_ref(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Return the noise of `tokens` at a position: a hash, made exponential, made Gumbel, in float64."""
    low, high = seed & _MASK, (seed >> 32) & _MASK
    where = _mix(torch.tensor(position * 0x9E3779B1 + 0x85EBCA77))
    first = _mix(low ^ where)
    second = _mix(high + _mix(first ^ position))
    h = _mix(_mix(tokens.cpu().long() ^ first) + second)
    return -torch.log(-torch.log1p(-(h.double() + 0.5) / 2**32))


def _mix(h: Tensor) -> Tensor:
    h = h & _MASK
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _MASK
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _MASK
    return h ^ (h >> 16)


def _sample_row(logits: Tensor, rules: Tensor) -> int:
    row = rules.tolist()
    temperature, _, top_p, min_p = rules[TEMPERATURE : MIN_P + 1].view(torch.float32).tolist()
    top_k = row[TOP_K]
    peak = float(logits.max())
    if not -torch.inf < peak < torch.inf:  # also of NaN, which wins a maximum
        return -1
    if temperature == 0:
        return int(logits.argmax())
    values = logits.double().sort(descending=True).values
    scaled = torch.exp((values - peak) / temperature)
    kept = values[min(top_k, len(values)) - 1] if top_k > 0 else values[-1]
    total = scaled[values >= kept].sum()
    above = scaled.cumsum(0) - scaled
    for index in range(1, len(values)):  # what lies above a token is what is larger, not what is as large
        if values[index] == values[index - 1]:
            above[index] = above[index - 1]
    fits = (values >= kept) & (above < top_p * total) & (scaled >= min_p)
    fits[0] = True
    floor = values[fits][-1]
    seed = (row[SEED_LOW] & _MASK) | ((row[SEED_HIGH] & _MASK) << 32)
    noise = gumbel_ref(seed, row[POSITION] + 1, torch.arange(len(logits))).to(logits.device)
    scores = torch.where(logits.double() >= floor, logits.double() / temperature + noise, -torch.inf)
    return int(scores.argmax())


def sample(logits: Tensor, packet: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    """Write a token and its log-probability for each row of `logits` [rows, vocabulary]; -1: it is not finite.

    `packet` [rows, columns] int32 says how; `tokens` int32 and `logprobs` float32 are [rows].
    """
    rows, vocabulary = logits.shape
    if packet.dtype is not torch.int32 or packet.shape[0] != rows or packet.shape[1] <= MIN_P:
        raise ValueError(f"packet {tuple(packet.shape)} {packet.dtype} does not describe {rows} rows")
    if logits.stride(1) != 1 or packet.stride(1) != 1 or vocabulary == 0:
        raise ValueError(f"logits {tuple(logits.shape)} and packet must have contiguous rows of at least one number")
    if tokens.shape != (rows,) or logprobs.shape != (rows,):
        raise ValueError(f"tokens {tuple(tokens.shape)} and logprobs {tuple(logprobs.shape)} are not [{rows}]")
    if logits.is_cuda:
        from .triton import sampling

        sampling.sample(logits, packet, tokens, logprobs)
        return
    found = sample_ref(logits, packet)
    tokens.copy_(found[0])
    logprobs.copy_(found[1])

"""Chooses tokens on the device: the largest logit, or a seeded draw after top-k, top-p and min-p in that order.

Before that come a bias for some tokens, and penalties for earlier ones. runners/sampler.py on the host serves requests
that need more (constraints, alternatives). The two draw differently: there the distribution function is inverted, here
the largest of logit / temperature + Gumbel noise wins, which needs no sort. In both a draw depends on the row's own
logits, tokens, seed and position alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOKEN, POSITION, BLOCK, SEED_LOW, SEED_HIGH, TEMPERATURE, TOP_K, TOP_P, MIN_P, PENALTIES = range(10)
"""Columns of a packet: int32, floats by their bits. PENALTIES: the row's slot plus 1; 0 if it has none."""

REPETITION, PRESENCE, FREQUENCY, BIASED, PROMPT_TOKENS = range(5)
TERMS = 8
"""Columns of a slot's terms, and how many there are room for."""

MOST_TIMES = 16383
"""The most a token is counted."""

_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Penalties:
    """What rows with penalties or biases need beside a packet, by slot; on the device, where steps keep it up to date.

    A slot is set when a request takes a row, with the tokens before the one that its next step reads; from then on
    every sample() counts the token that was read. Where positions do not go on by one, it must be set again.
    """

    history: Tensor  # [slots, vocabulary], int16: twice how often a token was generated, plus 1 if the prompt has it
    bias: Tensor  # [slots, vocabulary], float32
    terms: Tensor  # [slots, TERMS], float32

    @classmethod
    def empty(cls, slots: int, vocabulary: int, device: torch.device) -> Penalties:
        """Return free slots; each takes six bytes per token of the vocabulary."""
        return cls(
            torch.zeros((slots, vocabulary), dtype=torch.int16, device=device),
            torch.zeros((slots, vocabulary), dtype=torch.float32, device=device),
            torch.zeros((slots, TERMS), dtype=torch.float32, device=device),
        )

    def set(
        self,
        slot: int,
        tokens: Sequence[int],
        prompt_tokens: int,
        *,
        repetition: float = 1.0,
        presence: float = 0.0,
        frequency: float = 0.0,
        bias: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Fill a slot with `tokens`, of which the first `prompt_tokens` were not generated; queued, not waited for."""
        device, pairs = self.history.device, list(bias)
        terms = [repetition, presence, frequency, float(bool(pairs)), float(prompt_tokens)]
        self.terms[slot, : len(terms)] = _queued(torch.tensor(terms), device)
        prompt = np.unique(np.array(tokens[:prompt_tokens], dtype=np.int64))
        output, times = np.unique(np.array(tokens[prompt_tokens:], dtype=np.int64), return_counts=True)
        known = np.union1d(prompt, output)
        values = np.isin(known, prompt).astype(np.int16)
        values[np.searchsorted(known, output)] += (2 * np.minimum(times, MOST_TIMES)).astype(np.int16)
        self.history[slot].zero_()
        places = _queued(torch.from_numpy(known), device)
        self.history[slot].scatter_(0, places, _queued(torch.from_numpy(values), device))
        if pairs:
            self.bias[slot].zero_()
            places = _queued(torch.tensor([token for token, _ in pairs]), device)
            self.bias[slot].index_add_(0, places, _queued(torch.tensor([amount for _, amount in pairs]), device))


def _queued(numbers: Tensor, device: torch.device) -> Tensor:
    """Queue numbers to a device: a copy from pinned memory waits for no step."""
    if device.type == "cpu":
        return numbers
    return numbers.pin_memory().to(device, non_blocking=True)


def penalised_ref(logits: Tensor, packet: Tensor, penalties: Penalties, fed: Tensor) -> Tensor:
    """Return float32 logits as the rows' penalties make them, after counting the tokens that were fed."""
    scores = logits.to(torch.float32, copy=True)
    for row, (slot, position, token) in enumerate(
        zip(packet[:, PENALTIES].tolist(), packet[:, POSITION].tolist(), fed.tolist(), strict=True)
    ):
        if slot == 0:
            continue
        history, terms = penalties.history[slot - 1], penalties.terms[slot - 1].tolist()
        if position < terms[PROMPT_TOKENS]:
            history[token] |= 1
        elif history[token] < 2 * MOST_TIMES:
            history[token] += 2
        score = scores[row] + penalties.bias[slot - 1] if terms[BIASED] else scores[row]
        held = torch.where(score > 0, score / terms[REPETITION], score * terms[REPETITION])
        score = torch.where(history > 0, held, score)
        times = history >> 1
        scores[row] = score - (terms[PRESENCE] * (times > 0) + terms[FREQUENCY] * times)
    return scores


def sample_ref(
    logits: Tensor, packet: Tensor, penalties: Penalties | None = None, fed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return a token [rows] int32 for each row of `logits` [rows, vocabulary], and its log-probability.

    -1 where a row's largest logit is not finite. Equal logits are kept or excluded together.
    """
    scores = logits.to(torch.float32)
    if penalties is not None and fed is not None:
        scores = penalised_ref(logits, packet, penalties, fed)
    finite = torch.isfinite(logits.amax(dim=1)).tolist()
    chosen = [_sample_row(row, rules) if good else -1 for row, rules, good in zip(scores, packet, finite, strict=True)]
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
    if temperature == 0:
        return int(logits.argmax())
    values = logits.double().sort(descending=True).values
    scaled = torch.exp((values - peak) / temperature)
    kept = values[min(top_k, len(values)) - 1] if top_k > 0 else values[-1]
    total = scaled[values >= kept].sum()
    # Only larger logits lie above a token, not equal ones: the first of equals counts.
    above = (scaled.cumsum(0) - scaled)[torch.searchsorted(-values, -values)]
    fits = (values >= kept) & (above < top_p * total) & (scaled >= min_p)
    fits[0] = True
    floor = values[fits][-1]
    seed = (row[SEED_LOW] & _MASK) | ((row[SEED_HIGH] & _MASK) << 32)
    noise = gumbel_ref(seed, row[POSITION] + 1, torch.arange(len(logits))).to(logits.device)
    scores = torch.where(logits.double() >= floor, logits.double() / temperature + noise, -torch.inf)
    return int(scores.argmax())


def sample(
    logits: Tensor,
    packet: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    penalties: Penalties | None = None,
    fed: Tensor | None = None,
) -> None:
    """Write a token and its log-probability for each row of `logits` [rows, vocabulary]; -1: it is not finite.

    `packet` [rows, columns] int32 holds the rules; `tokens` int32 and `logprobs` float32 are [rows]. With `penalties`,
    `fed` [rows] are the tokens that were read: those of rows with a slot are counted before the choice.
    Log-probabilities are those of the logits before penalties.
    """
    rows, vocabulary = logits.shape
    columns = MIN_P if penalties is None else PENALTIES
    if packet.dtype is not torch.int32 or packet.shape[0] != rows or packet.shape[1] <= columns:
        raise ValueError(f"packet {tuple(packet.shape)} {packet.dtype} does not describe {rows} rows")
    if logits.stride(1) != 1 or packet.stride(1) != 1 or vocabulary == 0:
        raise ValueError(f"logits {tuple(logits.shape)} and packet must have contiguous rows of at least one number")
    if tokens.shape != (rows,) or logprobs.shape != (rows,):
        raise ValueError(f"tokens {tuple(tokens.shape)} and logprobs {tuple(logprobs.shape)} are not [{rows}]")
    if penalties is not None and (
        fed is None or fed.shape != (rows,) or not fed.is_contiguous() or penalties.history.shape[1] != vocabulary
    ):
        raise ValueError(f"penalties need the {rows} tokens that were fed, and a vocabulary of {vocabulary}")
    if logits.is_cuda:
        from voxlane.engine.kernels.sampling import sampling_triton

        sampling_triton.sample(logits, packet, tokens, logprobs, penalties, fed)
        return
    found = sample_ref(logits, packet, penalties, fed)
    tokens.copy_(found[0])
    logprobs.copy_(found[1])

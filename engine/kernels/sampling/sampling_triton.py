"""Chooses tokens in Triton: one scan of all logits, spread over the chip, then one program per row that decides.

A draw is the largest of logit / temperature + Gumbel noise, the noise a hash of (seed, position, token): it depends on
nothing else, so a row draws the same token in every batch. The scan finds the draw among all tokens; what top-k, top-p
and min-p exclude is found by rejection: an excluded draw is followed by the best among the tokens more likely than it,
with the same noise, so that what is accepted is the largest among those that may be kept. Only rows that ask for a
filter read their logits again, from L2: for top-k about four times, for the others once or twice.

Equal logits are kept or excluded together. Rows with penalties or biases read every logit through _scores; their tokens
are counted here too, by the one program that reads the logit of the input token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import (
    BIASED,
    FREQUENCY,
    MIN_P,
    PENALTIES,
    POSITION,
    PRESENCE,
    PROMPT_TOKENS,
    REPETITION,
    SEED_HIGH,
    SEED_LOW,
    TEMPERATURE,
    TERMS,
    TOP_K,
    TOP_P,
    Penalties,
)

CHUNK = 4096
"""Logits that one program of the scan reads: 38 programs a row for a vocabulary of 152,000."""

BLOCK = 8192
"""Logits that a deciding program reads at a time."""

_ROUNDS = tl.constexpr(24)  # of an eightfold division: more than float32 has bits
_FOUND = tl.constexpr(8)  # numbers of a chunk: peak and mass of its logits; mass, best and peak of its scores
_MOST = tl.constexpr(32766)  # an int16 that two more would not fit into

_POSITION, _SEED_LOW, _SEED_HIGH = tl.constexpr(POSITION), tl.constexpr(SEED_LOW), tl.constexpr(SEED_HIGH)
_TEMPERATURE, _TOP_K = tl.constexpr(TEMPERATURE), tl.constexpr(TOP_K)
_TOP_P, _MIN_P, _PENALTIES = tl.constexpr(TOP_P), tl.constexpr(MIN_P), tl.constexpr(PENALTIES)
_REPETITION, _PRESENCE, _FREQUENCY = tl.constexpr(REPETITION), tl.constexpr(PRESENCE), tl.constexpr(FREQUENCY)
_BIASED, _PROMPT_TOKENS, _TERMS = tl.constexpr(BIASED), tl.constexpr(PROMPT_TOKENS), tl.constexpr(TERMS)


@triton.jit
def _mix(h):
    """Return a hash of 32 bits: two multiplications, three shifts."""
    h ^= h >> 16
    h *= 0x7FEB352D
    h ^= h >> 15
    h *= 0x846CA68B
    h ^= h >> 16
    return h


@triton.jit
def _keys(rules):
    """Return the key of the noise of a packet's row: its seed and the position of the token to be chosen."""
    position = (tl.load(rules + _POSITION) + 1).to(tl.uint32)
    seed_low = tl.load(rules + _SEED_LOW).to(tl.uint32, bitcast=True)
    seed_high = tl.load(rules + _SEED_HIGH).to(tl.uint32, bitcast=True)
    where = _mix(position * 0x9E3779B1 + 0x85EBCA77)
    first = _mix(seed_low ^ where)
    second = _mix(seed_high + _mix(first ^ position))
    return first, second


@triton.jit
def _gumbel(token, first, second):
    h = _mix(_mix(token.to(tl.uint32) ^ first) + second)
    v = (h.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    # Exponential in a form that is exact where it is small: the winning draws are there.
    small = v * (1.0 + v * (0.5 + v * 0.33333334))
    return -tl.log(tl.where(v < 0.004, small, -tl.log(1.0 - tl.minimum(v, 0.99999994))))


@triton.jit
def _slot(rules, history):
    """Return the penalty slot of a packet's row, -1 if it has none."""
    if history is None:
        return tl.full([], -1, dtype=tl.int32)
    else:
        return tl.load(rules + _PENALTIES) - 1


@triton.jit
def _count(rules, history, terms, fed, row, slot, token, inside, VOCABULARY: tl.constexpr):
    """Count the token that was fed in, if it is one of these."""
    here = inside & (token == tl.load(fed + row))
    place = history + slot.to(tl.int64) * VOCABULARY + token
    before = tl.load(place, mask=here, other=0)
    prompt = tl.load(rules + _POSITION) < tl.load(terms + slot * _TERMS + _PROMPT_TOKENS).to(tl.int32)
    after = tl.where(prompt, before | 1, tl.where(before < _MOST, before + 2, before))
    tl.store(place, after.to(tl.int16), mask=here)
    tl.debug_barrier()  # other threads of this program read it next


@triton.jit
def _scores(value, token, inside, history, bias, terms, slot, VOCABULARY: tl.constexpr):
    """Return logits with a row's penalties: sampler.py's arithmetic in its order."""
    if history is not None:  # noqa: SIM102 -- this is known when it is compiled, what follows is not
        if slot >= 0:
            own = terms + slot * _TERMS
            place = slot.to(tl.int64) * VOCABULARY + token
            if tl.load(own + _BIASED) > 0:
                value += tl.load(bias + place, mask=inside, other=0.0)
            repetition = tl.load(own + _REPETITION)
            known = tl.load(history + place, mask=inside, other=0).to(tl.int32)
            value = tl.where(known > 0, tl.where(value > 0, value / repetition, value * repetition), value)
            count = (known >> 1).to(tl.float32)
            value -= tl.where(count > 0, tl.load(own + _PRESENCE), 0.0) + tl.load(own + _FREQUENCY) * count
    return value


@triton.jit
def _load_scores(row_logits, token, history, bias, terms, slot, VOCABULARY: tl.constexpr):
    """Return the scores of some tokens, -inf beyond the vocabulary."""
    inside = token < VOCABULARY
    value = tl.load(row_logits + token, mask=inside, other=-float("inf")).to(tl.float32)
    return _scores(value, token, inside, history, bias, terms, slot, VOCABULARY)


@triton.jit
def _scan_kernel(
    logits, packet, found, found_token, fed, history, bias, terms, stride, packet_stride, chunks,
    VOCABULARY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rules = packet + row * packet_stride
    temperature = tl.load(rules + _TEMPERATURE).to(tl.float32, bitcast=True)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < VOCABULARY
    value = tl.load(logits + row * stride + token, mask=inside, other=-float("inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)  # NaN must win, or it would go unnoticed
    peak = tl.max(value, axis=0)
    shifted = tl.where(inside & (value > -float("inf")), value - peak, -float("inf"))
    mass = tl.sum(tl.exp(shifted), axis=0)
    crest = peak
    slot = _slot(rules, history)
    if history is not None:  # noqa: SIM102
        if slot >= 0:
            _count(rules, history, terms, fed, row, slot, token, inside, VOCABULARY)
            value = _scores(value, token, inside, history, bias, terms, slot, VOCABULARY)
            crest = tl.max(value, axis=0)
            shifted = tl.where(inside & (value > -float("inf")), value - crest, -float("inf"))
    score, warm = value, mass
    if temperature > 0:
        first, second = _keys(rules)
        warm = tl.sum(tl.exp(shifted / temperature), axis=0)
        score = tl.where(value > -float("inf"), value / temperature + _gumbel(token, first, second), -float("inf"))
    best = tl.max(score, axis=0)
    winner = tl.min(tl.where(inside & (score == best), token, 2147483647), axis=0)
    place = found + (row * chunks + chunk) * _FOUND
    tl.store(place, peak)
    tl.store(place + 1, mass)
    tl.store(place + 2, warm)
    tl.store(place + 3, best)
    tl.store(place + 4, crest)
    tl.store(found_token + row * chunks + chunk, winner)


@triton.jit
def _narrow(many, k, pivot, low, high, count):
    """Return [low, high) and the count at low after learning that `many` lie at or above a pivot."""
    enough = many >= k
    high = tl.where(enough, high, tl.minimum(high, pivot))
    return tl.where(enough, pivot, low), high, tl.where(enough, many, count)


@triton.jit
def _kth(
    row_logits, peak, k, history, bias, terms, slot, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return a value that the k largest logits, and those equal to the last of them, are not below, and no other.

    Narrows [low, high) eightfold a pass; count(>= low) >= k > count(>= high). It stops as soon as exactly k lie above.
    """
    high = peak + tl.maximum(tl.abs(peak), 1.0) * 1e-6
    width = 4.0
    low = peak - width
    count = 0
    rounds = 0
    while (count < k) & (rounds < 12):  # widen until k are inside
        above = tl.zeros([BLOCK], dtype=tl.int32)
        for begin in range(0, VOCABULARY, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            value = _load_scores(row_logits, token, history, bias, terms, slot, VOCABULARY)
            above += ((value >= low) & (token < VOCABULARY)).to(tl.int32)
        count = tl.sum(above, axis=0)
        rounds += 1
        if count < k:
            high = low
            width *= 8.0
            low = tl.where(rounds < 11, peak - width, -float("inf"))
    rounds = 0
    while (count > k) & (rounds < _ROUNDS) & (low > -float("inf")):
        step = (high - low) * 0.125
        p1, p2, p3, p4 = low + step, low + 2 * step, low + 3 * step, low + 4 * step
        p5, p6, p7 = low + 5 * step, low + 6 * step, low + 7 * step
        # Three counts of ten bits in one number: a lane sees vocabulary / BLOCK logits, far fewer than 1,024.
        low_three = tl.zeros([BLOCK], dtype=tl.int32)
        high_three = tl.zeros([BLOCK], dtype=tl.int32)
        last = tl.zeros([BLOCK], dtype=tl.int32)
        for begin in range(0, VOCABULARY, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            v = _load_scores(row_logits, token, history, bias, terms, slot, VOCABULARY)
            low_three += (v >= p1).to(tl.int32) + ((v >= p2).to(tl.int32) << 10) + ((v >= p3).to(tl.int32) << 20)
            high_three += (v >= p4).to(tl.int32) + ((v >= p5).to(tl.int32) << 10) + ((v >= p6).to(tl.int32) << 20)
            last += (v >= p7).to(tl.int32)
        old_low, old_high = low, high
        low, high, count = _narrow(tl.sum(low_three & 1023, axis=0), k, p1, low, high, count)
        low, high, count = _narrow(tl.sum((low_three >> 10) & 1023, axis=0), k, p2, low, high, count)
        low, high, count = _narrow(tl.sum(low_three >> 20, axis=0), k, p3, low, high, count)
        low, high, count = _narrow(tl.sum(high_three & 1023, axis=0), k, p4, low, high, count)
        low, high, count = _narrow(tl.sum((high_three >> 10) & 1023, axis=0), k, p5, low, high, count)
        low, high, count = _narrow(tl.sum(high_three >> 20, axis=0), k, p6, low, high, count)
        low, high, count = _narrow(tl.sum(last, axis=0), k, p7, low, high, count)
        rounds = tl.where((low == old_low) & (high == old_high), _ROUNDS, rounds + 1)
    return low


@triton.jit
def _bounds(
    row_logits, rules, place, there, crest, temperature, history, bias, terms, slot,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the lowest score kept, the mass of larger ones that drops the rest, and whether top-p is on."""
    top_k = tl.load(rules + _TOP_K)
    top_p = tl.load(rules + _TOP_P).to(tl.float32, bitcast=True)
    min_p = tl.load(rules + _MIN_P).to(tl.float32, bitcast=True)
    crests = tl.load(place + 4, mask=there, other=-float("inf"))
    shares = tl.where(there & (crests > -float("inf")), crests - crest, -float("inf"))
    total = tl.sum(tl.load(place + 2, mask=there, other=0.0) * tl.exp(shares / temperature), axis=0)
    floor = crest * 0.0 - float("inf")
    if (top_k > 0) & (top_k < VOCABULARY):
        floor = _kth(row_logits, crest, top_k, history, bias, terms, slot, VOCABULARY, BLOCK)
        if top_p < 1:
            lanes = tl.zeros([BLOCK], dtype=tl.float32)
            for begin in range(0, VOCABULARY, BLOCK):
                other = begin + tl.arange(0, BLOCK)
                v = _load_scores(row_logits, other, history, bias, terms, slot, VOCABULARY)
                lanes += tl.where(v >= floor, tl.exp((v - crest) / temperature), 0.0)
            total = tl.sum(lanes, axis=0)
    if min_p > 0:
        floor = tl.maximum(floor, crest + temperature * tl.log(min_p))
    return tl.minimum(floor, crest), top_p * total, top_p < 1


@triton.jit
def _search(
    row_logits, rules, token, floor, limit, searching, crest, temperature, history, bias, terms, slot,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the best draw of those that may be kept, `token` being the best of all."""
    first, second = _keys(rules)
    value = _load_scores(row_logits, token, history, bias, terms, slot, VOCABULARY)
    searching = searching | (value < floor)
    while searching:
        above = tl.zeros([BLOCK], dtype=tl.float32)
        top = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
        who = tl.full([BLOCK], 2147483647, dtype=tl.int32)
        for begin in range(0, VOCABULARY, BLOCK):
            other = begin + tl.arange(0, BLOCK)
            v = _load_scores(row_logits, other, history, bias, terms, slot, VOCABULARY)
            higher = v > value
            above += tl.where(higher, tl.exp((v - crest) / temperature), 0.0)
            s = tl.where(higher & (v >= floor), v / temperature + _gumbel(other, first, second), -float("inf"))
            better = s > top  # a lane's tokens come in rising order, so of equals the lowest stays
            who = tl.where(better, other, who)
            top = tl.where(better, s, top)
        beyond = tl.sum(above, axis=0)
        best = tl.max(top, axis=0)
        next_token = tl.min(tl.where(top == best, who, 2147483647), axis=0)
        kept = (value >= floor) & ((beyond < limit) | (beyond == 0.0))
        searching = (kept == 0) & (best > -float("inf"))
        if searching:
            token = next_token
            value = _load_scores(row_logits, token, history, bias, terms, slot, VOCABULARY)
    return token


@triton.jit
def _settle_kernel(
    logits, packet, found, found_token, tokens, logprobs, history, bias, terms, stride, packet_stride, chunks,
    VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    rules = packet + row * packet_stride
    temperature = tl.load(rules + _TEMPERATURE).to(tl.float32, bitcast=True)
    chunk = tl.arange(0, CHUNKS)
    there = chunk < chunks
    place = found + (row * chunks + chunk) * _FOUND
    peaks = tl.load(place, mask=there, other=-float("inf"))
    peak = tl.max(peaks, axis=0)
    shares = tl.where(there & (peaks > -float("inf")), peaks - peak, -float("inf"))
    mass = tl.sum(tl.load(place + 1, mask=there, other=0.0) * tl.exp(shares), axis=0)
    crest = tl.max(tl.load(place + 4, mask=there, other=-float("inf")), axis=0)
    scores = tl.load(place + 3, mask=there, other=-float("inf"))
    candidates = tl.load(found_token + row * chunks + chunk, mask=there, other=2147483647)
    token = tl.min(tl.where(scores == tl.max(scores, axis=0), candidates, 2147483647), axis=0)
    row_logits = logits + row * stride
    sound = (peak > -float("inf")) & (peak < float("inf"))
    token = tl.where(sound, token, 0)
    filters = (tl.load(rules + _TOP_K) > 0) | (tl.load(rules + _TOP_P).to(tl.float32, bitcast=True) < 1)
    filters = filters | (tl.load(rules + _MIN_P).to(tl.float32, bitcast=True) > 0)
    if sound & (temperature > 0) & filters:
        slot = _slot(rules, history)
        floor, limit, bounded = _bounds(
            row_logits, rules, place, there, crest, temperature, history, bias, terms, slot, VOCABULARY, BLOCK
        )
        token = _search(
            row_logits, rules, token, floor, limit, bounded, crest, temperature, history, bias, terms, slot,
            VOCABULARY, BLOCK,
        )  # fmt: skip
    tl.store(tokens + row, tl.where(sound, token, -1))
    tl.store(logprobs + row, tl.load(row_logits + token).to(tl.float32) - peak - tl.log(mass))


def sample(
    logits: Tensor,
    packet: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    penalties: Penalties | None = None,
    fed: Tensor | None = None,
) -> None:
    """Write a token and its log-probability for each row of `logits` [rows, vocabulary]; -1 where one is not finite."""
    rows, vocabulary = logits.shape
    if rows == 0:
        return
    chunks = triton.cdiv(vocabulary, CHUNK)
    found = torch.empty((rows, chunks, _FOUND.value), dtype=torch.float32, device=logits.device)
    found_token = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    known = (None, None, None) if penalties is None else (penalties.history, penalties.bias, penalties.terms)
    sizes = (logits.stride(0), packet.stride(0), chunks)
    _scan_kernel[(rows, chunks)](
        *(logits, packet, found, found_token, fed, *known, *sizes), VOCABULARY=vocabulary, CHUNK=CHUNK, num_warps=8
    )
    _settle_kernel[(rows,)](
        *(logits, packet, found, found_token, tokens, logprobs, *known, *sizes),
        VOCABULARY=vocabulary,
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=BLOCK,
        num_warps=16,
    )

"""Choosing tokens in Triton: one scan of all logits, spread over the chip, and one program a row that settles it.

A draw is the largest of logit / temperature + Gumbel noise, the noise a hash of (seed, position, token): it depends on
nothing else, so a row draws the same token in every batch. The scan finds the draw among all tokens; what top-k, top-p
and min-p exclude is found by rejection: an excluded draw is followed by the best among the tokens more likely than it,
with the same noise, so that what is accepted is the largest among those that may be kept. Only rows that ask for a
filter read their logits again, from L2: for top-k about four times, for the others once or twice.

Equal logits are kept or excluded together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096
"""Logits that one program of the scan reads: 38 programs a row for a vocabulary of 152,000."""

BLOCK = 8192
"""Logits that a settling program reads at a time."""

_ROUNDS = tl.constexpr(24)  # of an eightfold division: more than float32 has bits


@triton.jit
def _mix(h):
    """Return a well scattered function of 32 bits: two multiplications, three shifts."""
    h ^= h >> 16
    h *= 0x7FEB352D
    h ^= h >> 15
    h *= 0x846CA68B
    h ^= h >> 16
    return h


@triton.jit
def _keys(rules):
    """Return what the noise of a packet's row is keyed by: its seed and the position of the token to be chosen."""
    position = (tl.load(rules + 1) + 1).to(tl.uint32)
    seed_low = tl.load(rules + 3).to(tl.uint32, bitcast=True)
    seed_high = tl.load(rules + 4).to(tl.uint32, bitcast=True)
    where = _mix(position * 0x9E3779B1 + 0x85EBCA77)
    first = _mix(seed_low ^ where)
    second = _mix(seed_high + _mix(first ^ position))
    return first, second


@triton.jit
def _gumbel(token, first, second):
    h = _mix(_mix(token.to(tl.uint32) ^ first) + second)
    v = (h.to(tl.float32) + 0.5) * (1.0 / 4294967296.0)
    # Exponential in a form that is exact where it is small: there lie the draws that win.
    small = v * (1.0 + v * (0.5 + v * 0.33333334))
    return -tl.log(tl.where(v < 0.004, small, -tl.log(1.0 - tl.minimum(v, 0.99999994))))


@triton.jit
def _scan_kernel(
    logits, packet, found, found_token, stride, packet_stride, chunks, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rules = packet + row * packet_stride
    temperature = tl.load(rules + 5).to(tl.float32, bitcast=True)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < VOCABULARY
    value = tl.load(logits + row * stride + token, mask=inside, other=-float("inf")).to(tl.float32)
    value = tl.where(value != value, float("inf"), value)  # NaN must win, or nobody notices it
    peak = tl.max(value, axis=0)
    shifted = tl.where(inside & (value > -float("inf")), value - peak, -float("inf"))
    mass = tl.sum(tl.exp(shifted), axis=0)
    score, warm = value, mass
    if temperature > 0:
        first, second = _keys(rules)
        warm = tl.sum(tl.exp(shifted / temperature), axis=0)
        score = tl.where(value > -float("inf"), value / temperature + _gumbel(token, first, second), -float("inf"))
    best = tl.max(score, axis=0)
    winner = tl.min(tl.where(inside & (score == best), token, 2147483647), axis=0)
    place = found + (row * chunks + chunk) * 4
    tl.store(place, peak)
    tl.store(place + 1, mass)
    tl.store(place + 2, warm)
    tl.store(place + 3, best)
    tl.store(found_token + row * chunks + chunk, winner)


@triton.jit
def _narrow(many, k, pivot, low, high, count):
    """Return [low, high) and the count at low after learning that `many` lie at or above a pivot."""
    enough = many >= k
    high = tl.where(enough, high, tl.minimum(high, pivot))
    return tl.where(enough, pivot, low), high, tl.where(enough, many, count)


@triton.jit
def _kth(row_logits, peak, k, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
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
            value = tl.load(row_logits + token, mask=token < VOCABULARY, other=-float("inf")).to(tl.float32)
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
            v = tl.load(row_logits + token, mask=token < VOCABULARY, other=-float("inf")).to(tl.float32)
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
def _settle_kernel(
    logits, packet, found, found_token, tokens, logprobs, stride, packet_stride, chunks,
    VOCABULARY: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    rules = packet + row * packet_stride
    temperature = tl.load(rules + 5).to(tl.float32, bitcast=True)
    top_k = tl.load(rules + 6)
    top_p = tl.load(rules + 7).to(tl.float32, bitcast=True)
    min_p = tl.load(rules + 8).to(tl.float32, bitcast=True)
    chunk = tl.arange(0, CHUNKS)
    there = chunk < chunks
    place = found + (row * chunks + chunk) * 4
    peaks = tl.load(place, mask=there, other=-float("inf"))
    peak = tl.max(peaks, axis=0)
    shares = tl.where(there & (peaks > -float("inf")), peaks - peak, -float("inf"))
    mass = tl.sum(tl.load(place + 1, mask=there, other=0.0) * tl.exp(shares), axis=0)
    scores = tl.load(place + 3, mask=there, other=-float("inf"))
    best = tl.max(scores, axis=0)
    candidates = tl.load(found_token + row * chunks + chunk, mask=there, other=2147483647)
    token = tl.min(tl.where(scores == best, candidates, 2147483647), axis=0)
    row_logits = logits + row * stride
    sound = (peak > -float("inf")) & (peak < float("inf"))
    token = tl.where(sound, token, 0)
    value = tl.load(row_logits + token).to(tl.float32)

    filtered = sound & (temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))
    if filtered:
        first, second = _keys(rules)
        total = tl.sum(tl.load(place + 2, mask=there, other=0.0) * tl.exp(shares / temperature), axis=0)
        floor = peak * 0.0 - float("inf")
        if (top_k > 0) & (top_k < VOCABULARY):
            floor = _kth(row_logits, peak, top_k, VOCABULARY, BLOCK)
            if top_p < 1:
                lanes = tl.zeros([BLOCK], dtype=tl.float32)
                for begin in range(0, VOCABULARY, BLOCK):
                    other = begin + tl.arange(0, BLOCK)
                    v = tl.load(row_logits + other, mask=other < VOCABULARY, other=-float("inf")).to(tl.float32)
                    lanes += tl.where(v >= floor, tl.exp((v - peak) / temperature), 0.0)
                total = tl.sum(lanes, axis=0)
        if min_p > 0:
            floor = tl.maximum(floor, peak + temperature * tl.log(min_p))
        floor = tl.minimum(floor, peak)
        limit = top_p * total
        searching = (value < floor) | (top_p < 1)
        while searching:
            above = tl.zeros([BLOCK], dtype=tl.float32)
            top = tl.full([BLOCK], -float("inf"), dtype=tl.float32)
            who = tl.full([BLOCK], 2147483647, dtype=tl.int32)
            for begin in range(0, VOCABULARY, BLOCK):
                other = begin + tl.arange(0, BLOCK)
                v = tl.load(row_logits + other, mask=other < VOCABULARY, other=-float("inf")).to(tl.float32)
                higher = v > value
                above += tl.where(higher, tl.exp((v - peak) / temperature), 0.0)
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
                value = tl.load(row_logits + token).to(tl.float32)

    tl.store(tokens + row, tl.where(sound, token, -1))
    tl.store(logprobs + row, value - peak - tl.log(mass))


def sample(logits: Tensor, packet: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    """Write a token and its log-probability for each row of `logits` [rows, vocabulary]; -1 where one is not finite."""
    rows, vocabulary = logits.shape
    if rows == 0:
        return
    chunks = triton.cdiv(vocabulary, CHUNK)
    found = torch.empty((rows, chunks, 4), dtype=torch.float32, device=logits.device)
    found_token = torch.empty((rows, chunks), dtype=torch.int32, device=logits.device)
    sizes = (logits.stride(0), packet.stride(0), chunks)
    _scan_kernel[(rows, chunks)](
        logits, packet, found, found_token, *sizes, VOCABULARY=vocabulary, CHUNK=CHUNK, num_warps=8
    )
    _settle_kernel[(rows,)](
        *(logits, packet, found, found_token, tokens, logprobs, *sizes),
        VOCABULARY=vocabulary,
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCK=BLOCK,
        num_warps=16,
    )

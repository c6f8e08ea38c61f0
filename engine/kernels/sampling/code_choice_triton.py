"""Choosing one code of a frame in Triton: a program a row, all of its logits in registers.

The largest of logit / temperature + Gumbel noise wins. If the winner is not among the k largest logits, the search is
repeated among the logits above it: all of the k largest are above it, so once the winner is one of them, it is their
winner. That takes a reduction or two where the k-th largest would take twenty.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from voxlane.engine.kernels.sampling.code_choice import FirstRules
from voxlane.engine.kernels.sampling.sampling import POSITION, TEMPERATURE, TOP_K, TOP_P
from voxlane.engine.kernels.sampling.sampling_triton import _gumbel, _keys
from voxlane.engine.kernels.triton_overlap import launch_options, overlaps

_POSITION, _TEMPERATURE = tl.constexpr(POSITION), tl.constexpr(TEMPERATURE)
_TOP_K, _TOP_P = tl.constexpr(TOP_K), tl.constexpr(TOP_P)
_NONE = tl.constexpr(2147483647)

WARPS = 8
"""4 were no faster."""


@triton.jit
def _restricted(
    value, code, inside, rules, said, row, slot, penalty, sounds, end, earliest_end, VOCABULARY: tl.constexpr
):
    """Return logits as the rules for a frame's first code leave them."""
    known = tl.load(said + slot * VOCABULARY + code, mask=inside, other=0).to(tl.int32)
    share = tl.load(penalty + row)
    value = tl.where(known != 0, tl.where(value < 0, value * share, value / share), value)
    early = tl.load(rules + _POSITION) < earliest_end
    value = tl.where((code >= sounds) & (code != end), -float("inf"), value)
    return tl.where((code == end) & (code * 0 + early != 0), -float("inf"), value)


@triton.jit
def _mass_of(value, k, crest, temperature, inside):
    """Return the sum of the shares of the k largest logits and those equal to the last, which is searched by bits."""
    bits = value.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # as signed numbers, these are in the order of the floats
    low, high = tl.min(tl.where(inside, order, _NONE), axis=0).to(tl.int64), tl.max(order, axis=0).to(tl.int64)
    while low < high:  # the largest threshold that k are not below
        middle = (low + high + 1) >> 1
        enough = tl.sum((inside & (order >= middle)).to(tl.int32), axis=0) >= k
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return tl.sum(tl.where(inside & (order >= low), tl.exp((value - crest) / temperature), 0.0), axis=0)


@triton.jit(do_not_specialize=["offset"], do_not_specialize_on_alignment=["codes"])
def _choose_kernel(
    logits, packet, codes, residual, table, said, slots, penalty, logits_stride, packet_stride, codes_stride,
    residual_stride, offset, sounds, end, earliest_end,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    rules = packet + row * packet_stride
    code = tl.arange(0, BLOCK)
    inside = code < VOCABULARY
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    value = tl.load(logits + row * logits_stride + code, mask=inside, other=-float("inf"))
    if said is not None:
        slot = tl.load(slots + row).to(tl.int64)
        value = _restricted(value, code, inside, rules, said, row, slot, penalty, sounds, end, earliest_end, VOCABULARY)
    value = tl.where(value != value, float("inf"), value)  # NaN must win, or it would go unnoticed
    crest = tl.max(value, axis=0)
    sound = (crest > -float("inf")) & (crest < float("inf"))
    temperature = tl.load(rules + _TEMPERATURE).to(tl.float32, bitcast=True)
    score = value
    if temperature > 0:
        first, second = _keys(rules)
        score = tl.where(value > -float("inf"), value / temperature + _gumbel(code, first, second), -float("inf"))
    best = tl.max(score, axis=0)
    winner = tl.min(tl.where(inside & (score == best), code, _NONE), axis=0)
    top_k = tl.load(rules + _TOP_K)
    top_p = tl.load(rules + _TOP_P).to(tl.float32, bitcast=True)
    k = tl.where(top_k > 0, tl.minimum(top_k, VOCABULARY), VOCABULARY)
    searching = sound & (temperature > 0) & ((k < VOCABULARY) | (top_p < 1))
    if searching:
        limit = crest * 0.0 + float("inf")
        if top_p < 1:
            limit = top_p * _mass_of(value, k, crest, temperature, inside)
        while searching:
            own = tl.max(tl.where(code == winner, value, -float("inf")), axis=0)
            higher = value > own
            rank = tl.sum(higher.to(tl.int32), axis=0)
            kept = rank < k
            if top_p < 1:
                beyond = tl.sum(tl.where(higher, tl.exp((value - crest) / temperature), 0.0), axis=0)
                kept = kept & ((beyond < limit) | (rank == 0))
            searching = kept == 0
            if searching:
                rest = tl.where(higher, score, -float("inf"))
                best = tl.max(rest, axis=0)
                winner = tl.min(tl.where(higher & (rest == best), code, _NONE), axis=0)
    winner = tl.where(sound, winner, 0)
    tl.store(codes + row * codes_stride, tl.where(sound, winner, -1).to(tl.int64))
    if said is not None:
        tl.store(said + slot * VOCABULARY + winner, (winner * 0 + 1).to(said.dtype.element_ty))
    if residual is not None:
        column = tl.arange(0, WIDTH_BLOCK)
        held = tl.load(table + (offset + winner).to(tl.int64) * WIDTH + column, mask=column < WIDTH, other=0.0)
        tl.store(residual + row * residual_stride + column, held.to(tl.float32), mask=column < WIDTH)


def choose_code(
    logits: Tensor,
    packet: Tensor,
    codes: Tensor,
    rules: FirstRules | None,
    residual: Tensor | None,
    table: Tensor | None,
    offset: int,
) -> None:
    """Write a code for each row of `logits`, and its row of the table."""
    rows, vocabulary = logits.shape
    width = 1 if table is None else table.shape[1]
    overlap = overlaps(logits.device)
    first = (None, None, None) if rules is None else (rules.said.view(torch.uint8), rules.slots, rules.penalty)
    bounds = (0, 0, 0) if rules is None else (rules.sounds, rules.end, rules.earliest_end)
    _choose_kernel[(rows,)](
        *(logits, packet, codes, residual, table, *first, logits.stride(0), packet.stride(0), codes.stride(0)),
        *(0 if residual is None else residual.stride(0), offset, *bounds),
        VOCABULARY=vocabulary,
        BLOCK=triton.next_power_of_2(vocabulary),
        WIDTH=width,
        WIDTH_BLOCK=triton.next_power_of_2(width),
        PDL=overlap,
        num_warps=WARPS,
        **launch_options(overlap=overlap),
    )

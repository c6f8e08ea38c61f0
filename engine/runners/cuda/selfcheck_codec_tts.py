"""Checks every kernel of a codec language model and its codec against its reference, in their own types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from voxlane.engine.kernels.attention import ring, short
from voxlane.engine.kernels.attention.pages import Pages
from voxlane.engine.kernels.conv import causal
from voxlane.engine.kernels.sampling import code_choice
from voxlane.engine.kernels.sampling.sampling import POSITION, SEED_LOW, TEMPERATURE, TOP_K, TOP_P
from voxlane.engine.kernels.selfcheck import Comparison
from voxlane.engine.runners.cuda.trial import Trial

ROWS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 3, 16, 8, 128, 16
CODES, WIDTH, PACKET = 2048, 64, 12
STREAMS, CHANNELS, DILATION = 3, 96, 9

_HALF, _HALF_TOLERANCE = torch.float16, 4e-3
"""The type of a codec beside a talker in bfloat16, and its tolerance."""

_EXACT = 1e-6
"""Tolerance of chosen codes: a wrong one is off by at least one, as a part of 2048."""


def _attention(trial: Trial) -> Iterator[Comparison]:
    """Two tokens a row, then one: a frame's first inner steps."""
    cos, sin = trial.noise(2, BLOCK, HEAD_DIM // 2, dtype=torch.float32)
    gains = (trial.gain(HEAD_DIM), trial.gain(HEAD_DIM))
    heads = short.Heads(HEADS, KV_HEADS, HEAD_DIM, cos, sin, *gains, 1e-6, HEAD_DIM**-0.5)
    pages, wide = (
        Pages(*(torch.zeros((ROWS, KV_HEADS, BLOCK, HEAD_DIM), dtype=dtype, device=trial.device) for _ in range(2)))
        for dtype in (trial.dtype, torch.float32)
    )
    start = 0
    for count in (2, 1):
        qkv = trial.noise(ROWS * count, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        expected = short.short_attention_ref(qkv.to(torch.float32), heads, wide, start, count)
        yield short.short_attention(qkv, heads, pages, start, count), expected, trial.tolerance
        yield pages.k, wide.k, trial.tolerance
        start += count


def _choice(trial: Trial) -> Iterator[Comparison]:
    """One row chooses the likeliest code, one draws from the 50 likeliest, one from those that make up four fifths."""
    device = trial.device
    packet = torch.zeros((ROWS, PACKET), dtype=torch.int32, device=device)
    packet[:, POSITION], packet[:, SEED_LOW] = 64, torch.arange(ROWS, device=device)
    packet[1:, TEMPERATURE] = _bits(0.9)
    packet[:, TOP_P] = _bits(1.0)
    packet[1, TOP_K], packet[2, TOP_P] = 50, _bits(0.8)
    logits, table = trial.noise(ROWS, CODES, dtype=torch.float32), trial.noise(CODES, WIDTH)
    found: list[tuple[Tensor, Tensor]] = []
    for choose in (code_choice.choose_code, code_choice.choose_code_ref):
        codes = torch.zeros(ROWS, dtype=torch.int64, device=device)
        residual = torch.zeros((ROWS, WIDTH), device=device)
        slots, said = torch.arange(ROWS, device=device), torch.arange(ROWS * CODES, device=device) % 3 == 0
        penalty = torch.full((ROWS,), 1.3, device=device)
        rules = code_choice.FirstRules(said.view(ROWS, CODES), slots, penalty, CODES - 1024, CODES - 9, 32)
        choose(logits, packet, codes, rules, residual, table)
        found.append((codes.to(torch.float32), residual))
    for got, expected in zip(*found, strict=True):
        yield got, expected, _EXACT


def _rings(trial: Trial) -> Iterator[Comparison]:
    """A ring that wraps around, several frames at a time."""
    window, most, heads = 72, 8, 16
    size = (STREAMS, window - 1 + most, heads, 64)
    narrow = trial.dtype is torch.bfloat16
    dtype, close = (_HALF, _HALF_TOLERANCE) if narrow else (trial.dtype, trial.tolerance)
    keys, values = torch.zeros((2, *size), dtype=dtype, device=trial.device)
    rings = ring.Ring(keys, values, window)
    wide = ring.Ring(keys.to(torch.float32, copy=True), values.to(torch.float32, copy=True), window)
    rows, begin = torch.arange(STREAMS, device=trial.device).flip(0), torch.zeros(STREAMS, device=trial.device).long()
    for frames in (*[most] * 9, 1, most):
        angles = trial.noise(STREAMS, frames, 32, dtype=torch.float32)
        moment = ring.Moment(rows, begin, angles.cos(), angles.sin())
        qkv = trial.noise(STREAMS, frames, 3 * heads * 64, dtype=dtype)
        expected = ring.ring_attention_ref(qkv.to(torch.float32), heads, wide, moment)
        yield ring.ring_attention(qkv, heads, rings, moment), expected, close
        begin = begin + frames


def _convolution(trial: Trial) -> Iterator[Comparison]:
    """New inputs joined to kept ones, and the convolution over them, its windows read in place and laid out."""
    steps, kept = causal.MANY_STEPS // STREAMS + 1, 6 * DILATION
    rows, close = torch.arange(STREAMS, device=trial.device).flip(0), _HALF_TOLERANCE
    curve = (trial.gain(CHANNELS), trial.gain(CHANNELS))
    tail, bias = trial.noise(STREAMS, kept, CHANNELS, dtype=_HALF), trial.noise(CHANNELS, dtype=_HALF)
    kernel = trial.noise(CHANNELS, CHANNELS, 7, dtype=torch.float32).mul_(0.03).to(_HALF)
    for length in (steps, steps // 2, kept // 2):
        x = trial.noise(STREAMS, length, CHANNELS, dtype=_HALF)
        wide, other = causal.snake_ref(x.to(torch.float32), *curve), tail.to(torch.float32)
        expected = causal.extend_ref(wide, other, rows)
        joined = causal.extend(x, tail, rows, curve)
        yield joined, expected, close
        yield tail, other, close
        form = causal.conv_weight(kernel)
        made = causal.causal_conv(joined, form, bias, DILATION, curve)
        plain = causal.causal_conv_ref(joined.float(), kernel.float(), bias.float(), DILATION)
        yield made, causal.snake_ref(plain, *curve), close
        point = kernel[:, :, 0].contiguous()
        expected = x.float() + torch.nn.functional.linear(made.float(), point.float(), bias.float())
        yield causal.point_add(made, point, bias, x), expected, close


def _bits(value: float) -> int:
    return int(torch.tensor(value).view(torch.int32))


CHECKS: Mapping[str, Callable[[Trial], Iterator[Comparison]]] = {
    "talker, attention": _attention,
    "talker, choice of codes": _choice,
    "codec, attention": _rings,
    "codec, convolution": _convolution,
}

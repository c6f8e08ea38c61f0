"""Checks every kernel of the voice against its reference: two clauses of different length in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from voxlane.engine.kernels.conv import depthwise
from voxlane.engine.kernels.linear import fused
from voxlane.engine.kernels.selfcheck import Comparison
from voxlane.engine.kernels.vocoder import segments, vocoder
from voxlane.engine.runners.cuda.trial import TOLERANCES, Trial

ROWS, CHANNELS, HEADS = 40, 192, 2
FIRST_ROWS = 29  # of the longer clause
HOP, TIMES, RATE = 256, 4, 24_000

_CLOSE = TOLERANCES[torch.float32]

_SOUND = 1e-3
"""Tolerance of waves: a sine of a large angle has fewer digits, and a hundred of them are summed."""

_ROUNDED = 5e-3
"""Tolerance of products with factors rounded to 10 bits."""


def _bounds(trial: Trial) -> tuple[Tensor, Tensor]:
    """Return where each row's own clause begins and ends."""
    first = torch.arange(ROWS, device=trial.device) < FIRST_ROWS
    start, stop = torch.where(first, 0, FIRST_ROWS), torch.where(first, FIRST_ROWS, ROWS)
    return start.to(torch.int32), stop.to(torch.int32)


def _numbers(trial: Trial, *size: int) -> Tensor:
    return trial.noise(*size, dtype=torch.float32)


def _products(trial: Trial) -> Iterator[Comparison]:
    x, weight = _numbers(trial, ROWS, CHANNELS), _numbers(trial, 64, CHANNELS)
    bias, residual = _numbers(trial, 64), _numbers(trial, ROWS, 64)
    for gelu, added, rounded in ((True, None, False), (False, residual, True)):
        got = fused.fused_linear(x, weight, bias, gelu=gelu, residual=added, rounded=rounded)
        expected = fused.fused_linear_ref(x, weight, bias, gelu=gelu, residual=added)
        yield got, expected, _ROUNDED if rounded else _CLOSE


def _convolution(trial: Trial) -> Iterator[Comparison]:
    gains = (_numbers(trial, CHANNELS), trial.gain(CHANNELS), _numbers(trial, CHANNELS))
    layer = depthwise.Depthwise(_numbers(trial, CHANNELS, 7), 1, *gains, 1e-5)
    x, (start, stop) = _numbers(trial, ROWS, CHANNELS), _bounds(trial)
    expected = depthwise.depthwise_norm_ref(x, start, stop, layer)
    yield depthwise.depthwise_norm(x, start, stop, layer), expected, _CLOSE


def _attention(trial: Trial) -> Iterator[Comparison]:
    qkv, (start, stop) = _numbers(trial, ROWS, 3 * CHANNELS), _bounds(trial)
    expected = segments.segment_attention_ref(qkv, HEADS, start, stop)
    yield segments.segment_attention(qkv, HEADS, start, stop), expected, _CLOSE


def _sound(trial: Trial) -> Iterator[Comparison]:
    start, stop = _bounds(trial)
    places = vocoder.Places(torch.ones(ROWS, device=trial.device), start, stop)
    pitch_hz = 100.0 + 50.0 * trial.gain(ROWS)
    share = ((torch.arange(HOP, device=trial.device) + 0.5) / HOP - 0.5) % 1.0
    hertz = vocoder.pitch_curve_ref(pitch_hz, places, share)
    yield vocoder.pitch_curve(pitch_hz, places, share), hertz, _SOUND
    turns = torch.cumsum(hertz.flatten(), 0, dtype=torch.float64)
    window = trial.gain(TIMES * HOP)
    source = vocoder.pulse_windows_ref(hertz, turns, places, window, RATE)
    yield vocoder.pulse_windows(hertz, turns, places, window, RATE), source, _SOUND
    yield vocoder.overlap(source, places, window, HOP), vocoder.overlap_ref(source, places, window, HOP), _SOUND
    bins = TIMES * HOP // 2 + 1
    waves, table = torch.fft.rfft(source), torch.fft.rfft(_numbers(trial, 5, TIMES * HOP))
    spectra = _numbers(trial, ROWS, 5 * bins)
    rows = torch.arange(ROWS, device=trial.device, dtype=torch.int32) % 5
    expected = vocoder.mix_ref(waves, spectra, table, rows)
    yield torch.view_as_real(vocoder.mix(waves, spectra, table, rows)), torch.view_as_real(expected), _SOUND


CHECKS: Mapping[str, Callable[[Trial], Iterator[Comparison]]] = {
    "voice, products": _products,
    "voice, convolution": _convolution,
    "voice, attention": _attention,
    "voice, sound": _sound,
}

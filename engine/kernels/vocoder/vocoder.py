"""The steps around the transforms of a pulse-and-noise vocoder, for sequences of frames on a line.

Frames of several sequences lie end to end; each frame has the start and end of its sequence, and whether it is a frame
or a gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_HZ = 40.0  # lower is not voiced
TOP_HZ = 11_000.0  # of the highest harmonic
LOUDEST = 7.0  # in the exponent of an amplitude
NEAR_ZERO = 2e-3  # where a quotient of sines is taken for its limit
LEAST_WEIGHT = 1e-11


@dataclass(frozen=True, slots=True)
class Places:
    """The sequences of a line's frames, [frames] each; start and stop are int32 frames."""

    inside: Tensor  # ones and zeros, float32
    start: Tensor  # of the frame's own sequence
    stop: Tensor  # exclusive


def pitch_curve_ref(pitch_hz: Tensor, places: Places, share: Tensor) -> Tensor:
    """Return the pitch of every sample, [frames, hop]."""
    index, half = torch.arange(len(pitch_hz), device=pitch_hz.device), len(share) // 2
    before = pitch_hz[torch.maximum(index - 1, places.start)][:, None]
    after = pitch_hz[torch.minimum(index + 1, places.stop - 1)][:, None]
    here, rest = pitch_hz[:, None], 1.0 - share
    early = before * rest[:half] + here * share[:half]
    late = here * rest[half:] + after * share[half:]
    return torch.cat((early, late), dim=1).clamp(min=LEAST_HZ)


def pulse_windows_ref(hertz: Tensor, turns: Tensor, places: Places, window: Tensor, rate: int) -> Tensor:
    """Return each frame's window of its sequence's pulse train, [frames, len(window)]."""
    frames, hop = hertz.shape
    begin = places.start.to(torch.int64)[:, None] * hop
    cycles = (turns.view(frames, hop) - turns[(begin - 1).clamp(min=0)]) * (1.0 / rate)
    angle = (torch.frac(cycles) * (2 * math.pi)).to(torch.float32)
    harmonics = torch.floor(TOP_HZ / hertz) + 0.5
    divisor = torch.sin(angle * 0.5) * 2.0
    near = divisor.abs() <= NEAR_ZERO
    train = torch.where(near, harmonics, torch.sin(harmonics * angle) / torch.where(near, 1.0, divisor)) - 0.5
    train = torch.where(hertz > LEAST_HZ, train, 0.0)
    index = torch.arange(frames, device=hertz.device)[:, None] * hop - begin
    most = places.stop.to(torch.int64)[:, None] * hop - begin - 1
    within = (index + torch.arange(len(window), device=hertz.device) - len(window) // 2).abs()
    within = torch.minimum(torch.where(within > most, 2 * most - within, within).clamp(min=0), most)
    return train.flatten()[begin + within] * window


def mix_ref(source: Tensor, spectra: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return the spectrum of pulses, noise and the rest together, [frames, bins] complex."""
    harmonic, turn, breath, free, phase = spectra.view(len(spectra), 5, -1).unbind(1)
    voiced = source * torch.polar(_amplitude(harmonic), torch.tanh(turn) * math.pi)
    mixed = voiced + table[rows] * _amplitude(breath) + torch.polar(_amplitude(free), phase)
    torch.view_as_real(mixed)[:, :: mixed.shape[1] - 1, 1] = 0.0
    return mixed


def overlap_ref(windows: Tensor, places: Places, window: Tensor, hop: int) -> Tensor:
    """Return the sum of overlapping windows over that of their squares, [frames, hop]."""
    frames, times = len(windows), len(window) // hop
    inside, power = places.inside[:, None], (window * window).view(times, hop)
    hops = (windows * (window * inside)).view(frames, times, hop)
    total, weight = hops[:, 0].clone(), inside * power[0]
    for late in range(1, times):
        total[late:] += hops[:-late, late]
        weight[late:] += inside[:-late] * power[late]
    return total / weight.clamp(min=LEAST_WEIGHT)


def pitch_curve(pitch_hz: Tensor, places: Places, share: Tensor) -> Tensor:
    """Return the pitch of every sample [frames, hop], at least LEAST_HZ: straight lines from frame's middle to middle.

    `share` [hop], an even number, is the later frame's part at each sample: from a half up to one, then from zero on.
    """
    _check(pitch_hz, places)
    if pitch_hz.is_cuda:
        from voxlane.engine.kernels.vocoder import vocoder_triton  # here: without a device there may be no Triton

        return vocoder_triton.pitch_curve(pitch_hz, places, share)
    return pitch_curve_ref(pitch_hz, places, share)


def pulse_windows(hertz: Tensor, turns: Tensor, places: Places, window: Tensor, rate: int) -> Tensor:
    """Return each frame's window of its sequence's pulse train, [frames, len(window)].

    The train has every harmonic below TOP_HZ at unit amplitude, and nothing where `hertz` [frames, hop] is LEAST_HZ;
    `turns` [frames · hop] is the running sum of hertz in float64. A sequence is mirrored at its ends. The result of
    a frame that is not inside has no meaning.
    """
    _check(hertz, places)
    if turns.shape != (hertz.numel(),) or turns.dtype is not torch.float64:
        raise ValueError(f"turns {tuple(turns.shape)} {turns.dtype} are not the sum of hertz {tuple(hertz.shape)}")
    if hertz.is_cuda:
        from voxlane.engine.kernels.vocoder import vocoder_triton

        return vocoder_triton.pulse_windows(hertz, turns, places, window, rate)
    return pulse_windows_ref(hertz, turns, places, window, rate)


def mix(source: Tensor, spectra: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return source · e^(a + iπ·tanh(b)) + table[rows] · e^c + e^(d + ie), a to e being the fifths of `spectra`.

    `source` [frames, bins] and `table` [any, bins] are complex; `rows` [frames] is int32 and within the table. The
    imaginary parts of the first and last bin are left out: libraries differ in how they treat them.
    """
    frames, bins = source.shape
    if spectra.shape != (frames, 5 * bins) or table.shape[1:] != (bins,) or rows.shape != (frames,):
        raise ValueError(f"spectra {tuple(spectra.shape)}, table {tuple(table.shape)}: not for {frames} × {bins}")
    if not all(part.is_contiguous() for part in (source, spectra, table)):
        raise ValueError("source, spectra and table must be contiguous")
    if source.is_cuda:
        from voxlane.engine.kernels.vocoder import vocoder_triton

        return vocoder_triton.mix(source, spectra, table, rows)
    return mix_ref(source, spectra, table, rows)


def overlap(windows: Tensor, places: Places, window: Tensor, hop: int) -> Tensor:
    """Return windows [frames, len(window)] weighted, added up one hop apart, and divided by the weights' squares.

    Frames that are not inside are left out. The sum at hop h holds the frames h and before: [frames, hop].
    """
    _check(windows, places)
    if len(window) % hop or windows.shape[1] != len(window):
        raise ValueError(f"windows {tuple(windows.shape)} of {len(window)} do not overlap in hops of {hop}")
    if windows.is_cuda:
        from voxlane.engine.kernels.vocoder import vocoder_triton

        return vocoder_triton.overlap(windows, places, window, hop)
    return overlap_ref(windows, places, window, hop)


def _amplitude(logarithm: Tensor) -> Tensor:
    return torch.exp(logarithm.clamp(max=LOUDEST))


def _check(rows: Tensor, places: Places) -> None:
    kinds = (places.inside.dtype, places.start.dtype, places.stop.dtype)
    if kinds != (torch.float32, torch.int32, torch.int32) or not rows.is_contiguous():
        raise ValueError(f"places of {kinds}: float32, int32, int32 are needed, and rows that are contiguous")
    if any(part.shape != rows.shape[:1] for part in (places.inside, places.start, places.stop)):
        raise ValueError(f"places do not match {len(rows)} frames")

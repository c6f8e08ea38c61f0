"""A vocoder's steps around its transforms in Triton, one program per frame: in torch they are seventy small passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from voxlane.engine.kernels.vocoder.vocoder import Places

# As in kernels/vocoder/vocoder.py; a kernel reads no other globals.
_LEAST_HZ = tl.constexpr(40.0)
_TOP_HZ = tl.constexpr(11_000.0)
_LOUDEST = tl.constexpr(7.0)
_NEAR_ZERO = tl.constexpr(2e-3)
_LEAST_WEIGHT = tl.constexpr(1e-11)
_PI = tl.constexpr(3.141592653589793)


@triton.jit
def _pitch_curve_kernel(pitch, start, stop, share, out, HOP: tl.constexpr, BLOCK: tl.constexpr):
    frame = tl.program_id(0)
    sample = tl.arange(0, BLOCK)
    real = sample < HOP
    early = sample < HOP // 2
    first = tl.maximum(frame - 1, tl.load(start + frame))
    last = tl.minimum(frame + 1, tl.load(stop + frame) - 1)
    here = tl.load(pitch + frame)
    older = tl.where(early, tl.load(pitch + first), here)
    newer = tl.where(early, here, tl.load(pitch + last))
    part = tl.load(share + sample, mask=real, other=0.0)
    hertz = older * (1.0 - part) + newer * part
    tl.store(out + frame.to(tl.int64) * HOP + sample, tl.maximum(hertz, _LEAST_HZ), mask=real)


@triton.jit
def _pulse_windows_kernel(
    hertz, turns, start, stop, window, out,
    RATE: tl.constexpr, HOP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(0)
    begin = tl.load(start + frame) * HOP
    most = tl.load(stop + frame) * HOP - begin - 1
    zero = tl.load(turns + tl.maximum(begin - 1, 0))
    sample = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = sample < SIZE
    within = tl.abs(frame * HOP - begin + sample - SIZE // 2)
    within = tl.where(within > most, 2 * most - within, within)
    within = tl.minimum(tl.maximum(within, 0), most)
    place = begin + within
    f = tl.load(hertz + place, mask=real, other=_LEAST_HZ)
    cycles = (tl.load(turns + place, mask=real, other=0.0) - zero) / RATE
    angle = ((cycles - tl.floor(cycles)) * (2 * _PI)).to(tl.float32)
    harmonics = tl.floor(tl.div_rn(tl.full([BLOCK], _TOP_HZ, tl.float32), f)) + 0.5
    divisor = tl.sin(angle * 0.5) * 2.0
    near = tl.abs(divisor) <= _NEAR_ZERO
    train = tl.where(near, harmonics, tl.sin(harmonics * angle) / tl.where(near, 1.0, divisor)) - 0.5
    train = tl.where(f > _LEAST_HZ, train, 0.0)
    shape = tl.load(window + sample, mask=real, other=0.0)
    tl.store(out + frame.to(tl.int64) * SIZE + sample, train * shape, mask=real)


@triton.jit
def _mix_kernel(source, spectra, table, rows, out, BINS: tl.constexpr, BLOCK: tl.constexpr):
    frame = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < BINS
    curve = spectra + frame * (5 * BINS) + column
    harmonic = tl.exp(tl.minimum(tl.load(curve, mask=real, other=0.0), _LOUDEST))
    turn = tl.load(curve + BINS, mask=real, other=0.0)
    breath = tl.exp(tl.minimum(tl.load(curve + 2 * BINS, mask=real, other=0.0), _LOUDEST))
    free = tl.exp(tl.minimum(tl.load(curve + 3 * BINS, mask=real, other=0.0), _LOUDEST))
    phase = tl.load(curve + 4 * BINS, mask=real, other=0.0)
    angle = _PI * (1.0 - 2.0 / (tl.exp(2.0 * turn) + 1.0))  # π·tanh
    x, y = harmonic * tl.cos(angle), harmonic * tl.sin(angle)
    wave = source + 2 * (frame * BINS + column)
    a, b = tl.load(wave, mask=real, other=0.0), tl.load(wave + 1, mask=real, other=0.0)
    noise = table + 2 * (tl.load(rows + frame).to(tl.int64) * BINS + column)
    c, d = tl.load(noise, mask=real, other=0.0), tl.load(noise + 1, mask=real, other=0.0)
    cosine = a * x - b * y + c * breath + free * tl.cos(phase)
    sine = a * y + b * x + d * breath + free * tl.sin(phase)
    sine = tl.where((column == 0) | (column == BINS - 1), 0.0, sine)
    place = out + 2 * (frame * BINS + column)
    tl.store(place, cosine, mask=real)
    tl.store(place + 1, sine, mask=real)


@triton.jit
def _overlap_kernel(windows, inside, window, out, HOP: tl.constexpr, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    frame = tl.program_id(0).to(tl.int64)
    sample = tl.arange(0, BLOCK)
    real = sample < HOP
    total = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([BLOCK], tl.float32)
    for late in tl.static_range(TIMES):
        source = frame - late + 0 * sample  # the same for all samples
        here = real & (source >= 0)
        counts = tl.load(inside + source, mask=here, other=0.0) > 0
        shape = tl.load(window + late * HOP + sample, mask=real, other=0.0)
        # Frames that are not inside may hold anything, and zero times infinity is not zero.
        value = tl.load(windows + (source * TIMES + late) * HOP + sample, mask=counts, other=0.0)
        total += value * shape
        weight += tl.where(counts, shape * shape, 0.0)
    tl.store(out + frame * HOP + sample, total / tl.maximum(weight, _LEAST_WEIGHT), mask=real)


def pitch_curve(pitch_hz: Tensor, places: Places, share: Tensor) -> Tensor:
    """Return the pitch of every sample, [frames, hop]."""
    frames, hop = len(pitch_hz), len(share)
    out = torch.empty((frames, hop), device=pitch_hz.device)
    block = triton.next_power_of_2(hop)
    _pitch_curve_kernel[(frames,)](pitch_hz, places.start, places.stop, share, out, HOP=hop, BLOCK=block, num_warps=4)
    return out


def pulse_windows(hertz: Tensor, turns: Tensor, places: Places, window: Tensor, rate: int) -> Tensor:
    """Return each frame's window of its sequence's pulse train, [frames, len(window)]."""
    (frames, hop), size = hertz.shape, len(window)
    out = torch.empty((frames, size), device=hertz.device)
    _pulse_windows_kernel[(frames, triton.cdiv(size, 512))](
        *(hertz, turns, places.start, places.stop, window, out), RATE=rate, HOP=hop, SIZE=size, BLOCK=512, num_warps=4
    )
    return out


def mix(source: Tensor, spectra: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Return the spectrum of pulses, noise and the rest together, [frames, bins] complex."""
    frames, bins = source.shape
    out = torch.empty_like(source)
    parts = (torch.view_as_real(source), spectra, torch.view_as_real(table), rows, torch.view_as_real(out))
    _mix_kernel[(frames, triton.cdiv(bins, 256))](*parts, BINS=bins, BLOCK=256, num_warps=4)
    return out


def overlap(windows: Tensor, places: Places, window: Tensor, hop: int) -> Tensor:
    """Return the sum of overlapping windows over that of their squares, [frames, hop]."""
    out = torch.empty((len(windows), hop), device=windows.device)
    block, times = triton.next_power_of_2(hop), len(window) // hop
    _overlap_kernel[(len(windows),)](
        windows, places.inside, window, out, HOP=hop, TIMES=times, BLOCK=block, num_warps=4
    )
    return out

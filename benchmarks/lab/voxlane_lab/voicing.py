"""Where a voice is heard in a channel of a recording that others made. Pure.

The level of 10 ms frames decides, against a floor of steady noise that is found in the channel itself. Sound of the
other channel that leaks into this one at a lower level is left out: an echo in the person's channel is not the person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from voxlane_lab.values import USER_RATE, Interval
from voxlane_lab.waveform import Floats

FRAME_S = 0.01
FRAME = round(FRAME_S * USER_RATE)

DIGITAL_SILENCE_DB = -85.0
"""Below this a frame holds nothing, not even a line's noise."""

LOWEST_VOICE_DB = -65.0
"""A voice that is never louder than this is not heard."""

STEADY_FRAMES, STEADY_DB = 20, 6.0
"""Noise is what stays within so many dB for 200 ms."""

QUIETER_SHARE = 0.2
"""A channel of which a larger share is quieter than its steady sound has no steady noise."""

FLOOR_REACH_S = 5.0
"""The floor at a moment is found this far around it."""

LEAST_RANGE_DB = 12.0
"""A voice is at least so much louder than the noise behind it."""

BEGIN_DB, GO_ON_DB = 8.0, 4.5
"""A voice begins so much above the floor, and lasts while it is so much above it."""

BEGIN_BELOW_DB, GO_ON_BELOW_DB = 38.0, 44.0
"""And it begins no lower than this below the loud parts of the channel, and lasts no lower than that."""

JOINED_S, SHORTEST_S = 0.15, 0.05
"""Shorter gaps are part of a voice; shorter sounds are clicks."""

LEAK_LAGS_S = (-0.02, 0.5)
"""A leak is so much later than its source."""

LEAK_WINDOW = USER_RATE // 10
LEAK_ALIKE = 0.6
LEAK_SHARE = 0.1
"""A leak is there if this share of the source's windows of 100 ms is found again in the other channel, lower."""

LEAK_MARGIN_DB = 6.0
"""A frame must be so much louder than the leak in it to be the channel's own."""

Levels = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Leak:
    """How one channel is heard in the other."""

    gain: float
    lag: int  # in samples


def levels_of(track: Floats) -> Levels:
    """Return the level of each frame in dB of full scale. A constant offset does not count."""
    whole = len(track) // FRAME * FRAME
    frames = np.asarray(track[:whole], np.float64).reshape(-1, FRAME)
    power = frames.var(axis=1)
    return np.asarray(10 * np.log10(np.maximum(power, 1e-12)))


def voiced_parts(track: Floats, other: Floats) -> tuple[Interval, ...]:
    """Return where a voice of its own is heard in a channel at USER_RATE, beside the other channel."""
    levels = levels_of(track)
    leak = find_leak(other, track)
    own = np.ones(len(levels), np.bool_) if leak is None else ~_is_leak(levels, levels_of(other), leak)
    return _intervals(_voiced_frames(levels, own))


def find_leak(source: Floats, track: Floats) -> Leak | None:
    """Return how `source` is heard in `track` at a lower level; None: it is not."""
    source, track = source - source.mean(), track - track.mean()
    lag = _common_lag(source, track)
    first, second = _windows(_shifted(source, lag)), _windows(track)
    own = (first**2).sum(axis=1)
    theirs = (second**2).sum(axis=1)
    loud = own > LEAK_WINDOW * 10 ** (LOWEST_VOICE_DB / 10)
    if not loud.any():
        return None
    product = (first * second).sum(axis=1)[loud]
    gains = np.abs(product) / own[loud]
    alike = np.abs(product) / np.sqrt(own[loud] * np.maximum(theirs[loud], 1e-12))
    found = (alike > LEAK_ALIKE) & (gains < 0.5)
    return Leak(float(np.median(gains[found])), lag) if found.mean() >= LEAK_SHARE else None


def _common_lag(source: Floats, track: Floats) -> int:
    """Return by how many samples `track` is most probably later than `source`."""
    size = 2 * USER_RATE
    spectrum: Any = 0
    for at in range(0, len(source), size // 2):
        first, second = (np.fft.rfft(one[at : at + size // 2], size) for one in (source, track))
        cross = second * np.conj(first)
        spectrum = spectrum + cross / np.sqrt(np.abs(cross) + 1e-9)
    alike = np.abs(np.fft.irfft(spectrum, size))
    low, high = (round(lag * USER_RATE) for lag in LEAK_LAGS_S)
    lags = np.arange(low, high + 1)
    return int(lags[np.argmax(alike[lags])])


def _windows(track: Floats) -> Levels:
    return np.asarray(track[: len(track) // LEAK_WINDOW * LEAK_WINDOW], np.float64).reshape(-1, LEAK_WINDOW)


def _shifted(track: Floats, lag: int) -> Floats:
    """Return the track `lag` samples later, of the same length."""
    moved = np.zeros_like(track)
    if lag >= 0:
        moved[lag:] = track[: len(track) - lag]
    else:
        moved[:lag] = track[-lag:]
    return moved


def _is_leak(levels: Levels, source: Levels, leak: Leak) -> Flags:
    """Return which frames are no louder than what leaks into them. A leak may ring on for three frames."""
    frames = round(leak.lag / FRAME)
    padded = np.pad(source, (max(0, frames) + 3, 1), constant_values=-120.0)[: len(source) + 4]
    around = sliding_window_view(padded, 5).max(axis=1) if frames >= 0 else source
    around = np.pad(around, (0, max(0, len(levels) - len(around))), constant_values=-120.0)[: len(levels)]
    return np.asarray(levels < around + 20 * np.log10(max(leak.gain, 1e-6)) + LEAK_MARGIN_DB)


def _voiced_frames(levels: Levels, own: Flags) -> Flags:
    """Return which of its own frames are a voice's: begun above one threshold, and lasting above a lower one."""
    sounding = levels[levels > DIGITAL_SILENCE_DB]
    if not len(sounding) or _is_noise_alone(sounding):
        return np.zeros(len(levels), np.bool_)
    floor = _floor(levels)
    above = levels[own & (levels > floor + BEGIN_DB)]
    loud = float(np.percentile(above, 95)) if len(above) else LOWEST_VOICE_DB
    begins = levels > np.maximum(np.maximum(floor + BEGIN_DB, loud - BEGIN_BELOW_DB), LOWEST_VOICE_DB)
    lasts = levels > np.maximum(np.maximum(floor + GO_ON_DB, loud - GO_ON_BELOW_DB), LOWEST_VOICE_DB)
    voiced = np.zeros(len(levels), np.bool_)
    for first, end in _stretches(lasts & own):
        voiced[first:end] = begins[first:end].any()
    return voiced


def _is_noise_alone(sounding: Levels) -> bool:
    low, high = np.percentile(sounding, (10, 98))
    return bool(high - low < STEADY_DB)


def _floor(levels: Levels) -> Levels:
    """Return the level of the steady noise around each frame; -120 where a channel has none."""
    nothing = np.full(len(levels), -120.0)
    if len(levels) < STEADY_FRAMES:
        return nothing
    windows = sliding_window_view(levels, STEADY_FRAMES)
    steady = (np.ptp(windows, axis=1) < STEADY_DB) & (windows.min(axis=1) > DIGITAL_SILENCE_DB)
    loud = float(np.percentile(levels[levels > DIGITAL_SILENCE_DB], 95))
    steady &= windows.mean(axis=1) < loud - LEAST_RANGE_DB
    if not steady.any():
        return nothing
    places, means = np.flatnonzero(steady), windows.mean(axis=1)[steady]
    everywhere = float(np.percentile(means, 10))
    if np.mean(levels < everywhere - STEADY_DB) > QUIETER_SHARE:
        return nothing  # a steady sound of the voice itself, as a long "sh"
    reach, floor = round(FLOOR_REACH_S / FRAME_S), nothing
    for at in range(0, len(levels), reach // 5):
        near = means[np.abs(places - at) <= reach]
        floor[at : at + reach // 5] = np.percentile(near, 10) if len(near) else everywhere
    return floor


def _stretches(flags: Flags) -> list[Interval]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _intervals(voiced: Flags) -> tuple[Interval, ...]:
    """Return the stretches in samples: short gaps closed, clicks left out."""
    joined: list[Interval] = []
    for first, end in _stretches(voiced):
        if joined and first - joined[-1][1] < JOINED_S / FRAME_S:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple((first * FRAME, end * FRAME) for first, end in joined if end - first >= SHORTEST_S / FRAME_S)

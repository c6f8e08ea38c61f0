"""Speech in a fifth of its bytes: the spectrum of frames of 20 ms, rounded more coarsely where it is loud. Pure.

What is unpacked is the same on every machine, to the bit: calls that are compared were sent the same sound. All sums
are of whole numbers below 2**53, which float64 holds exactly in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.values import Pcm

HOP = 320
EDGES = (0, 8, 16, 24, 32, 40, 46, 53, 61, 70, 81, 93, 107, 123, 142, 163, 188, 216, 248, 285, HOP)
"""The bands that have a step of their own, in lines of 25 Hz."""

COARSE, BY_BAND = 0.4, 0.6
"""A step is this share of a level, which is the band's and the frame's together."""

SCALE_BITS = 18  # 14 of the waves and 4 of the steps
_PLACES = np.arange(2 * HOP)[None, :] + 0.5
_WAVES = np.rint(
    2**14
    * np.sqrt(2 / HOP)
    * np.sin(np.pi / (2 * HOP) * _PLACES)
    * np.cos(np.pi / HOP * (_PLACES + HOP / 2) * (np.arange(HOP)[:, None] + 0.5))
)
_STEPS = np.rint(2.0 ** (np.arange(41) / 2) * 2**4)

Bytes = NDArray[np.int8]


def packed(pcm: Pcm) -> tuple[Bytes, Bytes]:
    """Return the scales, (frames, bands), and the rounded lines, (frames, HOP)."""
    count = -(-len(pcm) // HOP) + 1
    sound = np.zeros((count + 1) * HOP)
    sound[HOP : HOP + len(pcm)] = pcm
    hops = sound.reshape(-1, HOP)
    lines = np.hstack([hops[:-1], hops[1:]]) @ _WAVES.T / 2**14
    bands = np.sqrt(np.add.reduceat(lines**2, EDGES[:-1], axis=1) / np.diff(EDGES))
    whole = np.sqrt((lines**2).mean(axis=1, keepdims=True))
    steps = COARSE * bands**BY_BAND * whole ** (1 - BY_BAND)
    scales = np.clip(np.rint(2 * np.log2(np.maximum(steps, 1))), 0, len(_STEPS) - 1).astype(np.int8)
    return scales, np.clip(np.rint(lines * 2**4 / _steps(scales)), -127, 127).astype(np.int8)


def unpacked(scales: Bytes, lines: Bytes, samples: int) -> Pcm:
    """Return so many samples."""
    frames = (lines * _steps(scales)) @ _WAVES
    hops = np.zeros((len(frames) + 1, HOP))
    hops[:-1] += frames[:, :HOP]
    hops[1:] += frames[:, HOP:]
    sound = np.rint(hops.ravel()[HOP : HOP + samples] / 2**SCALE_BITS)
    pcm: Pcm = np.clip(sound, -32768, 32767).astype(np.int16)
    return pcm


def _steps(scales: Bytes) -> NDArray[Any]:
    return np.repeat(_STEPS[scales], np.diff(EDGES), axis=1)

"""How a voice ends: the probability, from the sound alone, that a sentence is finished where a voice stops.

A finished sentence falls in pitch, fades and drags its last syllable; a voice that stops to think does not. A small
network looks at the last 1.5 s: loudness, twenty bands of the spectrum, pitch and voicing of every 10 ms, all relative
to the clip's own. Words are not its business. The network was trained by `benchmarks/training/prosody_tune.py`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.silero import in_columns

RATE = 16_000
FRAMES = 150
"""Frames of 10 ms that the network sees."""

HOP, WINDOW = 160, 512
AFTER_S = 0.1
"""Sound after the voice's end that belongs to the clip."""

CLIP_SAMPLES = (FRAMES - 1) * HOP + WINDOW

_BANDS, _LOWEST_HZ, _HIGHEST_HZ = 20, 80.0, 3600.0  # within a telephone's band
_FLOOR_DB = -50.0  # relative to the clip's loud frames
_LAGS = (RATE // 400, RATE // 65)
"""Samples from one period of a voice to the next: from 400 Hz to 65 Hz."""

FEATURES = _BANDS + 4

_WEIGHTS = Path(__file__).with_name("prosody.npz")


@cache
def _tables() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the window, the filter bank [257, bands], and what turns power into likeness at each lag [513, lags]."""
    window = np.hanning(WINDOW).astype(np.float32)
    hz = np.fft.rfftfreq(WINDOW, 1 / RATE)
    mel = 2595 * np.log10(1 + hz / 700)
    edges = np.linspace(2595 * np.log10(1 + _LOWEST_HZ / 700), 2595 * np.log10(1 + _HIGHEST_HZ / 700), _BANDS + 2)
    up = (mel[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - mel[:, None]) / (edges[2:] - edges[1:-1])
    bank = np.clip(np.minimum(up, down), 0, None)
    lags = np.arange(*_LAGS)
    cosines = 2 * np.cos(np.pi * np.outer(np.arange(WINDOW + 1), lags) / WINDOW)
    cosines[[0, -1]] /= 2
    cosines *= _correction(window)
    bank /= np.maximum(bank.sum(axis=0), 1e-9)
    return window, bank.astype(np.float32), cosines.astype(np.float32)


def _correction(window: NDArray[np.float32]) -> NDArray[np.floating]:
    """Return a factor for each lag: a window makes long lags look less alike."""
    own = np.fft.irfft(np.abs(np.fft.rfft(window, 2 * WINDOW)) ** 2)
    corrected: NDArray[np.floating] = own[0] / own[np.arange(*_LAGS)]
    return corrected


def features(clip: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [FRAMES, FEATURES] of a clip that ends AFTER_S behind its voice; a shorter clip has silence before it."""
    window, bank, cosines = _tables()
    padded = np.zeros(CLIP_SAMPLES, np.float32)
    kept = clip[-CLIP_SAMPLES:]
    padded[CLIP_SAMPLES - len(kept) :] = kept
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * window
    spectra = np.fft.rfft(frames, 2 * WINDOW)
    power = spectra.real**2 + spectra.imag**2
    bands = power[:, ::2] @ bank
    total = power[:, 8:232].sum(axis=1)  # 60 Hz to 3.6 kHz
    loud = np.sort(total)[-40:].mean() + 1e-9
    level = np.clip(10 * np.log10(total / loud + 1e-9), _FLOOR_DB, None)
    spectrum = np.clip(10 * np.log10(bands / (np.sort(bands.max(axis=1))[-40:].mean() + 1e-9) + 1e-9), _FLOOR_DB, None)
    # The autocorrelation at the lags of a voice, as a share of the energy: a product is quicker than a transform.
    energy = power[:, 0] + power[:, -1] + 2 * power[:, 1:-1].sum(axis=1)
    alike = power @ cosines / (energy[:, None] + 1e-6)
    best = alike.argmax(axis=1)
    voicing = np.clip(alike[np.arange(FRAMES), best], 0, 1)
    # The shortest lag that is nearly as good: a multiple of the period is as good as the period.
    near = (alike >= 0.92 * voicing[:, None]).argmax(axis=1)
    semitones = 12 * np.log2(RATE / (near + _LAGS[0]))
    voiced = (voicing > 0.6) & (level > -25)
    middle = np.median(semitones[voiced]) if voiced.any() else 0.0
    pitch = np.where(voiced, np.clip(semitones - middle, -12, 12), 0.0)
    columns = [1 + spectrum / 50, 1 + level[:, None] / 50, voicing[:, None], pitch[:, None] / 6, voiced[:, None]]
    return np.concatenate(columns, axis=1).astype(np.float32)


@cache
def _network() -> dict[str, NDArray[np.float32]]:
    with np.load(_WEIGHTS) as kept:
        return {name: kept[name].astype(np.float32) for name in kept.files}


def finished(clip: NDArray[np.float32]) -> float:
    """Return the probability that a sentence ends with this clip; see `features` for what to pass."""
    network = _network()
    layer = features(clip)
    for number in range(3):
        layer = _convolve(layer, network[f"weight{number}"], network[f"bias{number}"])
    hidden = np.maximum(network["weight3"] @ layer.ravel() + network["bias3"], 0)
    value = float(network["weight4"] @ hidden + network["bias4"])
    return float(1 / (1 + np.exp(-value)))


def _convolve(
    layer: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return a convolution over time with stride 2 and zeros at both ends, then ReLU; `weight` is [out, width, in]."""
    width = weight.shape[1]
    padded = np.pad(layer, ((width // 2, width // 2), (0, 0)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)[::2]  # [time, in, width]
    rows = np.ascontiguousarray(patches.transpose(0, 2, 1)).reshape(len(patches), -1)
    convolved: NDArray[np.float32] = np.maximum(rows @ weight.reshape(len(weight), -1).T + bias, 0)
    return convolved


class PackedTables(ctypes.Structure):
    """The tables and weights as prosody.h has them; it keeps its arrays alive."""

    _fields_ = [
        ("window", ctypes.c_void_p),
        ("bank", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("weights", ctypes.c_void_p * 4),
        ("biases", ctypes.c_void_p * 4),
        ("verdict", ctypes.c_void_p),
        ("verdict_bias", ctypes.c_double),
    ]
    arrays: tuple[NDArray[np.float32], ...]


def packed() -> PackedTables:
    """Return what prosody.cpp needs."""
    network = _network()
    window, bank, _ = _tables()
    tables = [np.ascontiguousarray(table, np.float32) for table in (window, bank, _correction(window))]
    weights = [
        in_columns(network[f"weight{number}"].reshape(len(network[f"bias{number}"]), -1).T) for number in range(4)
    ]
    biases = [np.ascontiguousarray(network[f"bias{number}"]) for number in range(4)]
    verdict = np.ascontiguousarray(network["weight4"])
    made = PackedTables(
        *(table.ctypes.data for table in tables),
        (ctypes.c_void_p * 4)(*(array.ctypes.data for array in weights)),
        (ctypes.c_void_p * 4)(*(array.ctypes.data for array in biases)),
        verdict.ctypes.data,
        float(network["bias4"]),
    )
    made.arrays = (*tables, *weights, *biases, verdict)
    return made

"""The speech that lies in the package, which is all that the shipped scenarios need; `make_shipped` makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.sounds.packing import HOP, packed, unpacked
from voxlane_lab.values import Interval, Pcm

FILE = Path(__file__).parent / "speech.npz"
SHORTEST_SILENCE = HOP  # samples of pure silence that stay pure; shorter ones are part of the speech


@dataclass(frozen=True, slots=True)
class PackedClip:
    """Speech, small. Where it is voiced and where nothing sounds is kept to the sample."""

    scales: NDArray[np.int8]
    lines: NDArray[np.int8]
    samples: int
    voiced: tuple[Interval, ...]
    silent: tuple[Interval, ...]

    @classmethod
    def of(cls, pcm: Pcm, voiced: tuple[Interval, ...]) -> Self:
        """Pack a clip."""
        return cls(*packed(pcm), len(pcm), voiced, _silences(pcm))

    def sound(self) -> Pcm:
        """Return the samples."""
        pcm = unpacked(self.scales, self.lines, self.samples)
        for first, end in self.silent:
            pcm[first:end] = 0
        return pcm


@cache
def shipped() -> Mapping[str, PackedClip]:
    """Return the clips of the package, by the name that the corpus gives their file."""
    return read(FILE) if FILE.is_file() else {}


def read(path: Path) -> dict[str, PackedClip]:
    """Return the clips of a file."""
    with np.load(path, allow_pickle=False) as kept:
        names, samples, voiced, silent = (kept[name] for name in ("names", "samples", "voiced", "silent"))
        scales, lines = np.cumsum(kept["scales"], axis=0, dtype=np.int8), kept["lines"]
    ends = np.cumsum(-(-samples // HOP) + 1)
    return {
        str(name): PackedClip(
            scales[first:end], lines[first:end], int(count), _intervals(voiced, number), _intervals(silent, number)
        )
        for number, (name, count, first, end) in enumerate(zip(names, samples, [0, *ends[:-1]], ends, strict=True))
    }


def write(path: Path, clips: Mapping[str, PackedClip]) -> None:
    """Write clips into a file; neighbouring scales differ little, so their differences are kept."""
    every = list(clips.values())
    scales = np.concatenate([one.scales for one in every])
    np.savez_compressed(
        path,
        allow_pickle=False,
        names=np.array(list(clips)),
        samples=np.array([one.samples for one in every], np.int64),
        voiced=_rows([one.voiced for one in every]),
        silent=_rows([one.silent for one in every]),
        scales=np.diff(scales, axis=0, prepend=np.zeros((1, scales.shape[1]), np.int8)),
        lines=np.concatenate([one.lines for one in every]),
    )


def _rows(intervals: Sequence[tuple[Interval, ...]]) -> NDArray[np.int32]:
    """Return a row for each interval: the clip's number, the first sample, the end."""
    rows = [(number, *one) for number, some in enumerate(intervals) for one in some]
    return np.array(rows, np.int32).reshape(-1, 3)


def _intervals(rows: NDArray[Any], number: int) -> tuple[Interval, ...]:
    return tuple((int(first), int(end)) for clip, first, end in rows if clip == number)


def _silences(pcm: Pcm) -> tuple[Interval, ...]:
    """Return where samples are zero for long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], pcm == 0, [False])).astype(np.int8))).reshape(-1, 2)
    return tuple((int(first), int(end)) for first, end in edges if end - first >= SHORTEST_SILENCE)

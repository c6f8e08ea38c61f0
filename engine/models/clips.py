"""Lays several clips out together: their samples end to end, their encoder rows in pages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.engine.kernels.attention.pages import Layout

ENCODER_BLOCK = 64
"""States in a block of the encoder's own pages on CUDA: one tile of its kernel, which is compiled for a block size."""


@dataclass(frozen=True, slots=True)
class ClipPlaces:
    """The slots of several clips' rows in the encoder's own pages, as numbers on the host."""

    positions: NDArray[np.int32]  # [rows]
    slots: NDArray[np.int32]  # [rows]
    starts: NDArray[np.int32]  # [clips + 1]
    lengths: NDArray[np.int32]  # [clips]
    tables: NDArray[np.int32]  # [clips, blocks of the longest]
    blocks: int  # of all clips

    @classmethod
    def of(cls, lengths: Sequence[int], block: int) -> ClipPlaces:
        """Lay clips out one after the other, each from the start of a block of `block` rows."""
        counts = [-(-length // block) for length in lengths]
        firsts = list(itertools.accumulate(counts, initial=0))
        tables = np.zeros((len(lengths), max(counts)), dtype=np.int32)
        for row, (first, last) in enumerate(itertools.pairwise(firsts)):
            tables[row, : last - first] = np.arange(first, last)
        ramps = [np.arange(length, dtype=np.int32) for length in lengths]
        return cls(
            positions=np.concatenate(ramps),
            slots=np.concatenate([ramp + np.int32(first * block) for ramp, first in zip(ramps, firsts, strict=False)]),
            starts=np.array([0, *itertools.accumulate(lengths)], dtype=np.int32),
            lengths=np.array(lengths, dtype=np.int32),
            tables=tables,
            blocks=firsts[-1],
        )

    def layout(self, device: torch.device) -> Layout:
        """Return the layout on a device."""
        host = (self.positions, self.slots, self.starts, self.lengths, self.tables)
        positions, slots, starts, lengths, tables = (torch.from_numpy(part).to(device) for part in host)
        return Layout(positions, slots, starts, lengths, tables, max_query=int(self.lengths.max()))


@dataclass(frozen=True, slots=True)
class JoinedSound:
    """How the samples of several clips lie end to end, so that the stem takes all of them at once."""

    starts: list[int]  # of each clip
    samples: int  # in all, with silence between clips
    numbers: dict[str, NDArray[np.int32]]  # the stem's other input; stem_parts names it and its largest shapes

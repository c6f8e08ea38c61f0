"""How clips of sound lie together: their samples in one run, their encoder's rows in pages. It knows numbers only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.engine.kernels.attention.pages import Layout

ENCODER_BLOCK = 64
"""States in a block of the encoder's own pages on CUDA: a tile of its kernel, which is compiled for a size of block."""


@dataclass(frozen=True, slots=True)
class ClipPlaces:
    """Where the rows of several clips lie in pages of the encoder's own, as numbers on the host."""

    positions: NDArray[np.int32]  # [rows]
    slots: NDArray[np.int32]  # [rows]
    starts: NDArray[np.int32]  # [clips + 1]
    lengths: NDArray[np.int32]  # [clips]
    tables: NDArray[np.int32]  # [clips, blocks of the longest]
    blocks: int  # of all clips

    @classmethod
    def of(cls, lengths: Sequence[int], block: int) -> ClipPlaces:
        """Lay clips out one after the other, each from the start of a block of `block` rows on."""
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
        """Return them on a device."""
        host = (self.positions, self.slots, self.starts, self.lengths, self.tables)
        positions, slots, starts, lengths, tables = (torch.from_numpy(part).to(device) for part in host)
        return Layout(positions, slots, starts, lengths, tables, max_query=int(self.lengths.max()))


@dataclass(frozen=True, slots=True)
class JoinedSound:
    """How the samples of several clips lie in one run, so that the stem can take all of them at once."""

    starts: list[int]  # of each clip
    samples: int  # of the whole, silence where there is no clip
    numbers: dict[str, NDArray[np.int32]]  # what the stem wants to know of it, as stem_parts names and bounds it

"""The noise in hibari's breath and consonants: all clauses share one stretch, and the seed sets where it begins.

Drawing new numbers for each clause takes 8 ms for 7 s of speech, on one core of a server: longer than a GPU takes for
the clause. That clauses share their noise is not audible: each shapes it differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 2048
"""Frames of noise, 25.6 s. A longer clause repeats it."""

BINS = 601

_STEP = 587
"""Rows between the noise of one seed and the next, 7.3 s: successive clauses, whose seeds count up, share little. It
has no factor in common with ROWS, so that ROWS seeds sound different."""


def first_row(seed: int) -> int:
    """Return where a clause's noise begins."""
    return seed * _STEP % ROWS


def noise_table() -> NDArray[np.complex64]:
    """Return the noise, [BINS, ROWS]: independent normal numbers, the same on every machine."""
    numbers = np.random.default_rng(0).standard_normal((ROWS, 2 * BINS), dtype=np.float32)
    return np.ascontiguousarray(numbers.view(np.complex64).T)


@dataclass(frozen=True, slots=True)
class ClauseNoise:
    """Returns a clause's noise; hibari.dsp uses it as a random generator."""

    table: NDArray[np.complex64]
    row: int

    def standard_normal(self, shape: tuple[int, int], dtype: Any) -> NDArray[np.float32]:
        """Return [BINS, 2 · frames] numbers, the parts of complex ones side by side."""
        assert shape[0] == BINS
        assert dtype is np.float32
        rows = np.arange(self.row, self.row + shape[1] // 2)
        return np.take(self.table, rows, axis=1, mode="wrap").view(np.float32)

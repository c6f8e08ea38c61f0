"""Word times from a decoder's cross-attention.

The weights of heads that follow the sound are normalised, smoothed and averaged. The cheapest monotone path through
them (dynamic time warping) gives the encoder state at which each token begins. This is the method of OpenAI's Whisper,
for any encoder–decoder; the model names the heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.api import Word

MEDIAN_WIDTH = 7
"""Encoder states that the weights are smoothed over: 140 ms for Whisper, 168 ms for Moonshine."""


def starts_word(piece: bytes) -> bool:
    """Return whether a word begins with this piece: it begins with a space, or its script has none between words.

    Those scripts are Chinese and Japanese, U+3040 to U+9FFF, and Thai and Lao, U+0E00 to U+0EFF; there a character
    counts as a word.
    """
    if piece[:1] == b"\xe0":
        return b"\xb8" <= piece[1:2] <= b"\xbb"
    return piece[:1] == b" " or b"\xe3\x81" <= piece[:2] < b"\xea"


def token_states(weights: Tensor) -> list[int]:
    """Return the encoder state at which each row of `weights` [heads, rows, states] begins.

    Row i holds the attention while token i was chosen. The last row belongs to the end token, so its state is where
    the last token ends.
    """
    deviation, mean = torch.std_mean(weights, dim=1, keepdim=True, correction=0)
    even = (weights - mean) / deviation.clamp(min=1e-9)
    matrix = _median(even, MEDIAN_WIDTH).mean(dim=0)
    first: dict[int, int] = {}
    for row, state in cheapest_path(-matrix.double().numpy()):
        first.setdefault(row, state)
    return list(first.values())


def word_times(pieces: Sequence[bytes], states: Sequence[int], seconds_per_state: float) -> list[Word]:
    """Return the words of tokens: `pieces` are their bytes, `states` where each begins and the last one ends.

    A word is a piece that starts one and all pieces up to the next such piece.
    """
    words: list[Word] = []
    begins = [index for index, piece in enumerate(pieces) if index == 0 or starts_word(piece)]
    for first, last in itertools.pairwise([*begins, len(pieces)]):
        text = b"".join(pieces[first:last]).decode("utf-8", errors="replace").strip()
        if text:
            words.append(Word(text, states[first] * seconds_per_state, states[last] * seconds_per_state))
    return words


def _median(x: Tensor, width: int) -> Tensor:
    """Return `x` with each value replaced by the median of its `width` neighbours along the last dimension."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = F.pad(x, (half, half), mode="reflect")
    return padded.unfold(-1, width, 1).median(dim=-1).values


def cheapest_path(cost: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the cells of the cheapest path from the first to the last corner of `cost` [rows, columns].

    A path goes right, down, or both at once. Sums are computed one diagonal at a time.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for diagonal in range(rows + columns - 1):
        row = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        column = diagonal - row
        before = np.minimum(total[row, column], np.minimum(total[row, column + 1], total[row + 1, column]))
        total[row + 1, column + 1] = cost[row, column] + before
    total[0, 0] = np.inf  # now a border, like the rest of the first row and column
    path = [(rows - 1, columns - 1)]
    while path[-1] != (0, 0):
        r, c = path[-1]
        before_both, before_down, before_right = total[r, c], total[r, c + 1], total[r + 1, c]
        if before_both < before_down and before_both < before_right:
            path.append((r - 1, c - 1))
        elif before_down < before_right:
            path.append((r - 1, c))
        else:
            path.append((r, c - 1))
    return path[::-1]

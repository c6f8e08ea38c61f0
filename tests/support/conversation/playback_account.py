"""Check that a recording of a loudspeaker holds every sample of a reply once and in order, with silence in between.

A browser's sound comes in blocks. Each block is explained as the next samples of the reply or as silence. At a change
between the two, the jump fades out within milliseconds instead of clicking, and no sample is lost. All explanations are
followed in parallel: during a pause in the reply, a silent block may be the reply or a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 128
SOFTENING_S = 0.0007
INAUDIBLE = 1 / 65536
"""A fading jump is dropped below this."""

EXACT = 1e-6
"""A thirtieth of a 16-bit step. The resampler here and the page's differ by a tenth of it."""

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Place:
    """Possible positions in the reply after some blocks, all within one pause of it."""

    first: int
    last: int
    correction: float = 0.0  # the rest of the last jump
    flowing: bool | None = False  # whether the last block was full of the reply; None: unknown


class Account:
    """Explains recordings that begin before the reply, at the first sample of a block."""

    def __init__(self, reply: Samples, rate: int) -> None:
        self._length = len(reply)
        self._reply = reply
        self._decay = exp(-1 / (SOFTENING_S * rate)) ** np.arange(BLOCK + 1)

    def explain(self, recording: Samples) -> int:
        """Return how many samples of silence lie between the reply's; raise AssertionError if nothing fits."""
        places = [_Place(0, 0)]
        before = 0.0  # the sample before the block
        for start in range(0, len(recording) - BLOCK + 1, BLOCK):
            block = recording[start : start + BLOCK]
            steps = [step for place in places for step in self._steps(place, block, before)]
            reached = max(place.last for place in places)
            assert steps, f"recorded sample {start} does not follow sample {reached} of {self._length}"
            places, before = list(set(steps)), float(block[-1])
        reached = max(place.last for place in places)
        assert reached == self._length, f"only {reached} of {self._length} samples were played"
        return _span(recording) - _span(self._reply)

    def _steps(self, place: _Place, block: Samples, before: float) -> list[_Place]:
        if np.abs(block).max() <= EXACT:
            ahead = self._reply[place.last : min(place.last + BLOCK, self._length)]
            silence = np.append(np.flatnonzero(np.abs(ahead) > EXACT), len(ahead))[0]
            return [_Place(place.first, place.last + int(silence), 0.0, None)]
        flows = (True, False) if place.flowing is None else (place.flowing,)
        usual = [
            step
            for flowing in flows
            for step in (*self._full(place, flowing, block, before), *self._none(place, flowing, block, before))
        ]
        return usual or [step for flowing in flows for step in self._partial(place, flowing, block, before)]

    def _full(self, place: _Place, flowing: bool, block: Samples, before: float) -> list[_Place]:
        if place.first + BLOCK > self._length:
            return []
        windows = np.lib.stride_tricks.sliding_window_view(self._reply[place.first : place.last + BLOCK], BLOCK)
        jumps = np.full(len(windows), place.correction) if flowing else before - windows[:, 0]
        fading = self._fading(jumps[:, None], BLOCK)  # (positions, BLOCK + 1)
        fitting = np.flatnonzero(np.abs(windows + fading[:, :-1] - block).max(axis=1) <= EXACT)
        ends = [(place.first + int(one) + BLOCK, float(fading[one, -1])) for one in fitting]
        return [_Place(end, end, left, True) for end, left in ends]

    def _none(self, place: _Place, flowing: bool, block: Samples, before: float) -> list[_Place]:
        fading = self._fading(before if flowing else place.correction, BLOCK)
        fits = np.abs(fading[:-1] - block).max() <= EXACT
        return [_Place(place.first, place.last, float(fading[-1]), False)] if fits else []

    def _partial(self, place: _Place, flowing: bool, block: Samples, before: float) -> list[_Place]:
        """Explain a block in which the sound ran out: the silence begins with the last sample, fading out."""
        found = []
        for filled in range(1, min(BLOCK, self._length - place.last + 1)):
            tail = self._fading(block[filled - 1], BLOCK - filled)
            if np.abs(tail[:-1] - block[filled:]).max() > EXACT:
                continue
            sound = self._reply[place.last : place.last + filled]
            fading = self._fading(place.correction if flowing else before - sound[0], filled)
            if np.abs(sound + fading[:-1] - block[:filled]).max() <= EXACT:
                found.append(_Place(place.last + filled, place.last + filled, float(tail[-1]), False))
        return found

    def _fading(self, jump: float | NDArray[np.floating[Any]], length: int) -> NDArray[np.floating[Any]]:
        """Return a fading jump, followed by its rest."""
        left = jump * self._decay[: length + 1]
        left[..., 1:][np.abs(left[..., 1:]) < INAUDIBLE] = 0.0
        return left


def _span(sound: Samples) -> int:
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return int(loud[-1] - loud[0])

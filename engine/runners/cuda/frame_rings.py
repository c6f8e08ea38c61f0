"""The last frames of every stream on the device, by state row: a step writes them there, and the codec reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RING = 32
"""Frames of a stream that stay on the device: more than one codec call decodes."""


class FrameRings:
    """A ring of frames for each slot; the last slot is for rows that pad a step."""

    def __init__(self, slots: int, groups: int, device: torch.device) -> None:
        self.slots, self.nobody = slots, slots
        self._device = device
        self.frames = torch.zeros((slots + 1, RING, groups), dtype=torch.int64, device=device)

    def tell(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> None:
        """Write frames, from number `first` on, where a step would have written them; queued, not awaited."""
        assert len(frames) <= RING, "more frames than a stream's ring holds"
        if frames:
            places = self._queued(torch.arange(first, first + len(frames)) % RING)
            self.frames[slot].index_copy_(0, places, self._queued(torch.tensor(frames)))

    def tell_last(self, slot: int, frames: Sequence[Sequence[int]]) -> None:
        """Write the newest of all frames of a stream."""
        self.tell(slot, max(len(frames) - RING, 0), frames[-RING:])

    def _queued(self, numbers: Tensor) -> Tensor:
        # A copy from pinned memory does not wait for queued work.
        return numbers if self._device.type == "cpu" else numbers.pin_memory().to(self._device, non_blocking=True)

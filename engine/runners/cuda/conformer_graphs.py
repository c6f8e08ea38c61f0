"""LFM2-Audio's encoder as CUDA graphs: one for each of some lengths, for one clip at a time.

Launched kernel by kernel, its 17 layers are some 800 launches, which keep a host busy longer than the device. A clip is
padded to the next length; the graph knows on the device where the clip ends. Longer clips are launched kernel by
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxlane.engine.models.lfm2_audio.conformer import Conformer
from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured

STATES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of a clip: 12.5 are a second."""


class ConformerGraphs:
    """The encoder over one clip after the other."""

    def __init__(self, encoder: Conformer, device: torch.device) -> None:
        self._encoder = encoder
        self._row_frames = 1 << encoder.config.halvings
        self._sizes = [size for size in STATES if size <= encoder.config.max_states]
        self._mel = torch.zeros((max(self._sizes, default=0) * self._row_frames, encoder.config.bins), device=device)
        self._frames = torch.zeros((), dtype=torch.int64, device=device)
        # Kept: the encoder replaces it when a longer clip comes, and graphs go on reading this one.
        self._distances = encoder.prepare(max(self._sizes, default=1))
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self, pool: Any) -> None:
        """Capture every length on the current stream, in a pool of memory; nothing may be running."""
        for size in reversed(self._sizes):
            kept: list[Tensor] = []
            graph = captured(partial(self._step, size, kept), pool)
            self._graphs[size] = graph, kept[-1]

    def encode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Queue clips; return the rows of spectrograms [frames, bins], complete when that is done."""
        return [self._encode(mel) for mel in mels]

    def _encode(self, mel: Tensor) -> Tensor:
        states = -(-len(mel) // self._row_frames)
        size = next((size for size in self._sizes if states <= size), None)
        if size is None:
            return self._encoder.encode([mel])[0]
        place = self._mel[: size * self._row_frames]
        # From pinned memory, which torch keeps until it was read: from other memory the host would wait for the copy.
        place[: len(mel)].copy_(mel.pin_memory() if place.is_cuda else mel, non_blocking=True)
        place[len(mel) :].zero_()
        self._frames.fill_(len(mel))
        if size in self._graphs:
            graph, rows = self._graphs[size]
            graph.replay()
        else:
            kept: list[Tensor] = []
            self._step(size, kept)
            rows = kept[-1]
        return rows[:states].clone()  # the next graph overwrites them

    def _step(self, size: int, kept: list[Tensor]) -> None:
        with torch.inference_mode():
            kept.append(self._encoder.encode_padded(self._mel[: size * self._row_frames], self._frames))

"""Samples from frames of codes as CUDA graphs: one for each number of streams and of frames of each.

A replay reads the frames where the model's step has written them. The codec's state stays on the device, one row for
each slot. codec_streams.py decides which frames are decoded, and when.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxlane.engine.models.streaming_codec import CodecState, StreamingCodec
from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured

Progress = Callable[[float], None]
Shape = tuple[int, int]  # streams, and frames of each

CHUNKS = (8, 4, 2, 1)
"""Frames that a call decodes of each stream; other numbers take several calls."""

STREAMS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
MOST_FRAMES = 128
"""Most streams of a call, and frames of all of them: more take several calls. The last convolutions need 0.4 MB a
frame, several times over."""


@dataclass(frozen=True, slots=True)
class FramePiece:
    """Frames of a stream that are to be decoded."""

    slot: int  # the row of its state
    source: int  # the row of frames they are in
    first: int  # the number of the first frame
    count: int


class CodecGraphs:
    """The calls of a decoder over some of its streams."""

    def __init__(self, codec: StreamingCodec, state: CodecState, frames: Tensor, *, max_rows: int) -> None:
        """Use `state`, and `frames` [slots, ring, groups] where frame n is at n % ring; the last rows are padding.

        Codes that are no sound, an end or a failed choice, are decoded as some sound, which is never sent.
        """
        assert state.max_frames >= CHUNKS[0], "a call must fit into the state's ring"
        self._codec, self._state, self._frames = codec, state, frames
        self._nobody = len(frames) - 1
        self._device = frames.device
        most = next((size for size in STREAMS if size >= max_rows), STREAMS[-1])
        self._shapes = [
            (size, count) for count in CHUNKS for size in STREAMS if size <= most and size * count <= MOST_FRAMES
        ]
        # By stream: its row of the state, its row of frames, the number of its first frame.
        self._told = torch.full((3, STREAMS[-1]), self._nobody, device=self._device)
        self._steps = torch.arange(CHUNKS[0], device=self._device)
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self, pool: Any, progress: Progress = lambda done: None) -> None:
        """Capture every call on the current stream, in a pool of memory; nothing may be running."""
        shapes = sorted(self._shapes, key=lambda shape: shape[0] * shape[1], reverse=True)  # largest first
        for number, shape in enumerate(shapes):
            kept: list[Tensor] = []
            graph = captured(partial(self._call, shape, kept), pool)
            self._graphs[shape] = graph, kept[-1]
            progress((number + 1) / len(shapes))

    def launch(self, wanted: Sequence[FramePiece]) -> list[list[Tensor]]:
        """Queue the decoding of one piece per stream; return each piece's samples, complete when the calls are done."""
        found: list[list[Tensor]] = [[] for _ in wanted]
        parts = [list(_cut(piece)) for piece in wanted]
        for some in itertools.zip_longest(*parts):  # a stream's second part continues its first
            for count in CHUNKS:
                members = [index for index, part in enumerate(some) if part is not None and part.count == count]
                for shape, own in self._calls(members, count):
                    for index, samples in zip(own, self._run(shape, [some[index] for index in own]), strict=True):
                        found[index].append(samples)
        return found

    def _calls(self, members: list[int], count: int) -> Iterator[tuple[Shape, list[int]]]:
        """Divide streams into calls."""
        sizes = [size for size, frames in self._shapes if frames == count]
        for begin in range(0, len(members), sizes[-1]):
            some = members[begin : begin + sizes[-1]]
            yield (next(size for size in sizes if size >= len(some)), count), some

    def _run(self, shape: Shape, pieces: Sequence[FramePiece]) -> Tensor:
        """Queue one call; return its samples [streams, samples] in pinned memory of their own."""
        pinned = self._device.type == "cuda"
        told = torch.full((3, shape[0]), self._nobody, pin_memory=pinned)
        told[:, : len(pieces)] = torch.tensor([(piece.slot, piece.source, piece.first) for piece in pieces]).T
        with torch.inference_mode():
            self._told[:, : shape[0]].copy_(told, non_blocking=True)
            if shape in self._graphs:
                graph, samples = self._graphs[shape]
                graph.replay()
            else:
                kept: list[Tensor] = []
                self._call(shape, kept)
                samples = kept[0]
            there = torch.empty((len(pieces), samples.shape[1]), pin_memory=pinned)
            return there.copy_(samples[: len(pieces)], non_blocking=True)

    def _call(self, shape: Shape, kept: list[Tensor]) -> None:
        """Decode, and copy the samples: the graph writes them to the same place each time."""
        streams, count = shape
        with torch.inference_mode():
            slots, sources, first = self._told[:, :streams]
            numbers = first[:, None] + self._steps[:count]
            codes = self._frames[sources[:, None], numbers % self._frames.shape[1]]
            kept.append(self._codec.decode(codes.clamp(0, self._codec.codebook_size - 1), self._state, slots))


def _cut(piece: FramePiece) -> Iterator[FramePiece]:
    first, left = piece.first, piece.count
    while left:
        count = next(chunk for chunk in CHUNKS if chunk <= left)
        yield FramePiece(piece.slot, piece.source, first, count)
        first, left = first + count, left - count

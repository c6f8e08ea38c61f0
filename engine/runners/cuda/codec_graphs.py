"""Samples from frames of codes as CUDA graphs: one for each number of streams and of frames of each.

A replay reads the frames where the talker's step has put them. What a stream's sound depends on beside its frames stays
on the device, a row of state for each slot. It knows slots, codes and samples; whose they are, and when they are due,
is talker.py's business.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from voxlane.engine.models.qwen3_tts.codec import CodecState, Qwen3TTSCodec
from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured

Progress = Callable[[float], None]
Shape = tuple[int, int]  # streams, and frames of each

CHUNKS = (8, 4, 2, 1)
"""Frames that a call decodes of each stream; other numbers are made up of these."""

STREAMS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
MOST_FRAMES = 128
"""Streams of a call, and frames of all of them together: more come in several calls. The last convolutions take 0.4 MB
a frame, several times over."""


@dataclass(frozen=True, slots=True)
class FramePiece:
    """Frames of a stream that are to be decoded."""

    slot: int  # of its state
    source: int  # the row of frames they are in,
    first: int  # the number of the first,
    count: int


class CodecGraphs:
    """The calls of a decoder over some of its streams."""

    def __init__(self, codec: Qwen3TTSCodec, state: CodecState, frames: Tensor, *, max_rows: int) -> None:
        """Take `state`, and `frames` [slots, ring, groups] where frame n is at n % ring; the last of both is nobody's.

        Codes that are no sound, the end of speech or a choice that failed, are decoded as some sound: nobody listens.
        """
        assert state.max_frames >= CHUNKS[0], "a call must fit into the state's ring"
        self._codec, self._state, self._frames = codec, state, frames
        self._nobody = len(frames) - 1
        self._device = frames.device
        most = next((size for size in STREAMS if size >= max_rows), STREAMS[-1])
        self._shapes = [
            (size, count) for count in CHUNKS for size in STREAMS if size <= most and size * count <= MOST_FRAMES
        ]
        # Where each stream's state is, where its frames are, the number of the first of them.
        self._told = torch.full((3, STREAMS[-1]), self._nobody, device=self._device)
        self._steps = torch.arange(CHUNKS[0], device=self._device)
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def capture(self, pool: Any, progress: Progress = lambda done: None) -> None:
        """Capture every call on the current stream, in a pool of memory; nothing may be running."""
        shapes = sorted(self._shapes, key=lambda shape: shape[0] * shape[1], reverse=True)  # others fit its memory
        for number, shape in enumerate(shapes):
            kept: list[Tensor] = []
            graph = captured(partial(self._call, shape, kept), pool)
            self._graphs[shape] = graph, kept[-1]
            progress((number + 1) / len(shapes))

    def launch(self, wanted: Sequence[FramePiece]) -> list[list[Tensor]]:
        """Queue the decoding of frames, of every stream once; return each one's samples, there when it is done."""
        found: list[list[Tensor]] = [[] for _ in wanted]
        parts = [list(_cut(piece)) for piece in wanted]
        for some in itertools.zip_longest(*parts):  # a stream's second part goes on from its first
            for count in CHUNKS:
                members = [index for index, part in enumerate(some) if part is not None and part.count == count]
                for shape, own in self._calls(members, count):
                    for index, samples in zip(own, self._run(shape, [some[index] for index in own]), strict=True):
                        found[index].append(samples)
        return found

    def _calls(self, members: list[int], count: int) -> Iterator[tuple[Shape, list[int]]]:
        """Share streams out, as many to a call as it takes."""
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
        """Decode; the samples are kept, since a graph writes them to the same place again."""
        streams, count = shape
        with torch.inference_mode():
            slots, sources, first = self._told[:, :streams]
            numbers = first[:, None] + self._steps[:count]
            codes = self._frames[sources[:, None], numbers % self._frames.shape[1]]
            kept.append(self._codec.decode(codes.clamp(0, self._codec.config.codebook_size - 1), self._state, slots))


def _cut(piece: FramePiece) -> Iterator[FramePiece]:
    first, left = piece.first, piece.count
    while left:
        count = next(chunk for chunk in CHUNKS if chunk <= left)
        yield FramePiece(piece.slot, piece.source, first, count)
        first, left = first + count, left - count

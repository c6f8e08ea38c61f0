"""Encodes clips into the cache with CUDA graphs, from the samples on: one graph for each number of states.

All that varies is numbers in a packet, and samples end to end: a graph serves every batch of clips of at most its
number of states.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.clips import ENCODER_BLOCK, ClipPlaces, JoinedSound
from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer, layout_of

Progress = Callable[[float], None]

CLIPS = (1, 2, 4, 8)
"""Clips in one graph of an encoder that pads every clip to one length."""

CLIP_ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
"""States of clips of any length in one graph: 3 s of Moonshine are 124, and the longest clip is 2664."""

MOST_CLIPS = 16
"""Clips of any length in one graph: the fewest rows that attention is compiled for."""


SECONDS_ROWS = 32
"""States per clip in a graph of inline clips, where every clip may waste a second of convolutions at its end."""


class EncoderModel(Protocol):
    """What these graphs need of an architecture."""

    max_samples: int
    fixed_window: bool
    inline: bool  # its convolutions see whole seconds

    def states(self, samples: int) -> int:
        """Return how many encoder states a clip becomes."""

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips of so many samples are joined."""

    def pieces(self, states: Sequence[int]) -> list[int]:
        """Return how many rows attend to each other in the encoder, for clips of so many states."""

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the most samples that so many clips of so many states together are joined to."""

    def stem_parts(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        """Return the largest shapes of the numbers that `stem_joined` takes beside the sound."""

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the input of the encoder's layers, from joined clips."""

    def encode_rows(self, rows: Tensor, layout: Layout, blocks: int, block: int) -> Tensor:
        """Run the encoder's layers over the rows of clips."""

    def write_cross(self, states: Tensor, slots: Tensor, pages: list[Pages]) -> None:
        """Write the keys and values of encoder states to their slots."""


class ClipGraphs:
    """Encodes clips and writes them to their slots in the cache."""

    def __init__(self, model: EncoderModel, cache: KVCache, device: torch.device) -> None:
        self._model = model
        self._pages = cache.pages
        self._block_tokens = cache.block_tokens
        self._device = device
        longest = model.states(model.max_samples)
        pieces = model.pieces([longest])
        self._pieces = len(pieces)  # of the longest clip
        self._width = -(-max(pieces) // ENCODER_BLOCK)
        fixed = [(count * longest, count) for count in CLIPS]
        # (states, clips)
        self._sizes = fixed if model.fixed_window else [(rows, _most_clips(rows, model)) for rows in CLIP_ROWS]
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        # One graph runs at a time: all share the memory of the largest.
        memory = PacketMemory.of(self._shapes(*self._sizes[-1]), device)
        self._packets = {size: StagingBuffer(self._shapes(*size), memory) for size in self._sizes}
        samples = model.joined_samples(*self._sizes[-1])
        self._sound = torch.zeros(samples, device=device)
        self._arrivals = new_arrivals(device)
        self._host_sound = torch.zeros(samples, pin_memory=device.type == "cuda")

    def launch(self, clips: Sequence[NDArray[np.float32]], tables: Sequence[Sequence[int]]) -> None:
        """Queue clips; `tables` are the blocks of each. More than the largest graph takes wait for each other."""
        for number, group in enumerate(self._groups([self._model.states(len(clip)) for clip in clips])):
            if number and self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()  # the group before is in the same memory
            self._launch(clips[group], tables[group])

    def capture(self, progress: Progress = lambda done: None) -> None:
        """Capture every size; nothing may be running."""
        pool = torch.cuda.graph_pool_handle()
        for number, size in enumerate(self._sizes[::-1]):
            self._packets[size].clear("slots", "cross_slots", "owners")
            self._graphs[size] = captured(partial(self._step, *size), pool)
            progress((number + 1) / len(self._sizes))

    def _groups(self, states: Sequence[int]) -> list[slice]:
        """Divide clips into groups that fit the largest graph."""
        most_rows, most_clips = self._sizes[-1]
        groups: list[slice] = []
        first = rows = 0
        for clip, count in enumerate(states):
            if rows + count > most_rows or clip - first == most_clips:
                groups.append(slice(first, clip))
                first, rows = clip, 0
            rows += count
        return [*groups, slice(first, len(states))]

    def _launch(self, clips: Sequence[NDArray[np.float32]], tables: Sequence[Sequence[int]]) -> None:
        lengths = [self._model.states(len(clip)) for clip in clips]
        size = next(size for size in self._sizes if size[0] >= sum(lengths) and size[1] >= len(clips))
        joined = self._model.join([len(clip) for clip in clips])
        host = self._host_sound.numpy()
        for clip, (start, stop) in zip(clips, itertools.pairwise([*joined.starts, joined.samples]), strict=True):
            host[start : start + len(clip)] = clip
            host[start + len(clip) : stop] = 0.0
        self._sound[: joined.samples].copy_(self._host_sound[: joined.samples], non_blocking=True)
        places = ClipPlaces.of(self._model.pieces(lengths), ENCODER_BLOCK)
        self._write(self._packets[size], places, self._slots(lengths, tables), joined)
        graph = self._graphs.get(size)
        if graph is None:
            self._step(*size)
        else:
            graph.replay()

    def _slots(self, lengths: Sequence[int], tables: Sequence[Sequence[int]]) -> NDArray[np.int32]:
        """Return the slots of the clips' states, one clip's after the other's."""
        offsets = np.arange(self._block_tokens, dtype=np.int32)
        slots = [np.array(blocks, dtype=np.int32)[:, None] * self._block_tokens + offsets for blocks in tables]
        return np.concatenate([one.ravel()[:length] for one, length in zip(slots, lengths, strict=True)])

    def _write(self, packet: StagingBuffer, places: ClipPlaces, slots: NDArray[np.int32], joined: JoinedSound) -> None:
        packet.clear("slots", "cross_slots", "owners")
        host, rows, pieces = packet.host, len(places.positions), len(places.lengths)
        host["positions"][:rows], host["slots"][:rows] = places.positions, places.slots
        host["cross_slots"][:rows] = slots
        host["starts"][: pieces + 1], host["starts"][pieces + 1 :] = places.starts, rows
        host["lengths"][:pieces] = places.lengths
        host["tables"][:pieces, : places.tables.shape[1]] = places.tables
        for name, numbers in joined.numbers.items():
            host[name][: len(numbers)] = numbers

    def _shapes(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        return {
            **dict.fromkeys(("positions", "slots", "cross_slots"), (rows,)),
            "starts": (clips * self._pieces + 1,),
            "lengths": (clips * self._pieces,),
            "tables": (clips * self._pieces, self._width),
            **self._model.stem_parts(rows, clips),
        }

    def _step(self, rows: int, clips: int) -> None:
        packet, model = self._packets[rows, clips], self._model
        with torch.inference_mode():
            packet.send()
            part = packet.device
            layout = layout_of(
                part,
                arrivals=self._arrivals,
            )
            seen = model.stem_joined(self._sound[: model.joined_samples(rows, clips)], part)
            # A piece's last block may be partly filled: allow one more block per piece.
            states = model.encode_rows(seen, layout, rows // ENCODER_BLOCK + clips * self._pieces, ENCODER_BLOCK)
            model.write_cross(states, part["cross_slots"], self._pages)


def _most_clips(rows: int, model: EncoderModel) -> int:
    return min(MOST_CLIPS, -(-rows // SECONDS_ROWS)) if model.inline else MOST_CLIPS

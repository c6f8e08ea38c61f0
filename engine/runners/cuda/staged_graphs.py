"""Steps of several sizes as CUDA graphs, each with a packet that its replay copies from pinned memory.

A subclass says what a packet holds and what a step does. Without a capture, as on a CPU, a step runs kernel by kernel.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured
from voxlane.engine.runners.cuda.rows import buckets_up_to
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer

Progress = Callable[[float], None]
Shapes = Mapping[str, tuple[int, ...]]
Key = TypeVar("Key", bound=Hashable)

PROMPT_SIZES = (
    *((32, 8), (128, 8), (64, 32), (256, 32)),
    *((128, 64), (512, 64), (1024, 64), (2048, 64), (256, 128), (1024, 128)),
)
"""Tokens and rows of steps that read few prompts: a prompt is some ten tokens, with instructions or a clip
a hundred."""

FEWEST_TOKENS = 512
"""Tokens of the smallest step with prompts that has room for all rows; each larger one takes twice as many, up to the
most that a step may have. So no step is launched kernel by kernel, which took a host 54 ms."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step."""

    tokens: int
    rows: int
    wide: bool  # a row may have more than one token


def step_sizes(max_rows: int, max_tokens: int) -> list[Size]:
    """Return the sizes of steps for at most so many rows and tokens, the smaller before the larger of their kind."""
    narrow = [Size(rows, rows, wide=False) for rows in buckets_up_to(max_rows)]
    most = max(max_tokens, FEWEST_TOKENS, 2 * max_rows)
    doubled = itertools.takewhile(lambda tokens: tokens < most, (FEWEST_TOKENS << times for times in range(32)))
    sizes = (*PROMPT_SIZES, *((tokens, max_rows) for tokens in (*doubled, most)))
    wide = {Size(min(tokens, most), min(rows, max_rows), wide=True) for tokens, rows in sizes}
    return [*narrow, *sorted(wide, key=lambda size: (size.rows, size.tokens))]


def fitting(sizes: Iterable[Size], tokens: int, rows: int, *, wide: bool) -> Size:
    """Return the smallest step for so many tokens of so many rows."""
    return next(size for size in sizes if size.wide is wide and tokens <= size.tokens and rows <= size.rows)


class StagedGraphs(ABC, Generic[Key]):
    """Steps by size; one of them is under way at a time."""

    def __init__(self, shapes: Mapping[Key, Shapes], device: torch.device) -> None:
        """Prepare a step for each size; `shapes` are the parts of its packet, the largest step comes last."""
        parts = list(shapes.values())
        largest = max(parts, key=lambda one: sum(map(math.prod, one.values())))
        memory = PacketMemory.of(largest, device)  # shared: one step is under way at a time
        self._device = device
        self._sizes: Sequence[Key] = list(shapes)
        self._packets = {key: StagingBuffer(one, memory) for key, one in shapes.items()}
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    @abstractmethod
    def packet(self, size: Key) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding."""

    def capture(self, pool: Any, progress: Progress = lambda done: None) -> None:
        """Capture every step on the current stream, in a pool of memory; nothing may be running."""
        sizes = sorted(self._sizes, key=self._work, reverse=True)  # the largest first: the others fit into its memory
        for number, size in enumerate(sizes):
            self.packet(size)
            self._graphs[size] = captured(partial(self._step, size), pool)
            progress((number + 1) / len(sizes))

    def launch(self, size: Key) -> None:
        """Launch a step after its packet was written."""
        graph = self._graphs.get(size)
        if graph is None:
            self._step(size)
        else:
            graph.replay()

    @abstractmethod
    def _work(self, size: Key) -> tuple[int, ...]:
        """Return how large a step is, for the order of captures."""

    @abstractmethod
    def _step(self, size: Key) -> None:
        """Send the packet and do the work."""

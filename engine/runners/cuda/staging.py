"""Numbers that are copied to the device together: named parts of one run of int32, laid out alike on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.kernels.yield_flag import YieldFlag

_ALIGNED = 4
"""Each part begins at a multiple of 16 bytes: a kernel is compiled again for pointers with other alignment."""


@dataclass(frozen=True, slots=True)
class PacketMemory:
    """Memory that packets share; one of them is under way at a time."""

    host: Tensor  # int32
    device: Tensor  # of the same size

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> PacketMemory:
        """Return memory that a packet of `shapes` fits into, and any smaller one."""
        numbers = _ends(shapes)[-1]
        host = torch.zeros(numbers, dtype=torch.int32, pin_memory=device.type == "cuda")
        return cls(host, torch.zeros(numbers, dtype=torch.int32, device=device))


class StagingBuffer:
    """The same parts in host memory, to be written, and on the device, to be read."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], memory: PacketMemory) -> None:
        """Lay parts of `shapes` out at the start of some memory, which other packets may share."""
        ends = _ends(shapes)
        self.memory = memory
        self._from, self._to = memory.host[: ends[-1]], memory.device[: ends[-1]]
        numbers: NDArray[np.int32] = memory.host.numpy()
        self.host: dict[str, NDArray[np.int32]] = {}
        self.device: dict[str, Tensor] = {}
        for (name, shape), begin in zip(shapes.items(), ends, strict=False):
            end = begin + math.prod(shape)
            self.host[name] = numbers[begin:end].reshape(shape)
            self.device[name] = memory.device[begin:end].view(shape)

    def clear(self, *below: str) -> None:
        """Write zeros on the host's side, and -1 into the parts that are named."""
        for name, numbers in self.host.items():
            numbers.fill(-1 if name in below else 0)

    def send(self) -> None:
        """Queue the copy to the device; until it is done the host's side must stay as it is."""
        self._to.copy_(self._from, non_blocking=True)


def _ends(shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    counts = [-(-math.prod(shape) // _ALIGNED) * _ALIGNED for shape in shapes.values()]
    return list(itertools.accumulate(counts, initial=0))


def layout_of(
    part: Mapping[str, Tensor],
    *,
    max_query: int = 0,
    yield_flag: YieldFlag | None = None,
    arrivals: Tensor | None = None,
) -> Layout:
    """Return the layout in the parts of a packet."""
    return Layout(
        positions=part["positions"],
        slots=part["slots"],
        query_starts=part["starts"],
        context_lengths=part["lengths"],
        block_tables=part["tables"],
        max_query=max_query,
        yield_flag=yield_flag,
        arrivals=arrivals,
    )

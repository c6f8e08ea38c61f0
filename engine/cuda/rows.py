"""Which row of the device's tables each decoding request has, and what the host tells the device of it in a step.

A request keeps its row while it decodes step after step, so that its block table is sent once and then grows by the one
block a step may add. It knows requests and rows; it does not know graphs, models or streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.sampling import MIN_P, POSITION, SEED_LOW, TEMPERATURE, TOP_K, TOP_P
from voxlane.engine.plan import Row
from voxlane.engine.request import Request

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows a decode step is padded to. Below 16 a row more costs nothing; above, the waste is at most a third."""

PACKET = 12
"""int32 columns of a packet, see kernels/sampling.py; a multiple of four keeps rows 16-byte aligned."""

_MASK = (1 << 64) - 1


def buckets_up_to(capacity: int) -> tuple[int, ...]:
    """Return the sizes of decode steps for at most `capacity` rows, the last of them exactly that."""
    return (*(size for size in BUCKETS if size < capacity), capacity)


def needs_host(request: Request) -> bool:
    """Return whether the choice of a token wants more than the device's sampler does."""
    sampling = request.sampling
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    return bool(
        request.ends or request.constraint is not None or sampling.logprobs > 0 or sampling.logit_bias or penalised
    )


def write_rules(packet: NDArray[np.int32], request: Request) -> None:
    """Write how a request's tokens are chosen into its row of a packet [columns]."""
    sampling = request.sampling
    packet[SEED_LOW : SEED_LOW + 2] = np.array([request.seed & _MASK], dtype=np.uint64).view(np.int32)
    packet[TEMPERATURE] = np.float32(sampling.temperature).view(np.int32)
    packet[TOP_K] = sampling.top_k
    packet[TOP_P] = np.float32(sampling.top_p).view(np.int32)
    packet[MIN_P] = np.float32(sampling.min_p).view(np.int32)


class DecodeRows:
    """The host's side of the decode rows."""

    def __init__(self, capacity: int, block_tokens: int, *, pinned: bool = False) -> None:
        self.capacity = capacity
        self.packet: Tensor = torch.zeros((capacity, PACKET), dtype=torch.int32, pin_memory=pinned)
        self._numbers: NDArray[np.int32] = self.packet.numpy()
        self._numbers[:, POSITION] = -1
        self.on_host = [False] * capacity  # whether the choice for a row's request is made on the host
        self._block_tokens = block_tokens
        self._buckets = buckets_up_to(capacity)
        self._row_of: dict[Request, int] = {}
        self._next: list[int] = [-1] * capacity  # the position at which the row's table goes on

    def bucket(self, count: int) -> int:
        """Return the smallest step that holds `count` rows."""
        return next(size for size in self._buckets if size >= count)

    def place(self, rows: Sequence[Row]) -> tuple[list[int], list[tuple[int, Request]]]:
        """Give each row's request a place below bucket(len(rows)); return them, and whose tables must be sent whole."""
        assert len(rows) <= self.capacity, "more rows than the tables have"
        size = self.bucket(max(len(rows), 1))
        row_of, expected = self._row_of, self._next
        known = [row_of.get(row.request, size) for row in rows]
        if len(rows) != len(row_of) or max(known, default=0) >= size:  # else nobody came or went
            present = {row.request for row in rows}
            for request, index in list(row_of.items()):
                if request not in present or index >= size:
                    self._leave(request)
        free = None
        places: list[int] = []
        joined: list[tuple[int, Request]] = []
        for row in rows:
            found = row_of.get(row.request)
            if found is None:
                if free is None:
                    taken = set(row_of.values())
                    free = [index for index in range(size - 1, -1, -1) if index not in taken]
                found = free.pop()
                self._join(row.request, found)
                joined.append((found, row.request))
            elif expected[found] != row.start:
                joined.append((found, row.request))
            expected[found] = row.start + 1
            places.append(found)
        self._fill(rows, places)
        return places, joined

    def clear(self) -> None:
        """Forget everybody: after a fault nothing is known of what the device holds."""
        for request in list(self._row_of):
            self._leave(request)

    def _fill(self, rows: Sequence[Row], places: list[int]) -> None:
        size = self._block_tokens
        flat: list[int] = []
        for row in rows:
            request, start = row.request, row.start
            flat += (request.tokens[start], start, request.table.blocks[start // size])
        self._numbers[places, :3] = np.array(flat, dtype=np.int32).reshape(-1, 3)

    def _join(self, request: Request, index: int) -> None:
        self._row_of[request] = index
        self.on_host[index] = needs_host(request)
        write_rules(self._numbers[index], request)

    def _leave(self, request: Request) -> None:
        index = self._row_of.pop(request)
        self._numbers[index, POSITION] = -1
        self._next[index] = -1

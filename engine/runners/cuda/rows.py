"""Gives each decoding request a row of the device's tables, and writes what a step tells the device about it.

A request keeps its row while it decodes step after step: its block table is sent once, and then grows by the one block
that a step may add.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import MIN_P, PENALTIES, POSITION, SEED_LOW, Penalties
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import ChatPayload, Request

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows a decode step is padded to. Below 16 a row more costs nothing; above, the waste is at most a third."""

PACKET = 12
"""int32 columns of a packet, see kernels/sampling/sampling.py; a multiple of four keeps rows 16-byte aligned."""

COLDEST = 1e-6
"""A lower temperature counts as 0: logits divided by it overflow a float32, and the largest logit wins anyway."""

_MASK = (1 << 64) - 1
_RULES = struct.Struct("=Qfiff")  # SEED_LOW and SEED_HIGH, TEMPERATURE, TOP_K, TOP_P, MIN_P
_NOWHERE = 1 << 30


def buckets_up_to(capacity: int) -> tuple[int, ...]:
    """Return the sizes of decode steps for at most `capacity` rows, the last of them exactly that."""
    return (*(size for size in BUCKETS if size < capacity), capacity)


def needs_host(request: Request) -> bool:
    """Return whether the host must choose the request's tokens, because the device's sampler cannot."""
    payload = request.payload
    ruled = isinstance(payload, ChatPayload) and (
        payload.constraint is not None or payload.ends or (payload.barred_starts and request.next_barred)
    )
    return bool(ruled) or request.sampling.logprobs > 0


def is_penalised(request: Request) -> bool:
    """Return whether a token's choice depends on the tokens before it, or has a bias."""
    sampling = request.sampling
    penalised = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    return bool(penalised or sampling.logit_bias)


def set_penalties(penalties: Penalties, slot: int, request: Request, computed: int) -> None:
    """Fill a penalty slot for a request whose token at `computed` is read next."""
    sampling = request.sampling
    penalties.set(
        slot,
        request.tokens[:computed],
        request.prompt_tokens,
        repetition=sampling.repetition_penalty,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        bias=sampling.logit_bias,
    )


def write_rules(packet: NDArray[np.int32], request: Request) -> None:
    """Write how a request's tokens are chosen into its row of a packet [columns]."""
    sampling = request.sampling
    temperature = sampling.temperature if sampling.temperature >= COLDEST else 0.0
    # Packed in one call: a request that misses every other step is written that often.
    bits = _RULES.pack(request.seed & _MASK, temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    packet[SEED_LOW : MIN_P + 1] = np.frombuffer(bits, dtype=np.int32)


class DecodeRows:
    """The host's side of the decode rows.

    A step's numbers are written here first, and copied to `packet`, which the device reads, just before its launch. So
    the next step can be written while one is under way.
    """

    def __init__(self, capacity: int, block_tokens: int, *, pinned: bool = False) -> None:
        self.capacity = capacity
        self.packet: Tensor = torch.zeros((capacity, PACKET), dtype=torch.int32, pin_memory=pinned)
        self._sent: NDArray[np.int32] = self.packet.numpy()
        self._sent[:, POSITION] = -1
        self._numbers = self._sent.copy()
        self.on_host = [False] * capacity  # whether the choice for a row's request is made on the host
        self.elsewhere: dict[Request, int] = {}  # where the last choice lies of a request outside the rows
        self._launched: dict[Request, int] = {}  # each request's row at the last launch; it may have another by now
        self._block_tokens = block_tokens
        self._buckets = buckets_up_to(capacity)
        self._row_of: dict[Request, int] = {}
        self._next: list[int] = [-1] * capacity  # by row: the next position, as the device's table knows it
        self._preempted = [0] * capacity  # by row: its request's preemptions when the table was sent

    def bucket(self, count: int) -> int:
        """Return the smallest step that holds `count` rows."""
        return next(size for size in self._buckets if size >= count)

    def place(self, rows: Sequence[Row]) -> tuple[list[int], list[tuple[int, Request]]]:
        """Give each row's request a place below bucket(len(rows)); return the places, and the tables to send whole.

        Other requests lose their places: their tables may change without notice.
        """
        assert len(rows) <= self.capacity, "more rows than the tables have"
        size = self.bucket(max(len(rows), 1))
        row_of, expected, preempted, on_host = self._row_of, self._next, self._preempted, self.on_host
        places = [row_of.get(row.request, _NOWHERE) for row in rows]
        if len(rows) != len(row_of) or max(places, default=0) >= size:  # else no request came or went
            present = {row.request for row in rows}
            for request, index in list(row_of.items()):
                if request not in present or index >= size:
                    self._leave(request)
        free = None
        joined: list[tuple[int, Request]] = []
        flat: list[int] = []
        for number, row in enumerate(rows):
            request, start, found = row.request, row.start, places[number]
            if found >= size:
                if free is None:
                    taken = set(row_of.values())
                    free = [index for index in range(size - 1, -1, -1) if index not in taken]
                places[number] = found = free.pop()
                self._join(request, found)
                joined.append((found, request))
            elif expected[found] != start or preempted[found] != request.preemptions:
                joined.append((found, request))
            if on_host[found]:  # it may have been so for the output's first token only
                on_host[found] = needs_host(request)
            expected[found], preempted[found] = start + 1, request.preemptions
            tokens = request.tokens
            token = tokens[start] if start < len(tokens) else self._chosen_at(request)
            flat += (token, start, request.table.blocks[start // self._block_tokens])
        self._numbers[places, :3] = np.frombuffer(array("i", flat), dtype=np.int32).reshape(-1, 3)
        return places, joined

    def send(self) -> None:
        """Copy the numbers to where the device reads them; the step before must have read its own."""
        np.copyto(self._sent, self._numbers)
        self._launched = self._row_of.copy()

    def take_back(self, rows: Sequence[Row], places: list[int], joined: list[tuple[int, Request]]) -> None:
        """Note that the rows placed last were not sent to the device."""
        for row, index in zip(rows, places, strict=True):
            self._next[index] = row.start
        for index, _ in joined:
            self._next[index] = -1

    def clear(self) -> None:
        """Forget all requests: after a fault the device's tables are unknown."""
        for request in list(self._row_of):
            self._leave(request)

    def _chosen_at(self, request: Request) -> int:
        """Return a reference to a token that the host does not know yet: the device reads it where it was chosen."""
        beside = self.elsewhere.get(request)
        return ~(self._launched[request] if beside is None else beside)

    def _join(self, request: Request, index: int) -> None:
        self._row_of[request] = index
        self.on_host[index] = needs_host(request)
        self._numbers[index, PENALTIES] = index + 1 if is_penalised(request) else 0  # every row has its own slot
        write_rules(self._numbers[index], request)

    def _leave(self, request: Request) -> None:
        index = self._row_of.pop(request)
        self._numbers[index, POSITION] = -1
        self._next[index] = -1

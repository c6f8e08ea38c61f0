"""Counts that hold for a whole cell: connections, conversations, what each tenant uses.

Every server process writes its own column of a shared file in memory, and reads those of the others. There is no lock:
two processes that look at the same moment may admit one client each where there was room for one. The supervisor clears
the column of a process that has died.

Counts of addresses and tenants have no list of keys. Each kind of count has two rows. A key has one place in each of
them, found by a keyed hash, and counts what the emptier place holds. It counts too much only if both of its places are
shared with other keys: with a thousand tenants or addresses that happens to four in a thousand at most.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from pathlib import Path
from typing import Literal, get_args

from voxlane.server.errors import ConfigError

Total = Literal["sockets", "conversations", "connections", "open_requests", "held_bytes", "beats", "serving", "ending"]
"""Counts without a key. `beats` shows that a process's event loop turns; `serving` is 1 while it takes new clients,
`ending` of the supervisor once the whole cell ends."""

KeyedTotal = Literal[
    "sockets of address",
    "conversations of address",
    "connections of address",
    "requests of address",
    "conversations of tenant",
    "requests of tenant",
    "audio of tenant",
]
"""Counts by address or tenant. Requests and seconds of audio only grow: each process follows what others add."""

EngineCount = Literal["requests", "conversations", "first_sound_sum", "first_sound_weight", "first_sound_at_s"]
"""What a process has at each engine. The last three are a fading mean of its turns (room/estimate.py)."""

_TOTALS: tuple[Total, ...] = get_args(Total)
_PLACES = {name: place for place, name in enumerate(_TOTALS)}
_FIRST_ENGINE = len(_TOTALS)
_ENGINE_COUNTS: tuple[EngineCount, ...] = get_args(EngineCount)
_FIRST_ROW = 512  # behind the engines, of which there are GPUS_MOST at most
_ROW = 1 << 14
_KINDS: tuple[KeyedTotal, ...] = get_args(KeyedTotal)
COLUMN = _FIRST_ROW + 2 * _ROW * len(_KINDS)
"""Numbers of 8 bytes in a process's column."""


class CellCounts:
    """The counts of a process that serves alone: there are no others."""

    processes = 1

    def add(self, what: Total, amount: float) -> None:
        """Count more, or with a negative amount less, in this process."""

    def put(self, what: Total, value: float) -> None:
        """Set a count of this process."""

    def elsewhere(self, what: Total) -> float:
        """Return the sum of the other processes."""
        return 0.0

    def add_keyed(self, what: KeyedTotal, key: str, amount: float) -> None:
        """Count more or less for a key in this process."""

    def keyed_elsewhere(self, what: KeyedTotal, key: str) -> float:
        """Return the sum of the other processes for a key."""
        return 0.0

    def put_engine(self, engine: int, what: EngineCount, value: float) -> None:
        """Set what this process has at an engine."""

    def engine_elsewhere(self, engine: int, what: EngineCount) -> list[float]:
        """Return what each of the other processes has at an engine."""
        return []


class SharedCounts(CellCounts):
    """The counts of one process of a cell."""

    def __init__(self, path: Path, processes: int, own: int, secret: bytes) -> None:
        """Map the file that `make_counts` has made; `own` is this process's column."""
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * COLUMN * processes)
        self._numbers = memoryview(self._memory).cast("d")
        self._secret = secret
        self._own = own * COLUMN
        self._others = [number * COLUMN for number in range(processes) if number != own]
        self.processes = processes

    def add(self, what: Total, amount: float) -> None:
        """Count more, or with a negative amount less, in this process."""
        self._numbers[self._own + _PLACES[what]] += amount

    def put(self, what: Total, value: float) -> None:
        """Set a count of this process."""
        self._numbers[self._own + _PLACES[what]] = value

    def elsewhere(self, what: Total) -> float:
        """Return the sum of the other processes."""
        return self._sum(_PLACES[what])

    def add_keyed(self, what: KeyedTotal, key: str, amount: float) -> None:
        """Count more or less for a key in this process."""
        for place in self._places(what, key):
            self._numbers[self._own + place] += amount

    def keyed_elsewhere(self, what: KeyedTotal, key: str) -> float:
        """Return the sum of the other processes for a key."""
        return min(self._sum(place) for place in self._places(what, key))

    def put_engine(self, engine: int, what: EngineCount, value: float) -> None:
        """Set what this process has at an engine."""
        self._numbers[self._own + _engine_place(engine, what)] = value

    def engine_elsewhere(self, engine: int, what: EngineCount) -> list[float]:
        """Return what each of the other processes has at an engine."""
        place = _engine_place(engine, what)
        return [self._numbers[column + place] for column in self._others]

    def of(self, process: int, what: Total) -> float:
        """Return a count of one process."""
        return self._numbers[process * COLUMN + _PLACES[what]]

    def clear(self, process: int) -> None:
        """Forget what a process has counted."""
        start = process * COLUMN
        self._numbers[start : start + COLUMN] = memoryview(bytes(8 * COLUMN)).cast("d")

    def close(self) -> None:
        """Give the memory back."""
        self._numbers.release()
        self._memory.close()

    def _sum(self, place: int) -> float:
        return sum(self._numbers[column + place] for column in self._others)

    def _places(self, what: KeyedTotal, key: str) -> tuple[int, int]:
        text = f"{what} {key}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8, key=self._secret).digest()
        # Rows of its own for each kind: counts that only grow must not reach those of conversations, nor addresses,
        # which are many and a client's choice, those of tenants.
        start = _FIRST_ROW + 2 * _ROW * _KINDS.index(what)
        first, second = int.from_bytes(digest[:4]) % _ROW, int.from_bytes(digest[4:]) % _ROW
        return start + first, start + _ROW + second


def _engine_place(engine: int, what: EngineCount) -> int:
    return _FIRST_ENGINE + engine * len(_ENGINE_COUNTS) + _ENGINE_COUNTS.index(what)


def make_counts(path: Path, processes: int) -> None:
    """Make the file of a cell's counts, all zero; raise ConfigError if there is no room for it.

    Its memory is reserved now: a write to a hole of the file, on a file system that is full by then, is a SIGBUS.
    """
    size = 8 * COLUMN * processes
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        reason = f"{math.ceil(size / 1e6)} MB for shared counts in {path.parent}: {error.strerror}"
        raise ConfigError(f"server.processes: {reason}") from error

"""Flatbuffers as untrusted data: every offset is checked against the buffer before it is followed.

It knows tables, vectors and strings. The caller knows the schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from voxlane.engine.errors import WeightsError


@dataclass(frozen=True, slots=True)
class Buffer:
    """A file's bytes, and its name for error messages."""

    path: str
    data: memoryview

    def number(self, kind: str, at: int) -> int:
        """Return the little-endian integer of struct's `kind` at a position."""
        size = struct.calcsize(f"<{kind}")
        if not 0 <= at <= len(self.data) - size:
            self.refuse()
        value: int = struct.unpack_from(f"<{kind}", self.data, at)[0]
        return value

    def slice(self, at: int, size: int) -> memoryview:
        """Return `size` bytes from a position on."""
        if not 0 <= at <= len(self.data) - size:
            self.refuse()
        return self.data[at : at + size]

    def refuse(self, reason: str = "an offset points beyond the end of the file: truncated or damaged") -> NoReturn:
        """Raise WeightsError."""
        raise WeightsError(self.path, reason)


@dataclass(frozen=True, slots=True)
class Table:
    """One table. A field is given by its number in the schema, from 0; an absent field has its default value."""

    buffer: Buffer
    place: int

    @classmethod
    def root(cls, path: str, data: memoryview, identifier: bytes) -> Table:
        """Return the root table of a file, or raise WeightsError if the file is of another kind."""
        buffer = Buffer(path, data)
        if len(data) < 12 or bytes(data[4:8]) != identifier:
            buffer.refuse(f"not a {identifier.decode('ascii')} file")
        return cls(buffer, buffer.number("I", 0))

    def integer(self, field: int, kind: str, default: int = 0) -> int:
        """Return a scalar field of struct's `kind`."""
        at = self._field(field)
        return self.buffer.number(kind, at) if at else default

    def table(self, field: int) -> Table | None:
        """Return the table a field points to."""
        at = self._field(field)
        return Table(self.buffer, self._follow(at)) if at else None

    def text(self, field: int) -> str:
        """Return a string field, "" if it is absent."""
        at = self._field(field)
        return self._text(at) if at else ""

    def tables(self, field: int, limit: int) -> Iterator[Table]:
        """Yield the tables of a vector field of at most `limit`."""
        start, count = self._vector(field, 4, limit)
        for index in range(count):
            yield Table(self.buffer, self._follow(start + 4 * index))

    def texts(self, field: int, limit: int) -> list[str]:
        """Return the strings of a vector field of at most `limit`."""
        start, count = self._vector(field, 4, limit)
        return [self._text(start + 4 * index) for index in range(count)]

    def integers(self, field: int, kind: str, limit: int) -> list[int]:
        """Return the scalars of a vector field of at most `limit`."""
        size = struct.calcsize(f"<{kind}")
        start, count = self._vector(field, size, limit)
        return [self.buffer.number(kind, start + size * index) for index in range(count)]

    def raw(self, field: int) -> memoryview:
        """Return the bytes of a vector field."""
        start, count = self._vector(field, 1, len(self.buffer.data))
        return self.buffer.slice(start, count)

    def _field(self, number: int) -> int:
        """Return the position of a field, 0 if the table does not have it."""
        buffer, vtable = self.buffer, self.place - self.buffer.number("i", self.place)
        entry = 4 + 2 * number
        if entry + 2 > buffer.number("H", vtable):
            return 0
        offset = buffer.number("H", vtable + entry)
        return self.place + offset if offset else 0

    def _follow(self, at: int) -> int:
        return at + self.buffer.number("I", at)

    def _vector(self, field: int, size: int, limit: int) -> tuple[int, int]:
        at = self._field(field)
        if not at:
            return 0, 0
        place = self._follow(at)
        count = self.buffer.number("I", place)
        if count > limit:
            self.buffer.refuse(f"a list of {count} entries where {limit} are the limit")
        self.buffer.slice(place + 4, count * size)
        return place + 4, count

    def _text(self, at: int) -> str:
        place = self._follow(at)
        raw = bytes(self.buffer.slice(place + 4, self.buffer.number("I", place)))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.buffer.refuse("a name is not UTF-8: damaged")

"""The header of a GGUF file: metadata and tensor positions, every number checked against the file's size first.

It knows the container, not architectures. Lengths are compared with the size of the file before anything is allocated,
so a forged header cannot make it use much memory.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from voxlane.engine.errors import WeightsError

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 64 * 1024 * 1024
"""Vocabularies of 262,144 tokens take about 15 MiB; as Python objects, strings take up to 6 times their bytes."""
MAX_DIMENSIONS = 4
MAX_NESTING = 4
MAX_ALIGNMENT = 64 * 1024
_TENSOR_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8  # empty name, one dimension
_FIELD_BYTES = 8 + 4 + 1  # empty key, one-byte value

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip

Scalar = str | int | float | bool
Value = Scalar | NDArray[np.generic] | list[str] | list[object]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place, type and shape of one tensor. `shape` is in torch's order, rows first."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Header:
    """A checked GGUF header."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def map_file(path: Path) -> mmap.mmap:
    """Map a file privately: readers share its pages, and a write would stay in this process."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise WeightsError(path, "the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror or error}") from error


def read_header(path: Path, data: mmap.mmap) -> Header:
    """Return the header of the mapped file, or raise WeightsError naming what is wrong."""
    cursor = _Cursor(path, data)
    if cursor.take(4, "the magic number") != MAGIC:
        raise WeightsError(path, "not a GGUF file")
    version = cursor.u32("the version")
    if version not in (2, 3):
        hint = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
        raise WeightsError(path, f"GGUF version {version}{hint} is not supported, only 2 and 3 are")
    tensor_count = cursor.count("tensors", _TENSOR_ENTRY_BYTES)
    field_count = cursor.count("metadata fields", _FIELD_BYTES)
    metadata: dict[str, Value] = {}
    for _ in range(field_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise WeightsError(path, f"metadata key {key!r} occurs twice")
        metadata[key] = cursor.value(cursor.u32(key), key)
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = _alignment(path, metadata)
    start = -(-cursor.position // alignment) * alignment
    return Header(path, metadata, _place(path, entries, start, alignment, len(data)))


class _Cursor:
    """Reads little-endian values one after another and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self._data = data
        self._end = min(len(data), MAX_HEADER_BYTES)

    def take(self, size: int, what: str) -> bytes:
        """Return the next `size` bytes."""
        self._need(size, what)
        start = self.position
        self.position += size
        return self._data[start : self.position]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def count(self, what: str, least_bytes: int) -> int:
        """Return a count of entries that each take at least `least_bytes` of the remaining bytes."""
        count = self.u64(f"the number of {what}")
        self._need(count * least_bytes, f"{count} {what}")
        return count

    def string(self, what: str) -> str:
        size = self.u64(what)
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise WeightsError(self.path, f"{what} is not valid UTF-8") from error

    def value(self, kind: int, key: str, depth: int = 0) -> Value:
        """Return a metadata value of the given type code."""
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise WeightsError(self.path, f"metadata {key!r} has unknown type {kind}")
        raw = np.frombuffer(self.take(np.dtype(_SCALARS[kind]).itemsize, key), _SCALARS[kind])[0]
        scalar: Scalar = raw.item()
        return scalar

    def _array(self, key: str, depth: int) -> Value:
        if depth >= MAX_NESTING:
            raise WeightsError(self.path, f"metadata {key!r} is nested too deeply")
        kind = self.u32(key)
        if kind == _STRING:
            return self._strings(self.count(f"strings of {key!r}", 8), key)
        if kind == _ARRAY:
            nested: list[object] = []
            for _ in range(self.count(f"arrays of {key!r}", 12)):
                nested.append(self.value(_ARRAY, key, depth + 1))  # noqa: PERF401 - mypy: list of object, not of Value
            return nested
        if kind not in _SCALARS:
            raise WeightsError(self.path, f"metadata {key!r} is an array of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        count = self.count(f"values of {key!r}", dtype.itemsize)
        return np.frombuffer(self.take(count * dtype.itemsize, key), dtype)

    def _strings(self, count: int, key: str) -> list[str]:
        # The hot loop of opening a file, 100,000 tokens and merges: the checks of take() are inlined.
        data, position, end, unpack = self._data, self.position, self._end, struct.Struct("<Q").unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                if position + 8 > end:
                    break
                (size,) = unpack(data, position)
                position += 8 + size
                if position > end:
                    break
                strings.append(data[position - size : position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise WeightsError(self.path, f"a string of {key!r} is not valid UTF-8") from error
        if len(strings) < count:
            raise WeightsError(self.path, f"the file ends inside {key!r}: truncated or damaged")
        self.position = position
        return strings

    def _need(self, size: int, what: str) -> None:
        if size > self._end - self.position:
            if self.position + size <= len(self._data):
                raise WeightsError(self.path, f"the header is larger than {MAX_HEADER_BYTES >> 20} MiB, at {what}")
            raise WeightsError(self.path, f"the file ends inside {what}: truncated or damaged")


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("a tensor name")
    dimensions = cursor.u32(name)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise WeightsError(cursor.path, f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.u64(name) for _ in range(dimensions))[::-1]
    return name, shape, cursor.u32(name), cursor.u64(name)


def _alignment(path: Path, metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise WeightsError(path, "general.alignment is not a power of two up to 65536")
    return alignment


def _place(
    path: Path, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int, file_size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind_code, offset in entries:
        if name in tensors:
            raise WeightsError(path, f"tensor {name!r} occurs twice")
        try:
            kind = GGMLQuantizationType(kind_code)
        except ValueError as error:
            raise WeightsError(path, f"tensor {name!r} has unknown type {kind_code}") from error
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block:
            raise WeightsError(path, f"tensor {name!r} has the impossible shape {list(shape)} for {kind.name}")
        size = math.prod(shape) // block * block_bytes
        if offset % alignment:
            raise WeightsError(path, f"tensor {name!r} is not aligned to {alignment} bytes")
        if start + offset + size > file_size:
            raise WeightsError(path, f"tensor {name!r} lies beyond the end of the file: truncated or damaged")
        tensors[name] = TensorInfo(name, kind, shape, start + offset, size)
    end = start
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:  # overlap would let a small file claim any amount of memory
            raise WeightsError(path, f"tensor {info.name!r} overlaps another")
        end = info.offset + info.size
    return tensors

"""Keep packed matrices on disk: packing a model of 1.5 billion weights takes seconds, reading them again a fraction.

One file a model, in the cache: a header, then each part's bytes on a border of 64. It is found by the paths, sizes and
times of the files that the weights came from, which change with their content; each part has a checksum. A file that
is damaged, or that another version has packed, is packed anew. What cannot be kept is packed at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import msgspec
from torch import Tensor

from voxlane.engine.kernels.linear.linear import PACKING, PackedPart, packed_room
from voxlane.engine.weights.store import packed_folder

log = logging.getLogger(__name__)

LEAST_BYTES = 32 << 20
"""A smaller model is packed in no time."""

_MAGIC = b"voxlane packed matrices 2\n"
_BORDER = 64
_MOST_HEADER = 16 << 20


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    name: str
    bits: int
    minimums: bool
    out_features: int
    in_features: int
    tiles: int
    tile_bytes: int
    checksum: int


class KeptMatrices:
    """The packed matrices of one model: those that were kept, and those that are to be."""

    def __init__(self, sources: Sequence[Path]) -> None:
        """`sources` are the files that the model's weights come from."""
        self._sources = sources
        self._path = packed_folder(sources[0]) / file_name(sources)
        self._parts: dict[str, PackedPart] = {}
        self._complete = True  # every matrix that was asked for was kept
        try:
            self._parts = _read(self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning("packed=%s packed anew: %s", self._path, error)

    def get(self, name: str, shape: tuple[int, int]) -> PackedPart | None:
        """Return a matrix that was kept."""
        part = self._parts.get(name)
        return part if part is not None and (part.out_features, part.in_features) == shape else None

    def put(self, name: str, part: PackedPart) -> None:
        """Keep a matrix, with the next call of `save`."""
        self._parts[name], self._complete = part, False

    def save(self) -> None:
        """Write the matrices if any is new; a disk without room for them costs the next start a few seconds."""
        if self._complete or sum(part.data.nbytes for part in self._parts.values()) < LEAST_BYTES:
            return
        try:
            _write(self._path, self._sources, self._parts)
        except OSError as error:
            log.warning("packed=%s not kept: %s", self._path, error.strerror or error)
            return
        self._remove_old()
        log.info("packed=%s kept", self._path)

    def _remove_old(self) -> None:
        """Drop what was packed of an earlier state of these files, and of this model with all but one more adapter."""
        model, adapter, _ = self._path.name.split("-")
        others = [path for path in self._path.parent.glob(f"{model}-*.packed") if path != self._path]
        stale = [path for path in others if path.name.split("-")[1] == adapter]
        with contextlib.suppress(OSError):
            rest = sorted((path for path in others if path not in stale), key=lambda path: path.stat().st_mtime)
            for path in (*stale, *rest[:-1]):
                path.unlink()


def file_name(sources: Sequence[Path]) -> str:
    """Return the name of the file for weights from these files: of the first, of all of them, and of their state."""
    places, states = [str(path.resolve()) for path in sources], []
    for path in sources:
        stat = path.stat()
        states.append(f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}")
    parts = (places[:1], places, [str(PACKING), *states])
    return "-".join(hashlib.sha256("\n".join(part).encode()).hexdigest()[:16] for part in parts) + ".packed"


def _read(path: Path) -> dict[str, PackedPart]:
    with open(path, "rb") as file:
        if file.readline(64) != _MAGIC:
            raise ValueError("it is no such file")
        file.readline(_MOST_HEADER)  # the sources: they are part of the file's name
        length, checksum = (int.from_bytes(file.read(8), "little") for _ in range(2))
        if length > _MOST_HEADER or zlib.crc32(header := file.read(length)) != checksum:
            raise ValueError("its header is damaged")
        entries = msgspec.msgpack.decode(header, type=list[_Entry])
        begin = _up(file.tell())
        wanted = begin + sum(entry.tiles * entry.tile_bytes for entry in entries)
        if os.fstat(file.fileno()).st_size != wanted or any(entry.tile_bytes % _BORDER for entry in entries):
            raise ValueError("it has another size than its header says")
        file.seek(begin)
        return {entry.name: _part(file, entry) for entry in entries}


def _part(file: BufferedReader, entry: _Entry) -> PackedPart:
    # Read, not mapped: memory for weights lies in large pages, which streams a tenth faster.
    data = packed_room(entry.tiles * entry.tile_bytes)
    room = _bytes(data)
    if file.readinto(room) != len(room) or zlib.crc32(room) != entry.checksum:
        raise ValueError(f"{entry.name:.120} is damaged")
    tiles = data.view(entry.tiles, entry.tile_bytes)
    return PackedPart(entry.bits, entry.minimums, entry.out_features, entry.in_features, tiles)


def _write(path: Path, sources: Sequence[Path], parts: dict[str, PackedPart]) -> None:
    rooms = {name: _bytes(part.data) for name, part in parts.items()}
    entries = [_entry(name, part, zlib.crc32(rooms[name])) for name, part in parts.items()]
    places = json.dumps([str(source.resolve()) for source in sources]).encode()
    header = msgspec.msgpack.encode(entries)
    numbers = b"".join(number.to_bytes(8, "little") for number in (len(header), zlib.crc32(header)))
    head = _MAGIC + places + b"\n" + numbers + header
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with open(descriptor, "wb") as file:
            file.write(head.ljust(_up(len(head)), b"\0"))
            file.writelines(rooms.values())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _entry(name: str, part: PackedPart, checksum: int) -> _Entry:
    tiles, tile_bytes = part.data.shape
    return _Entry(name, part.bits, part.minimums, part.out_features, part.in_features, tiles, tile_bytes, checksum)


def _bytes(data: Tensor) -> memoryview:
    return memoryview(data.flatten().numpy())  # type: ignore[arg-type]  # an array is a buffer


def _up(size: int) -> int:
    return -(-size // _BORDER) * _BORDER

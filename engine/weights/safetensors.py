"""Safetensors files, and checkpoints in Hugging Face's layout: config.json beside one file or an index of shards.

It checks every header against its file's size before the `safetensors` library maps it, and refuses an index that
points outside its own directory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.json_files import parse_json, read_json
from voxlane.engine.weights.tensors import Blocks

MAX_HEADER_BYTES = 16 * 1024 * 1024
"""A tensor's entry takes about 100 bytes: room for 160,000 tensors."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    dtype: str
    shape: tuple[int, ...]


class SafetensorsFiles:
    """The tensors of one or several files with checked headers. A tensor is read when it is requested."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._entries: dict[str, _Entry] = {}
        for file in files:
            for name, entry in _read_header(file).items():
                if name in self._entries:
                    raise WeightsError(file, f"tensor {name!r} is also in {self._entries[name].file.name}")
                self._entries[name] = entry

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return one tensor's shape. KeyError if there is no such tensor."""
        return self._entries[name].shape

    def tensor(self, name: str) -> Tensor:
        """Return one tensor in the file's float type. KeyError if there is no such tensor."""
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise WeightsError(entry.file, f"tensor {name!r} is {entry.dtype}; supported are {', '.join(_DTYPES)}")
        try:
            with safe_open(entry.file, framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(entry.file, f"tensor {name!r} cannot be read: {error}") from error
        return tensor


class SafetensorsDirectory(SafetensorsFiles):
    """A directory with config.json and safetensors files as a WeightFile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(path / "config.json")
        self.sources = (*_files(path), path / "config.json")
        super().__init__(self.sources[:-1])
        if not self.names():
            raise WeightsError(path, "there are no tensors in it")

    @property
    def config(self) -> dict[str, object]:
        """The architecture: config.json as it stands."""
        return self._config

    def blocks(self, name: str) -> Blocks | None:
        """Return None: safetensors checkpoints hold plain floats."""
        self.shape(name)  # KeyError if there is no such tensor
        return None


def _files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    if not index.is_file():
        raise WeightsError(path, "there is neither model.safetensors nor model.safetensors.index.json in it")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(index, "there is no weight_map in it")
    files: list[Path] = []
    for name in sorted({str(value) for value in weight_map.values()}):
        if Path(name).name != name or name in ("", ".", "..") or "\\" in name or "\0" in name:
            raise WeightsError(index, f"shard {name!r} is not a plain file name")
        if not (path / name).is_file():
            raise WeightsError(index, f"shard {name} is missing")
        files.append(path / name)
    return files


def _read_header(path: Path) -> dict[str, _Entry]:
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 10 or length > size - 8:
                raise WeightsError(path, "the header is longer than the file: truncated or not safetensors")
            if length > MAX_HEADER_BYTES:
                raise WeightsError(path, f"the header is larger than {MAX_HEADER_BYTES >> 20} MiB")
            header = parse_json(path, file.read(length))
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    entries: dict[str, _Entry] = {}
    spans: list[tuple[int, int, str]] = []
    for name, value in header.items():
        entries[name], (begin, end) = _entry(path, name, value, size - 8 - length)
        spans.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(spans):
        if begin < position:
            raise WeightsError(path, f"tensor {name!r} overlaps another")
        position = end
    return entries


_WIDTHS = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


def _entry(path: Path, name: str, value: object, data_bytes: int) -> tuple[_Entry, tuple[int, int]]:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise WeightsError(path, f"tensor {name!r} is not described by dtype, shape and data_offsets")
    if dtype not in _WIDTHS or len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise WeightsError(path, f"tensor {name!r} has an unknown type or an impossible shape")
    if not 0 <= begin <= end <= data_bytes:
        raise WeightsError(path, f"tensor {name!r} lies beyond the end of the file: truncated or damaged")
    if math.prod(shape) * _WIDTHS[dtype] != end - begin:
        raise WeightsError(path, f"tensor {name!r} does not fill its place in the file")
    return _Entry(path, dtype, tuple(shape)), (begin, end)

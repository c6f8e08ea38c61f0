"""Whisper as CTranslate2 stores it: model.bin beside config.json, under Hugging Face's names.

The file is a list of named arrays, each checked against the file's size before it is read. This module splits the
attention matrices that the converter fused, so a model does not depend on the format of its file.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.gguf_header import map_file
from voxlane.engine.weights.json_files import read_json
from voxlane.engine.weights.tensors import Blocks

MODEL, CONFIG = "model.bin", "config.json"
VERSIONS = (4, 5, 6)  # of the container: since 4 every array names its type
MAX_ARRAYS, MAX_NAME_BYTES, MAX_RANK = 100_000, 1_000, 8

_DTYPES = {
    0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Array:
    """The place of one array."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int  # byte in the file


class _Cursor:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        size = struct.calcsize(f"<{kind}")
        value: int = struct.unpack_from(f"<{kind}", self._data, self.skip(size))[0]
        return value

    def text(self) -> str:
        size = self.number("H")
        if not 0 < size <= MAX_NAME_BYTES:
            raise WeightsError(self._path, f"a name of {size} bytes: damaged, or not a CTranslate2 model")
        start = self.skip(size)
        return self._data[start : start + size].rstrip(b"\0").decode("utf-8", errors="replace")

    def skip(self, size: int) -> int:
        """Skip `size` bytes; return the position where they begin."""
        start = self._at
        if size > len(self._data) - start:
            raise WeightsError(self._path, "it ends in the middle of an array: truncated or damaged")
        self._at += size
        return start


def read_arrays(path: Path, data: mmap.mmap) -> tuple[str, dict[str, Array]]:
    """Return the kind of model and its arrays by name, or raise WeightsError."""
    cursor = _Cursor(path, data)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise WeightsError(path, f"not a CTranslate2 model of version {VERSIONS[0]} to {VERSIONS[-1]}")
    kind = cursor.text()
    cursor.number("I")  # the specification's revision
    arrays: dict[str, Array] = {}
    for _ in range(_count(path, cursor)):
        name, rank = cursor.text(), cursor.number("B")
        if rank > MAX_RANK:
            raise WeightsError(path, f"array {name!r:.100} has {rank} dimensions: damaged")
        shape = tuple(cursor.number("I") for _ in range(rank))
        dtype = _DTYPES.get(cursor.number("B"))
        size = cursor.number("I")
        if dtype is None or math.prod(shape) * dtype.itemsize != size:
            raise WeightsError(path, f"array {name!r:.100} is of an unknown type or does not fill its place")
        arrays[name] = Array(shape, dtype, cursor.skip(size))
    for _ in range(_count(path, cursor)):
        alias, name = cursor.text(), cursor.text()
        if name in arrays:
            arrays[alias] = arrays[name]
    return kind, arrays


def _count(path: Path, cursor: _Cursor) -> int:
    count = cursor.number("I")
    if count > MAX_ARRAYS:
        raise WeightsError(path, f"{count} arrays are over the limit of {MAX_ARRAYS}")
    return count


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of an array: the `index`-th of `count` equal shares."""

    array: str
    index: int = 0
    count: int = 1


_NORMS = {"gamma": "weight", "beta": "bias"}
# (block, CTranslate2's name of a matrix) -> Hugging Face's names of its shares, in order
_MATRICES = {
    ("self_attention", "linear_0"): ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attention", "linear_1"): ("self_attn.out_proj",),
    ("self_attention", "layer_norm"): ("self_attn_layer_norm",),
    ("attention", "linear_0"): ("encoder_attn.q_proj",),
    ("attention", "linear_1"): ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    ("attention", "linear_2"): ("encoder_attn.out_proj",),
    ("attention", "layer_norm"): ("encoder_attn_layer_norm",),
    ("ffn", "linear_0"): ("fc1",),
    ("ffn", "linear_1"): ("fc2",),
    ("ffn", "layer_norm"): ("final_layer_norm",),
}
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,4})/(\w+)/(\w+)/(weight|bias|gamma|beta)")
_OUTSIDE = re.compile(r"(encoder|decoder)/(conv1|conv2|layer_norm)/(weight|bias|gamma|beta)")
_PLAIN = {
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
}


def _names(arrays: dict[str, Array]) -> dict[str, _Part]:
    """Return Hugging Face's name of every tensor of a Whisper model."""
    found: dict[str, _Part] = {}
    for name in arrays:
        if name in _PLAIN:
            found[_PLAIN[name]] = _Part(name)
        elif match := _OUTSIDE.fullmatch(name):
            side, place, ending = match.groups()
            found[f"model.{side}.{place}.{_NORMS.get(ending, ending)}"] = _Part(name)
        elif match := _LAYER.fullmatch(name):
            side, layer, block, matrix, ending = match.groups()
            shares = _MATRICES.get((block, matrix), ())
            for index, share in enumerate(shares):
                # Whisper's keys have no bias; the fused array holds zeros for it.
                if not (share.endswith("k_proj") and ending == "bias"):
                    full = f"model.{side}.layers.{int(layer)}.{share}.{_NORMS.get(ending, ending)}"
                    found[full] = _Part(name, index, len(shares))
    return found


class CTranslate2Directory:
    """A directory with a Whisper model.bin and its config.json as a WeightFile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / MODEL
        self._data = map_file(self._file)
        kind, self._arrays = read_arrays(self._file, self._data)
        if kind != "WhisperSpec":
            raise WeightsError(self._file, f"a {kind!r:.60} model; only Whisper is supported in this format")
        self._parts = _names(self._arrays)
        for name, part in self._parts.items():
            shape = self._arrays[part.array].shape
            if not shape or shape[0] % part.count or not self._arrays[part.array].dtype.is_floating_point:
                raise WeightsError(self._file, f"array {part.array!r:.100} is not float numbers that {name} can be")
        self._config = self._read_config(read_json(path / CONFIG) if (path / CONFIG).is_file() else {})

    @property
    def config(self) -> dict[str, object]:
        """The architecture in the form of Hugging Face's config.json, with the keys of generation_config.json."""
        return self._config

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._parts)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor in the file's float type."""
        part = self._parts[name]
        array = self._arrays[part.array]
        count = math.prod(array.shape)
        raw = torch.frombuffer(self._data, dtype=torch.uint8, count=count * array.dtype.itemsize, offset=array.start)
        whole = raw.clone().view(array.dtype).view(array.shape)  # copied: an array may begin at an odd byte
        rows = array.shape[0] // part.count
        return whole[part.index * rows : (part.index + 1) * rows]

    def blocks(self, name: str) -> Blocks | None:
        """Return None: these files hold plain floats."""
        if name not in self._parts:
            raise KeyError(name)
        return None

    def _read_config(self, beside: dict[str, Any]) -> dict[str, object]:
        embedding = self._shape("model.decoder.embed_tokens.weight", 2)
        layers = {
            side: len({name.split(".")[3] for name in self._parts if name.startswith(f"model.{side}.layers.")})
            for side in ("encoder", "decoder")
        }
        config: dict[str, object] = {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "vocab_size": embedding[0],
            "d_model": embedding[1],
            "num_mel_bins": self._shape("model.encoder.conv1.weight", 3)[1],
            "max_source_positions": self._shape("model.encoder.embed_positions.weight", 2)[0],
            "max_target_positions": self._shape("model.decoder.embed_positions.weight", 2)[0],
        }
        for side in ("encoder", "decoder"):
            config[f"{side}_layers"] = layers[side]
            config[f"{side}_attention_heads"] = self._scalar(f"{side}/num_heads")
            config[f"{side}_ffn_dim"] = self._shape(f"model.{side}.layers.0.fc1.weight", 2)[0]
        for ours, theirs in (
            ("alignment_heads", "alignment_heads"),
            ("suppress_tokens", "suppress_ids"),
            ("begin_suppress_tokens", "suppress_ids_begin"),
        ):
            if theirs in beside:
                config[ours] = beside[theirs]
        return config

    def _shape(self, name: str, rank: int) -> tuple[int, ...]:
        shape = self._arrays[self._parts[name].array].shape if name in self._parts else ()
        if len(shape) != rank:
            raise WeightsError(self._file, f"not a Whisper model: {name} is missing or misshapen")
        return shape

    def _scalar(self, name: str) -> int:
        array = self._arrays.get(name)
        if array is None or array.shape or array.dtype.is_floating_point:
            raise WeightsError(self._file, f"not a Whisper model: {name} is missing or not a number")
        end = array.start + array.dtype.itemsize
        return int.from_bytes(self._data[array.start : end], "little", signed=True)

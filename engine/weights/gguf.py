"""GGUF files as named tensors: memory-mapped, dequantised on demand, under Hugging Face's names and conventions.

It undoes what GGUF's converters do to a checkpoint (interleaved q and k rows, norms with 1 added, all experts in one
tensor). So a model does not depend on the format of its file.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights import gguf_blocks
from voxlane.engine.weights.gguf_header import Header, TensorInfo, Value, map_file, read_header
from voxlane.engine.weights.gguf_names import architecture_of, config, named_tensors
from voxlane.engine.weights.tensors import Blocks

_FLOATS = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
_LIBRARY = frozenset({  # rare types: the gguf library converts them to floats
    Kind.IQ1_S, Kind.IQ1_M, Kind.IQ2_XXS, Kind.IQ2_XS, Kind.IQ2_S, Kind.IQ3_XXS, Kind.IQ3_S,
})  # fmt: skip
SUPPORTED = frozenset(_FLOATS) | gguf_blocks.KINDS | _LIBRARY
_ADVICE = "take this model's Q4_K_M file, or make one of its F16 file: llama-quantize F16.gguf NEW.gguf Q4_K_M"


class GGUFFile:
    """A GGUF model as a WeightFile; the file stays mapped while this object or a tensor of it lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        self._header = read_header(path, self._data)
        self._architecture = architecture_of(self._header)
        self._tensors = named_tensors(self._header)
        for info in self._header.tensors.values():
            if info.kind not in SUPPORTED:
                raise WeightsError(path, f"tensor {info.name!r} is {info.kind.name}, which cannot be read; {_ADVICE}")
        self._config = config(self._header, self._rope_frequencies())

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that the weights come from."""
        return (self.path,)

    @property
    def config(self) -> dict[str, object]:
        """The architecture in the form of Hugging Face's config.json."""
        return self._config

    @property
    def header(self) -> Header:
        """All that stands before the tensors."""
        return self._header

    @property
    def metadata(self) -> dict[str, Value]:
        """The file's own key-value fields."""
        return self._header.metadata

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor: float types as they are stored, quantised types as float32."""
        info = self._tensors[name]
        tensor = self._floats(info)
        if name.endswith(".conv.conv.weight"):  # [channels, taps] in the file
            return tensor[:, None]
        if self._architecture.norm_offset and name.endswith("norm.weight"):
            return tensor.to(torch.float32) - self._architecture.norm_offset
        order = self._row_order(name, info)
        return tensor if order is None else tensor[order]

    def blocks(self, name: str) -> Blocks | None:
        """Return one matrix as its stored codes, or None if it is stored as floats."""
        info = self._tensors[name]
        if info.kind not in gguf_blocks.KINDS or len(info.shape) != 2:
            return None
        return gguf_blocks.decode(self._rows(info), info.kind, self._row_order(name, info))

    def _raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        raw = np.frombuffer(self._data, np.uint8, info.size, info.offset)
        return raw if info.offset % 8 == 0 else raw.copy()  # a file may choose a smaller alignment than floats need

    def _rows(self, info: TensorInfo) -> Tensor:
        """Return the bytes of every row."""
        return torch.from_numpy(self._raw(info)).view(math.prod(info.shape[:-1]), -1)

    def _floats(self, info: TensorInfo) -> Tensor:
        if info.kind in _FLOATS:
            return torch.from_numpy(self._raw(info)).view(_FLOATS[info.kind]).view(info.shape)
        if info.kind in gguf_blocks.KINDS:
            return gguf_blocks.decode(self._rows(info), info.kind).dequantise().view(info.shape)
        # A damaged scale becomes a NaN or an infinity, which the model detects; a warning from numpy adds nothing.
        with np.errstate(all="ignore"):
            return torch.from_numpy(dequantize(self._rows(info).numpy(), info.kind)).view(info.shape)

    def _row_order(self, name: str, info: TensorInfo) -> Tensor | None:
        """Return the stored row of each row of a q or k projection that the file interleaves for RoPE."""
        if not self._architecture.interleaved or name.split(".")[-2] not in ("q_proj", "k_proj"):
            return None
        key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        heads, rows = self._config[key], info.shape[0]
        assert isinstance(heads, int)
        if heads < 1 or rows % (2 * heads):
            raise WeightsError(self.path, f"tensor {info.name!r} with {rows} rows does not split into {heads} heads")
        # Stored: [head, pair, half]; wanted: [head, half, pair].
        return torch.arange(rows).view(heads, -1, 2).transpose(1, 2).reshape(-1)

    def _rope_frequencies(self) -> NDArray[np.float32] | None:
        info = self._header.tensors.get("rope_freqs.weight")
        if info is None:
            return None
        if info.kind is not Kind.F32 or len(info.shape) != 1:
            raise WeightsError(self.path, "rope_freqs.weight is not a float32 vector")
        return self._raw(info).view(np.float32)

"""Reads a model's tensors from a weight file: checks name and shape, and stores matrices as kernels take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from voxlane.engine.errors import TensorError
from voxlane.engine.kernels.linear.linear import PackedPart, PackedWeight, pack_part, packable
from voxlane.engine.kernels.linear.weights import Weight as Weight
from voxlane.engine.models.kept_matrices import KeptMatrices
from voxlane.engine.weights.tensors import GROUP, WeightFile, quantise

Mode = Literal["packed", "float32", "bfloat16"]
Progress = Callable[[float], None]


class TensorReader:
    """Reads the tensors of one file and counts them, so that surplus tensors can be named.

    `aliases` maps the names a model asks for to those in the file; tensors outside it are not the model's.
    """

    def __init__(
        self,
        weights: WeightFile,
        aliases: dict[str, str],
        mode: Mode,
        device: torch.device,
        progress: Progress | None = None,
        kept: KeptMatrices | None = None,
    ) -> None:
        self._weights = weights
        self._kept = kept  # packed before
        self._aliases = aliases
        self._mode = mode
        self.device = device
        self._progress = progress
        self._taken: set[str] = set()
        self.parameters = 0
        # On CUDA products take rows of the weights' type; a CPU's kernels widen weights as they read.
        narrow = mode == "bfloat16" and device.type == "cuda"
        self.dtype = torch.bfloat16 if narrow else torch.float32  # of rows between kernels

    def vector(self, name: str, size: int) -> Tensor:
        """Return a norm's weight or the like, [size] float32."""
        return self._floats(name, (size,)).to(self.device, torch.float32)

    def bias(self, names: Sequence[str], sizes: Sequence[int]) -> Tensor:
        """Return the biases of a fused matrix one after the other, in the type of its products."""
        return torch.cat([self.vector(name, size) for name, size in zip(names, sizes, strict=True)]).to(self.dtype)

    def matrix(self, names: Sequence[str], outs: Sequence[int], inputs: int) -> Weight:
        """Return the matrices [out, inputs] fused along their rows, stored as the mode says."""
        shapes = [(name, (out, inputs)) for name, out in zip(names, outs, strict=True)]
        if self._mode == "packed" and inputs % GROUP == 0:
            return PackedWeight([self._part(name, shape) for name, shape in shapes])
        dtype = torch.bfloat16 if self._mode == "bfloat16" else torch.float32
        parts = [self._floats(name, shape).to(self.device, dtype) for name, shape in shapes]
        return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()

    def has(self, name: str) -> bool:
        """Return whether the file holds this tensor."""
        return name in self._aliases

    def matrices(self, name: str, count: int, outs: int, inputs: int) -> list[Weight]:
        """Return the matrices of a tensor [count, outs, inputs] one by one, stored as the mode says."""
        whole = self._floats(name, (count, outs, inputs))
        if self._mode == "packed" and inputs % GROUP == 0:
            return [PackedWeight([pack_part(quantise(part), self.device)]) for part in whole]
        dtype = torch.bfloat16 if self._mode == "bfloat16" else torch.float32
        return [part.to(self.device, dtype).contiguous() for part in whole]

    def table(self, names: Sequence[str], outs: Sequence[int], inputs: int) -> Tensor:
        """Return embedding tables [out, inputs] one after the other, never packed: rows are looked up."""
        dtype = torch.bfloat16 if self._mode == "bfloat16" else torch.float32
        shapes = zip(names, outs, strict=True)
        return torch.cat([self._floats(name, (out, inputs)).to(self.device, dtype) for name, out in shapes])

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of any shape as float32."""
        return self._floats(name, shape).to(self.device, torch.float32)

    def finish(self, ignored: Iterable[str] = ()) -> None:
        """Raise TensorError if the file holds a tensor that was not taken, `ignored` ones excepted."""
        surplus = sorted(self._aliases.keys() - self._taken - set(ignored))
        if surplus:
            others = f" (and {len(surplus) - 1} more)" if len(surplus) > 1 else ""
            raise TensorError(f"tensor {surplus[0]:.120} does not belong to this model{others}")
        if self._kept is not None:
            self._kept.save()

    def _part(self, name: str, shape: tuple[int, int]) -> PackedPart:
        source = self._source(name)
        if self._kept is not None and (part := self._kept.get(name, shape)) is not None:
            self._take(name, shape, shape)
            return part
        part = self._packed(name, source, shape)
        if self._kept is not None:
            self._kept.put(name, part)
        return part

    def _packed(self, name: str, source: str, shape: tuple[int, int]) -> PackedPart:
        blocks = self._weights.blocks(source)
        if blocks is None:
            blocks = quantise(self._floats(name, shape))
        else:
            self._take(name, blocks.shape, shape)
            if not packable(blocks):
                blocks = quantise(blocks.dequantise())
        try:
            return pack_part(blocks, self.device)
        except ValueError as error:
            raise TensorError(f"tensor {name}: {error}") from error

    def _floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._weights.tensor(self._source(name))
        self._take(name, tuple(tensor.shape), shape)
        return tensor

    def _source(self, name: str) -> str:
        if name not in self._aliases:
            raise TensorError(f"tensor {name} is missing")
        return self._aliases[name]

    def _take(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise TensorError(f"tensor {name} has shape {list(found)}, not {list(wanted)}")
        self._taken.add(name)
        self.parameters += torch.Size(wanted).numel()
        if self._progress is not None:
            self._progress(len(self._taken) / len(self._aliases))

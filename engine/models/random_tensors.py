"""Tensors of random numbers in the place of a file's, for checks and measurements: any model that is read by a reader.

A tensor's numbers depend on its name and its shape alone, so a model is the same on every device that draws on the same
kind of device.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from voxlane.engine.models.loading import Mode, TensorReader
from voxlane.engine.weights.tensors import Blocks


class NoFile:
    """A weight file that holds nothing."""

    config: dict[str, object] = {}  # noqa: RUF012

    def names(self) -> list[str]:
        """Return no name."""
        return []

    def tensor(self, name: str) -> Tensor:
        """Raise KeyError: there is no tensor."""
        raise KeyError(name)

    def blocks(self, name: str) -> Blocks | None:
        """Return None: there are no packed tensors."""
        return None


class RandomTensors(TensorReader):
    """Draws each tensor that a model asks for; products keep the size of their input, norms are near one."""

    def __init__(self, mode: Mode, device: torch.device, drawn_on: str | torch.device = "cpu") -> None:
        super().__init__(NoFile(), {}, mode, device)
        self._drawn_on = torch.device(drawn_on)

    def _floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        random = torch.Generator(self._drawn_on).manual_seed(zlib.crc32(name.encode()))
        self.parameters += math.prod(shape)
        if len(shape) == 1 and not name.endswith("bias"):
            return torch.rand(shape, generator=random, device=self._drawn_on) * 0.5 + 0.75
        scale = 0.1 if len(shape) == 1 else math.prod(shape[1:]) ** -0.5
        return torch.randn(shape, generator=random, device=self._drawn_on) * scale

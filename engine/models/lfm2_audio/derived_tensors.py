"""A weight file under other names: each tensor is one of the file's, or is made from some of them when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from voxlane.engine.weights.tensors import Blocks


class NamedTensors(Protocol):
    """Tensors by name."""

    def names(self) -> list[str]:
        """Return every tensor's name."""

    def tensor(self, name: str) -> Tensor:
        """Return one tensor."""


@dataclass(frozen=True, slots=True)
class Derived:
    """How a tensor is made."""

    sources: tuple[str, ...]  # names in the file
    make: Callable[..., Tensor]  # takes the sources in their order


class DerivedTensors:
    """The tensors of a file under other names, as a WeightFile."""

    def __init__(
        self, file: NamedTensors, sources: Mapping[str, str | Derived], config: dict[str, object] | None = None
    ) -> None:
        self.config: dict[str, object] = config or {}
        self._file = file
        self._sources = sources

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._sources)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor. KeyError if there is none."""
        source = self._sources[name]
        if isinstance(source, str):
            return self._file.tensor(source)
        return source.make(*map(self._file.tensor, source.sources))

    def blocks(self, name: str) -> Blocks | None:
        """Return None: files with these models hold plain floats."""
        return None


def halves(weight: Tensor, head_dim: int) -> Tensor:
    """Return rows [heads * head_dim, …], rotated pairs side by side, with the first of each in a head's first half."""
    return weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)

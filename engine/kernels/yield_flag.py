"""A step stands still on the device while somebody critical wants it: between layers, and not for ever.

Kernels that fill a device let nobody in until they end, whatever a stream's priority is: a short prompt beside a step
of 256 rows took as long as the rest of that step. It knows flags in the device's memory; who sets them, and which steps
give way, is the runner's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_NS = 4_000_000
"""How long a pass over the layers stands still in all; a step has one for its decodes and one for its prompts."""

EVERY_LAYERS = 2
"""Between how many layers it looks. A look takes a microsecond, two layers of a full step a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class YieldFlag:
    """Where somebody asks for the device, and what a pass over the layers has granted."""

    asked: Tensor  # [askers] int32: not 0 while one wants it
    waited_ns: Tensor  # [1] int64: by the pass under way

    @classmethod
    def make(cls, askers: int, device: torch.device) -> YieldFlag:
        """Return one that nobody asks for."""
        return cls(
            torch.zeros(askers, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int64, device=device)
        )


def yield_to_critical(way: YieldFlag, *, first: bool) -> None:
    """Wait on the device while somebody asks; `first` begins a pass's account. On a CPU nobody runs beside a step."""
    if way.asked.is_cuda:
        from voxlane.engine.kernels import yield_flag_triton

        yield_flag_triton.yield_to_critical(way, MOST_NS, first=first)

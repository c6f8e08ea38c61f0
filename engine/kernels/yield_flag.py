"""A step pauses on the device while a critical prompt runs: between layers, and for a limited time.

Kernels that fill a device let no other kernel run until they end, whatever its stream's priority: a short prompt beside
a step of 256 rows took as long as the rest of that step. The runner decides which launches set the flags in the
device's memory, and which steps yield.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_NS = 4_000_000
"""How long a pass over the layers may pause in all; a step has one pass, or one for decodes and one for prompts."""

EVERY_LAYERS = 2
"""A pass checks the flags every so many layers. A check takes a microsecond, two layers of a full step 0.33 ms."""


@dataclass(frozen=True, slots=True)
class YieldFlag:
    """The flags of critical prompts, and how long a pass over the layers has paused."""

    asked: Tensor  # [flags] int32: not 0 while a prompt wants the device
    waited_ns: Tensor  # [1] int64: by the pass under way

    @classmethod
    def make(cls, askers: int, device: torch.device) -> YieldFlag:
        """Return flags that are not set."""
        return cls(
            torch.zeros(askers, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int64, device=device)
        )


def yield_to_critical(yield_flag: YieldFlag, *, first: bool) -> None:
    """Wait on the device while a flag is set; `first` resets the pass's time. On a CPU nothing runs beside a step."""
    if yield_flag.asked.is_cuda:
        from voxlane.engine.kernels import yield_flag_triton

        yield_flag_triton.yield_to_critical(yield_flag, MOST_NS, first=first)

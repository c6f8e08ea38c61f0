"""Lets tensors on a CPU pass for a device's, so that whole models run through the Triton kernels in the interpreter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def pretended_cuda() -> Iterator[None]:
    """Make every operation take its CUDA path within the block; types and numbers are the CPU's."""
    told = {"is_cuda": property(lambda self: True), "is_cpu": property(lambda self: False)}
    told["pin_memory"] = lambda self: self  # type: ignore[assignment]
    before = {name: torch.Tensor.__dict__[name] for name in told if name in torch.Tensor.__dict__}
    for name, one in told.items():
        setattr(torch.Tensor, name, one)
    try:
        yield
    finally:
        for name in told:
            if name in before:
                setattr(torch.Tensor, name, before[name])
            else:
                delattr(torch.Tensor, name)

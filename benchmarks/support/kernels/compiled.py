"""Compile a Triton kernel for an H200 on any machine, without running it: registers, spills, shared memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MULTIPROCESSORS = 132
_QUARTERS = 4
_QUARTER_REGISTERS = 16_384
_SHARED_BYTES = 227 << 10
_OWN_BYTES = 1 << 10  # shared memory that the system takes for every program


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiled kernel needs."""

    name: str
    registers: int  # a thread
    stack_bytes: int  # a thread: spilled registers
    shared_bytes: int  # a program
    warps: int
    serial: bool = False  # tensor core products wait for each other, for lack of registers

    @property
    def fits(self) -> int:
        """The programs that a multiprocessor holds: its registers are four quarters, each for whole warps."""
        a_warp = -(-self.registers // 8) * 8 * 32
        by_registers = _QUARTERS * (_QUARTER_REGISTERS // a_warp) // self.warps
        return min(by_registers, _SHARED_BYTES // (self.shared_bytes + _OWN_BYTES), 64 // self.warps, 32)


class _Absent:
    """A driver that reports an H200 and can start nothing."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compiled(launch: Callable[[], object]) -> list[Compiled]:
    """Return the needs of the kernels that `launch` would start, compiled for an H200."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_Absent())
    run, found = JITFunction.run, []

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append(_look(kernel))
        return kernel

    JITFunction.run = compile_it
    try:
        launch()
    finally:
        JITFunction.run = run
    return found


def _look(kernel: Any) -> Compiled:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", "--dump-sass", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", said)}
    products = re.findall(r"HGMMA.*", said)
    waited = sum("gsb" in product for product in products)  # only the last of a series should wait: one of four or more
    serial = 2 * waited > len(products)
    meta = kernel.metadata
    return Compiled(meta.name, figures["REG"], figures["STACK"], meta.shared, meta.num_warps, serial)

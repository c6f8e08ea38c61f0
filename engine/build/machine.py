"""What this machine can do: how much memory is free, and how quickly it multiplies packed weights.

The speed of a CPU is measured once and kept in the cache folder, so that later starts are quick and make the same
choice. A GPU's copy bandwidth is measured each time it is asked for: that takes a few milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import time
from pathlib import Path

import torch

from voxlane.engine.kernels import native
from voxlane.engine.kernels.linear.linear import PackedPart, PackedWeight, linear
from voxlane.engine.weights import store

log = logging.getLogger(__name__)

SPEED_FILE = "speed.json"

_OUTPUTS, _INPUTS = 8192, 8192
"""67 million weights, 42 MB: more than the caches of most processors hold, as a model's layers are."""

_TILES = {4: (True, 320), 8: (False, 544)}
"""Whether a measured matrix has minimums, and the bytes of 16 outputs by 32 inputs, by the bits of a weight: see
kernels/linear/linear.py."""

_FILL = 0x33
"""Every byte of the measured matrix. Two of them as a float16 are 0.22: neither zero nor denormal."""

_AGREE, _WITHIN, _MOST_S = 3, 1.05, 2.0
"""The shortest time counts when _AGREE times are within this factor of it: a busy machine seldom repeats a good time.
After _MOST_S seconds the shortest time counts anyway."""

_COPY_BYTES, _COPIES = 1 << 28, 10
"""What is copied to measure a GPU: five times what its caches hold."""


def free_memory_bytes() -> int:
    """Return the memory that this process may still take: the machine's, or its control group's if that is less."""
    free = [room for room in (_meminfo(), _control_group()) if room is not None]
    return min(free) if free else 1 << 62  # neither is known: assume no limit


def weights_per_second(threads: int, bits: int = 4) -> float:
    """Return how many packed weights a second this machine multiplies for one row; the first call measures it."""
    kind = f"{platform.machine()} {native.description()} {_processor()}" + ("" if bits == 4 else f" {bits} bits")
    kept = store.cache_root() / SPEED_FILE
    known = _read(kept)
    if kind not in known:
        known[kind] = measure(bits)
        _write(kept, known)
        log.info("measured weights_per_second=%.3g bits=%d threads=%d", known[kind], bits, threads)
    return known[kind]


def measure(bits: int = 4) -> float:
    """Multiply one row with a large packed matrix until the shortest time repeats; return weights a second."""
    minimums, tile_bytes = _TILES[bits]
    tiles = torch.full((_OUTPUTS // 16, _INPUTS // 32 * tile_bytes), _FILL, dtype=torch.uint8)
    weight = PackedWeight([PackedPart(bits, minimums, _OUTPUTS, _INPUTS, tiles)])
    row = torch.ones(1, _INPUTS)
    times: list[float] = []
    until = time.perf_counter() + _MOST_S
    while not times or (time.perf_counter() < until and sum(one < _WITHIN * min(times) for one in times) < _AGREE):
        begin = time.perf_counter()
        linear(row, weight)
        times.append(time.perf_counter() - begin)
    return _OUTPUTS * _INPUTS / min(times)


def copy_bytes_per_second(device: torch.device) -> float:
    """Return how many bytes a second a GPU reads and writes when it copies: the shortest of a few copies."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times: list[float] = []
    for _ in range(_COPIES):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * _COPY_BYTES / min(times)


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _control_group(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return what the control group, such as a container's limit, leaves free; None if it sets no limit."""
    try:
        group = next(line[3:] for line in own.read_text(encoding="ascii").splitlines() if line.startswith("0::"))
        folder = root / group.strip().lstrip("/")
        most = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, StopIteration, ValueError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(names, platform.processor())


def _read(path: Path) -> dict[str, float]:
    """Return earlier measurements; none if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float) and value > 0}


def _write(path: Path, speeds: dict[str, float]) -> None:
    """Keep the measurements; if the folder takes no file, the next start measures again, a tenth of a second."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(speeds), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        log.warning("speed not kept: %s", error.strerror)
        with contextlib.suppress(OSError):
            partial.unlink()

"""Figures that benchmarks share: shares of sorted times, and what a process has taken of the processor.

It imports nothing that a measured process would not have imported itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least this share of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def quantiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 95th, 99th percentile and the largest, in milliseconds; nothing of nothing."""
    if not seconds:
        return {}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(seconds, share) * 1e3, 2) for name, share in shares.items()}


def in_shares(times_ms: dict[str, float]) -> str:
    """Return what quantiles_ms() found, but for the largest, as a cell of a table."""
    return " / ".join(f"{times_ms[share]:.1f}" for share in ("p50", "p95", "p99") if times_ms)


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""Percentiles.

It imports only what every measured process imports anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def quantiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th and 99th percentile and the largest in milliseconds; {} without values."""
    if not seconds:
        return {}
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(seconds, share) * 1e3, 2) for name, share in shares.items()}


def in_shares(times_ms: dict[str, float]) -> str:
    """Return the percentiles of quantiles_ms() as a cell of a table."""
    return " / ".join(f"{times_ms[share]:.1f}" for share in ("p50", "p95", "p99") if times_ms)

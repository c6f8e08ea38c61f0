"""Many figures in a few numbers: distributions with their n, and shares with Wilson intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from voxlane_lab.definitions import METRICS
from voxlane_lab.metrics import StepFigures

Z95 = 1.959963984540054  # the normal distribution's 97.5 % point


class Distribution(Struct, frozen=True):
    """The values of a number or a count over all steps that measure it."""

    n: int
    p50: float
    p95: float
    min: float
    max: float
    mean: float


class FlagShare(Struct, frozen=True):
    """How often a flag is set, with the Wilson interval of 95 %."""

    n: int
    hits: int
    share: float
    low: float
    high: float


class Summary(Struct, frozen=True):
    """The figures of many calls. A metric that no step measures is absent."""

    numbers: dict[str, Distribution] = {}
    flags: dict[str, FlagShare] = {}
    steps: dict[str, int] = {}  # how many steps had each result


def summarise(steps: Iterable[StepFigures]) -> Summary:
    """Return the distributions and shares of all steps."""
    steps = list(steps)
    numbers: dict[str, Distribution] = {}
    flags: dict[str, FlagShare] = {}
    for name, metric in METRICS.items():
        values = [value for step in steps if (value := step.values.get(name)) is not None]
        if values and metric.kind == "flag":
            flags[name] = share_of(sum(map(bool, values)), len(values))
        elif values:
            numbers[name] = distribution([float(value) for value in values])
    results: dict[str, int] = {}
    for step in steps:
        results[step.result] = results.get(step.result, 0) + 1
    return Summary(numbers, flags, results)


def distribution(values: Sequence[float]) -> Distribution:
    """Return the distribution of one or more values; percentiles lie between two values where need be."""
    found = np.asarray(values, np.float64)
    p50, p95 = np.percentile(found, (50, 95))
    return Distribution(len(found), *(float(one) for one in (p50, p95, found.min(), found.max(), found.mean())))


def share_of(hits: int, n: int) -> FlagShare:
    """Return a share of one or more events."""
    low, high = wilson(hits, n)
    return FlagShare(n, hits, hits / n, low, high)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the Wilson interval of 95 % of a share."""
    share, square = hits / n, Z95 * Z95
    middle = share + square / (2 * n)
    width = Z95 * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low, high = ((middle + side * width) / (1 + square / n) for side in (-1, 1))
    # Rounding must not put the share itself outside.
    return max(0.0, min(low, share)), min(1.0, max(high, share))

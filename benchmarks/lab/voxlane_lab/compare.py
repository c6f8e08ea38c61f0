"""Compare two runs of the same scenarios: which figures differ by more than chance. Pure.

Steps are paired by scenario, repeat and number, so both runs must have the same seed. Steps of one call are not
independent: chance is drawn for calls, not for steps. A metric counts as better or worse if

- a signed-rank test of the pairs, with one sign a call, finds more than the smallest difference that matters (20 ms,
  one tick of the card), after Holm's correction for all metrics that can differ, at a level of 2 %, and
- the bootstrap interval of 95 % of the difference, over calls, does not reach zero.

So a server that is compared with itself shows a difference in at most 2 % of all comparisons, however many metrics
there are. The price: single calls that are slow by chance hide small differences, and more calls are the remedy.

A metric that is equal in nearly all pairs cannot pass the test, whatever the signs of its differences. Such metrics
are not counted in the correction (after Tarone): they would hide the others. A metric of so few calls that it could not
pass even if all of them differed has too few pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from voxlane_lab.definitions import METRICS
from voxlane_lab.metrics import StepFigures
from voxlane_lab.results import RunResult

LEVEL = 0.02  # the chance that any metric of two equal servers differs
SMALLEST = {"ms": 20.0}  # the smallest difference that matters, by unit
SMALLEST_SHARE = 0.05  # and of flags and counts
RESAMPLES = 2000
AT_ONCE = 200  # resamples that are in memory together
EXACT = 60  # calls up to which the signed-rank test is exact
NOT_COMPARED = {"late_ms"}  # about the tester

DifferenceVerdict = Literal["better", "worse", "no difference", "too few pairs"]
_Floats = NDArray[np.float64]


class Difference(Struct, frozen=True):
    """How a metric of the second run differs from the first."""

    metric: str
    pairs: int  # steps that both runs have measured
    calls: int
    before: float  # the first run: the median of a number or a count, the share of a flag
    after: float
    difference: float  # of the pairs: the median for numbers in ms, the mean for flags and counts
    low: float  # the bootstrap interval of 95 %
    high: float
    chance: float  # of such a difference between equal servers, corrected for all metrics
    verdict: DifferenceVerdict


class Comparison(Struct, frozen=True):
    """All metrics that both runs have measured."""

    differences: list[Difference]
    only_first: int = 0  # steps that the other run does not have
    only_second: int = 0

    @property
    def worse(self) -> list[str]:
        """The metrics that are worse in the second run."""
        return [one.metric for one in self.differences if one.verdict == "worse"]


def compare(first: RunResult, second: RunResult, *, seed: int = 1) -> Comparison:
    """Return how the second run differs from the first."""
    before, after = dict(_steps(first)), dict(_steps(second))
    rows = []
    for name in METRICS:
        pairs = _pairs(name, before, after)
        if name not in NOT_COMPARED and pairs:
            rows.append((name, _table(pairs)))
    able, limit = able_to_differ({name: 2 * 0.5**table.differing for name, table in rows})
    chances = holm({name: _chance(name, table) for name, table in rows if name in able})
    for name, table in rows:
        if name not in able and 2 * 0.5**table.calls <= limit:
            chances[name] = 1.0  # there are enough calls, and nearly all of them are equal
    return Comparison(
        [_difference(name, table, chances.get(name), np.random.default_rng(seed)) for name, table in rows],
        len(before.keys() - after.keys()),
        len(after.keys() - before.keys()),
    )


_Key = tuple[str, int, int]
_Pair = tuple[_Key, float, float]


@dataclass(frozen=True, slots=True)
class _Table:
    """The pairs of a metric."""

    first: _Floats
    second: _Floats
    call: NDArray[np.intp]  # the number of each pair's call

    @property
    def differences(self) -> _Floats:
        return self.second - self.first

    @property
    def calls(self) -> int:
        return int(self.call.max()) + 1

    @property
    def differing(self) -> int:
        """The calls in which the runs differ at all."""
        return len(np.unique(self.call[np.abs(self.differences) > 1e-9]))


def _steps(result: RunResult) -> Iterator[tuple[_Key, StepFigures]]:
    for scenario in result.scenarios:
        for call in scenario.calls:
            for step in call.steps:
                yield (scenario.name, call.repeat, step.number), step


def _pairs(name: str, before: Mapping[_Key, StepFigures], after: Mapping[_Key, StepFigures]) -> list[_Pair]:
    found = []
    for key in sorted(before.keys() & after.keys()):
        one, other = before[key].values.get(name), after[key].values.get(name)
        if one is not None and other is not None:
            found.append((key, float(one), float(other)))
    return found


def _table(pairs: Sequence[_Pair]) -> _Table:
    calls: dict[tuple[str, int], int] = {}
    numbers = [calls.setdefault(key[:2], len(calls)) for key, _, _ in pairs]
    return _Table(
        np.array([one for _, one, _ in pairs]), np.array([other for _, _, other in pairs]), np.array(numbers, np.intp)
    )


def _smallest(name: str) -> float:
    return SMALLEST.get(METRICS[name].unit, SMALLEST_SHARE)


def _chance(name: str, table: _Table) -> float:
    """Return the chance of differences this far beyond the smallest one that matters."""
    # A shift by a smallest difference would hide single flags; for them the difference itself must be large enough.
    shift = _smallest(name) if METRICS[name].unit in SMALLEST else 0.0
    up, down = (signed_rank(side * table.differences - shift, table.call) for side in (1, -1))
    return min(1.0, 2 * min(up, down))


def _middle(name: str, values: _Floats, weights: _Floats) -> _Floats:
    """Return for each row of weights the median of numbers, or the mean of flags and counts."""
    if METRICS[name].kind != "number":
        return np.asarray(weights @ values / weights.sum(axis=1))
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[:, order], axis=1)
    half = sums[:, -1:] / 2
    below, above = (sums < half).sum(axis=1), (sums <= half).sum(axis=1)
    return np.asarray((values[order][below] + values[order][above]) / 2)


def _interval(name: str, table: _Table, chances: np.random.Generator) -> tuple[float, float]:
    """Return the bootstrap interval of 95 % of the difference: calls are drawn, with all their steps."""
    found = []
    for _ in range(RESAMPLES // AT_ONCE):
        drawn = chances.multinomial(table.calls, np.full(table.calls, 1 / table.calls), AT_ONCE)
        found.append(_middle(name, table.differences, drawn[:, table.call].astype(np.float64)))
    low, high = np.percentile(np.concatenate(found), (2.5, 97.5))
    return float(low), float(high)


def _difference(name: str, table: _Table, chance: float | None, chances: np.random.Generator) -> Difference:
    low, high = _interval(name, table, chances)
    once = np.ones((1, len(table.first)))
    before, after, found = (
        float(_middle(name, values, once)[0]) for values in (table.first, table.second, table.differences)
    )
    verdict: DifferenceVerdict = "no difference"
    if chance is None:
        verdict = "too few pairs"
    elif chance <= LEVEL and abs(found) >= _smallest(name) and (low > 0 or high < 0):
        verdict = "worse" if found > 0 else "better"
    known = 1.0 if chance is None else chance
    return Difference(name, len(table.first), table.calls, before, after, found, low, high, known, verdict)


def able_to_differ(least: Mapping[str, float]) -> tuple[set[str], float]:
    """Return the metrics that can pass a test of them all, and the chance that such a metric must be able to have.

    `least` is the least chance that each metric can have, whatever the signs of its differences.
    """
    count = 1
    while len(able := {name for name, chance in least.items() if chance <= LEVEL / count}) > count:
        count += 1
    return able, LEVEL / count


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Return the chances corrected for their number, after Holm."""
    found: dict[str, float] = {}
    worst = 0.0
    for rank, (name, chance) in enumerate(sorted(chances.items(), key=lambda one: (one[1], one[0]))):
        worst = max(worst, min(1.0, chance * (len(chances) - rank)))
        found[name] = worst
    return found


def signed_rank(differences: _Floats, call: NDArray[np.intp] | None = None) -> float:
    """Return the chance of so high a sum of signed ranks if the sign of each call's differences were drawn.

    Differences of zero are left out. Without `call` every difference is a call of its own.
    """
    # Twice the mean rank of equal values is a whole number.
    kept = np.abs(differences) > 1e-9
    values = differences[kept]
    if not len(values):
        return 1.0
    _, inverse, counts = np.unique(np.round(np.abs(values), 6), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[inverse]
    signed = np.where(values > 0, doubled, -doubled)
    sums = signed if call is None else np.bincount(call[kept], signed).astype(np.int64)
    sums = sums[sums != 0]
    if len(sums) > EXACT:
        spread = math.sqrt(float((sums.astype(np.float64) ** 2).sum()))
        return 0.5 * math.erfc(float(sums.sum()) / (spread * math.sqrt(2)))
    return _chance_of_sum(np.abs(sums), int(sums[sums > 0].sum()))


def _chance_of_sum(sizes: NDArray[np.int64], least: int) -> float:
    """Return the chance that the sum of sizes is at least so high if each is in it or not by a coin."""
    chances = np.zeros(int(sizes.sum()) + 1)
    chances[0] = 1.0
    for size in sizes:
        moved = np.zeros_like(chances)
        moved[size:] = chances[: len(chances) - size]
        chances = (chances + moved) / 2
    return float(chances[least:].sum())

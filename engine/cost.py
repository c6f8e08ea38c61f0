"""What a step will cost, learnt from the steps before it. Pure arithmetic: no clock, no tensors.

T = base + per_row · rows + per_prefill · prefill tokens + per_context · context tokens read
        + per_pair · (prefill tokens × context)

Non-negative ridge regression on the relative error, with forgetting. Coefficients at or above zero mean that more work
never looks cheaper; the problem stays convex, so it cannot diverge however odd the history is.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGETTING = 0.98
"""Weight of a step against the next: a machine that slows down is believed after about fifty steps."""

ANCHOR_STEPS = 5.0
"""How many steps the calibration at start-up weighs for ever. It decides what recent steps do not show: an engine that
has run one request for a minute must still know that a second one is cheap."""

SWEEPS = 4
"""Passes of coordinate descent after each step. They start from the last answer, so few are enough."""

# Scales bring typical features near 1, which keeps the problem well conditioned.
_SCALES = (1.0, 8.0, 64.0, 4096.0, 65536.0)
_PRIOR_MS = (4.0, 4.0, 64.0, 1.0, 1.0)  # milliseconds per scaled feature, before anything was measured
_RIDGE = 1e-6  # pull towards the prior: decides only what was never measured at all


@dataclass(slots=True)
class Work:
    """What a step holds, as the cost model sees it."""

    rows: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0  # cached tokens read by all rows
    pairs: int = 0  # prefill tokens × their context

    def plus(self, count: int, context: int) -> Work:
        """Return this work with a row of `count` new tokens that ends at `context` tokens added."""
        prefill = count if count > 1 else 0
        return Work(
            self.rows + 1,
            self.prefill_tokens + prefill,
            self.context_tokens + context,
            self.pairs + prefill * context,
        )

    def features(self) -> list[float]:
        """Return the scaled feature vector."""
        values = (1.0, self.rows, self.prefill_tokens, self.context_tokens, self.pairs)
        return [value / scale for value, scale in zip(values, _SCALES, strict=True)]


class CostModel:
    """Predicts a step's seconds from its work."""

    def __init__(self) -> None:
        size = len(_SCALES)
        self._weights = list(_PRIOR_MS)
        self._products = [[0.0] * size for _ in range(size)]  # sum of x xᵀ, x in units of the measured time
        self._targets = [0.0] * size  # sum of x
        self._anchor_products = [[_RIDGE if i == j else 0.0 for j in range(size)] for i in range(size)]
        self._anchor_targets = [_RIDGE * prior for prior in _PRIOR_MS]
        self._steps = 0

    def predict(self, work: Work) -> float:
        """Return the expected seconds of a step with this work."""
        return sum(w * x for w, x in zip(self._weights, work.features(), strict=True)) / 1e3

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a step that took `seconds`. Outliers (a stall, a page fault storm) are clipped, not believed."""
        expected = max(self.predict(work) * 1e3, 0.1)
        measured = min(max(seconds * 1e3, expected / 4), expected * 4)
        x = [feature / measured for feature in work.features()]
        for i, xi in enumerate(x):
            row = self._products[i]
            for j, xj in enumerate(x):
                row[j] = FORGETTING * row[j] + xi * xj
            self._targets[i] = FORGETTING * self._targets[i] + xi
        self._steps += 1
        for _ in range(SWEEPS):
            self._descend()

    def anchor(self) -> None:
        """Keep what was learnt so far as the calibration: later steps correct it where they show otherwise."""
        share = ANCHOR_STEPS / max(self._steps, 1)
        for i, row in enumerate(self._products):
            self._anchor_targets[i] += share * self._targets[i]
            for j, product in enumerate(row):
                self._anchor_products[i][j] += share * product

    def _descend(self) -> None:
        for i in range(len(self._weights)):
            row = [a + b for a, b in zip(self._products[i], self._anchor_products[i], strict=True)]
            others = sum(p * w for p, w in zip(row, self._weights, strict=True)) - row[i] * self._weights[i]
            self._weights[i] = max((self._targets[i] + self._anchor_targets[i] - others) / row[i], 0.0)

    def largest_chunk(self, work: Work, computed: int, most: int, seconds: float) -> int:
        """Return how many tokens, up to `most`, a row at `computed` can add to `work` and stay within `seconds`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict(work.plus(middle, computed + middle)) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

"""What a step will cost, learnt from the steps before it. Pure arithmetic: no clock, no tensors.

T = base + per_row · rows + per_prefill · prefill tokens + per_context · context tokens read
        + per_pair · (prefill tokens × context)

Ridge regression with forgetting (recursive least squares on scaled features), coefficients kept at or above zero, so
that more work never looks cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass

FORGETTING = 0.98
"""Weight of a step against the next: a machine that slows down is believed after about fifty steps."""

# Scales bring typical features near 1, which keeps the update well conditioned.
_SCALES = (1.0, 8.0, 64.0, 4096.0, 65536.0)
_PRIOR_MS = (4.0, 4.0, 64.0, 1.0, 1.0)  # milliseconds per scaled feature, before anything was measured
_PRIOR_VARIANCE = 1e3
_VARIANCE_LIMIT = 1e6  # forgetting inflates directions that never vary; past this the update would be noise


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
        self._covariance = [[_PRIOR_VARIANCE if i == j else 0.0 for j in range(size)] for i in range(size)]

    def predict(self, work: Work) -> float:
        """Return the expected seconds of a step with this work."""
        return sum(max(w, 0.0) * x for w, x in zip(self._weights, work.features(), strict=True)) / 1e3

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a step that took `seconds`. Outliers (a stall, a page fault storm) are clipped, not believed."""
        features = work.features()
        expected = max(self.predict(work) * 1e3, 0.1)
        measured = min(max(seconds * 1e3, expected / 4), expected * 4)
        gain_source = [sum(row[j] * features[j] for j in range(len(features))) for row in self._covariance]
        denominator = FORGETTING + sum(g * x for g, x in zip(gain_source, features, strict=True))
        error = measured - sum(w * x for w, x in zip(self._weights, features, strict=True))
        for i, gain in enumerate(gain_source):
            self._weights[i] = max(self._weights[i] + gain / denominator * error, 0.0)
        settled = [
            [self._covariance[i][j] - gi * gj / denominator for j, gj in enumerate(gain_source)]
            for i, gi in enumerate(gain_source)
        ]
        forget = max(settled[i][i] for i in range(len(settled))) < _VARIANCE_LIMIT
        self._covariance = [[v / FORGETTING for v in row] for row in settled] if forget else settled

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

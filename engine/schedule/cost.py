"""How long a step will take, learnt from the steps before it. Pure arithmetic: no clock, no tensors.

T = base + per_row · rows + per_prefill · prefill tokens + per_context · context tokens read
        + per_pair · (prefill tokens × context) + prompts, if there is any

The last term is the fixed cost of prompts on a GPU, however short they are: there they are a pass of their own, or have
attention and choices of their own in the pass of the decodes.

Non-negative ridge regression on the relative error, with forgetting. Coefficients at or above zero mean that more work
never looks cheaper. The problem stays convex, so it cannot diverge however odd the history is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FORGETTING = 0.98
"""Weight of a step against the next: the model follows a machine that slows down within about fifty steps."""

FORMATIVE_STEPS = 100
"""The coefficients are fitted after each of the first steps."""

SOLVED_EVERY = 16
"""Later steps change the coefficients little, and a fit takes 0.2 ms: it is done once for this many steps."""

ANCHOR_STEPS = 5.0
"""How many steps the calibration at start-up weighs, for ever. It decides what recent steps do not show: an engine that
has run one request for a minute must still know that a second one is cheap."""

# Scales bring typical features near 1, which keeps the problem well conditioned.
_SCALES = (1.0, 8.0, 64.0, 4096.0, 65536.0, 1.0)
_PRIOR_MS = (4.0, 4.0, 64.0, 1.0, 1.0, 0.0)  # milliseconds per scaled feature, before anything was measured
_SHORTEST_MS = 0.1  # no step is shorter; a measured time near zero would weigh without bound
_RIDGE = 1e-6  # pull towards the prior: it decides only what was never measured


@dataclass(slots=True)
class Work:
    """The size of a step, as the cost model sees it."""

    rows: int = 0
    prefill_tokens: int = 0
    context_tokens: int = 0  # cached tokens read by all rows
    pairs: int = 0  # prefill tokens × their context

    @property
    def prompts(self) -> int:
        """1 if there is any prompt, else 0."""
        return int(self.prefill_tokens > 0)

    def plus(self, count: int, context: int) -> Work:
        """Return this work with a row of `count` new tokens that ends at `context` tokens added."""
        prefill = count if count > 1 else 0
        return Work(
            self.rows + 1,
            self.prefill_tokens + prefill,
            self.context_tokens + context,
            self.pairs + prefill * context,
        )

    def add(self, count: int, context: int) -> None:
        """Add a row of `count` new tokens that ends at `context` tokens."""
        prefill = count if count > 1 else 0
        self.rows += 1
        self.prefill_tokens += prefill
        self.context_tokens += context
        self.pairs += prefill * context

    def features(self) -> list[float]:
        """Return the scaled feature vector."""
        values = (1.0, self.rows, self.prefill_tokens, self.context_tokens, self.pairs, self.prompts)
        return [value / scale for value, scale in zip(values, _SCALES, strict=True)]


class CostModel:
    """Predicts a step's seconds from its work."""

    def __init__(self) -> None:
        size = len(_SCALES)
        self._weights = list(_PRIOR_MS)
        # Sums over the steps of x xᵀ and of x, where x are the features divided by the measured time.
        self._products = np.zeros((size, size))
        self._targets = np.zeros(size)
        self._anchor_products = np.eye(size) * _RIDGE
        self._anchor_targets = np.array(_PRIOR_MS) * _RIDGE
        # x of the steps that are not in the sums yet.
        self._fresh: list[list[float]] = []
        self._steps = 0

    def predict(self, work: Work) -> float:
        """Return the expected seconds of a step with this work."""
        return self._seconds(work.rows, work.prefill_tokens, work.context_tokens, work.pairs)

    @property
    def prompts_s(self) -> float:
        """How much longer a step takes if it holds any prompt, however short."""
        return self._weights[5] / 1e3

    def predict_with(self, work: Work, count: int, context: int) -> float:
        """Return the expected seconds of `work.plus(count, context)`."""
        prefill = count if count > 1 else 0
        return self._seconds(
            work.rows + 1, work.prefill_tokens + prefill, work.context_tokens + context, work.pairs + prefill * context
        )

    def _seconds(self, rows: int, prefill_tokens: int, context_tokens: int, pairs: int) -> float:
        # Written out, and from plain numbers: a plan for 256 rows calls this some thousand times.
        base, row, prefill, context, pair, prompts = self._weights
        return (
            base / _SCALES[0]
            + row * rows / _SCALES[1]
            + prefill * prefill_tokens / _SCALES[2]
            + context * context_tokens / _SCALES[3]
            + pair * pairs / _SCALES[4]
            + (prompts if prefill_tokens else 0.0)
        ) / 1e3

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from a step that took `seconds`.

        Errors count relative to what was measured, so a stall of seconds weighs next to nothing.
        """
        took_ms = max(seconds * 1e3, _SHORTEST_MS)
        self._fresh.append([feature / took_ms for feature in work.features()])
        self._steps += 1
        if self._steps <= FORMATIVE_STEPS or len(self._fresh) >= SOLVED_EVERY:
            self._add_up()
            self._solve()

    def anchor(self) -> None:
        """Keep what was learnt so far as the calibration: later steps correct it where they show otherwise."""
        self._add_up()
        share = ANCHOR_STEPS / max(self._steps, 1)
        self._anchor_products += share * self._products
        self._anchor_targets += share * self._targets

    def _add_up(self) -> None:
        if self._fresh:
            x = np.array(self._fresh)  # [steps, features]
            forgotten = FORGETTING ** np.arange(len(x), -1, -1)
            weighed = x * forgotten[1:, None]
            self._products = forgotten[0] * self._products + weighed.T @ x
            self._targets = forgotten[0] * self._targets + weighed.sum(axis=0)
            self._fresh.clear()

    def _solve(self) -> None:
        """Fit the coefficients; the most negative one is set to zero and the rest fitted again until none is left."""
        products, targets = self._products + self._anchor_products, self._targets + self._anchor_targets
        active = list(range(len(self._weights)))
        while True:
            fitted = np.linalg.solve(products[np.ix_(active, active)], targets[active])
            worst = int(fitted.argmin())
            if fitted[worst] >= 0:
                break
            del active[worst]
        self._weights = [0.0] * len(self._weights)
        for index, weight in zip(active, fitted.tolist(), strict=True):
            self._weights[index] = weight

    def largest_chunk(self, work: Work, computed: int, most: int, seconds: float) -> int:
        """Return how many tokens, up to `most`, a row at `computed` can add to `work` and stay within `seconds`."""
        if self.predict_with(work, most, computed + most) <= seconds:  # nearly always
            return most
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict_with(work, middle, computed + middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

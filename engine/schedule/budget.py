"""How long a step may take, and so how much of a request still fits into it. Pure: plans and costs in, counts out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from voxlane.engine.schedule.cost import Work
from voxlane.engine.schedule.plan import MIN_CHUNK, ModelBatch, ModelResources, Plan
from voxlane.engine.schedule.request import ModelName, Request

NOTHING = ModelBatch()
"""The batch of a model that has no rows in a plan; never added to."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step, shared by all its models."""

    resources: Mapping[ModelName, ModelResources]
    budget_s: float
    # Whether a critical request is among those planned: then nothing may make the step longer than the budget.
    lane_in_use: bool

    def fits_one(self, plan: Plan, request: Request) -> bool:
        """Return whether the step has time for the next token of a decoding request; an empty step always has."""
        if self.budget_s == math.inf or not plan.rows:
            return True
        load = plan.loads.get(request.model, NOTHING)
        seconds = self.resources[request.model].cost.predict_with(load.work, 1, request.computed + 1)
        return seconds <= self._left_s(plan, request.model, load)

    def fits_all(self, requests: Iterable[Request]) -> bool:
        """Return whether a step has time for the next token of all requests that decode, if it holds nothing else."""
        if self.budget_s == math.inf:
            return True
        work: dict[ModelName, Work] = {}
        for request in requests:
            if request.decoding:
                work.setdefault(request.model, Work()).add(1, request.computed + 1)
        return sum(self.resources[model].cost.predict(load) for model, load in work.items()) <= self.budget_s

    def chunk(self, plan: Plan, request: Request, most: int) -> int:
        """Return how many of the request's pending tokens, up to `most`, the step has time for; 0: none in this step.

        A request that cannot be cut gets all of them or none, whatever `most` says: it is short, and no step would
        hold less of it.
        """
        wanted = request.pending if request.whole else min(request.pending, most)
        if self.budget_s == math.inf:
            return wanted
        resources, load = self.resources[request.model], plan.loads.get(request.model, NOTHING)
        if request.whole:
            left_s = self._left_s(plan, request.model, NOTHING)
            return wanted if not plan.rows or seconds_with(resources, load, request, wanted) <= left_s else 0
        if request.starved and not request.decoding and self.lane_in_use:
            return min(wanted, MIN_CHUNK)  # it goes first, and leaves time for the critical ones
        left_s = self._left_s(plan, request.model, load)
        fits = resources.cost.largest_chunk(load.work, request.computed, wanted, left_s)
        smallest = min(MIN_CHUNK, wanted)
        if fits >= smallest:
            return fits
        # An empty step always takes one request, and a step of decodes always one prompt, so that prompts are read too.
        first_prompt = not request.decoding and load.work.prefill_tokens == 0 and not self.lane_in_use
        if plan.rows and not first_prompt:
            return 0
        # The fixed cost of a prompt is paid anyway; for half as much again a GPU reads hundreds of tokens.
        least_s = resources.cost.predict_with(load.work, smallest, request.computed + smallest)
        worth_s = least_s + resources.cost.prompts_s / 2
        return max(smallest, resources.cost.largest_chunk(load.work, request.computed, wanted, worth_s))

    def _left_s(self, plan: Plan, model: ModelName, load: ModelBatch) -> float:
        """Return the seconds that the other models, and the encoder's part of this one's load, leave of the step."""
        left_s = self.budget_s
        if len(plan.loads) > 1 or model not in plan.loads:
            left_s -= sum(other.seconds(self.resources[name]) for name, other in plan.loads.items() if name != model)
        if load.encoding.rows:
            left_s -= ModelBatch(encoding=load.encoding).seconds(self.resources[model])
        return left_s


def seconds_with(resources: ModelResources, load: ModelBatch, request: Request, count: int) -> float:
    """Return how long a load takes with `count` more tokens of the request; a unit counts as a prompt of its size."""
    seconds = resources.cost.predict_with(load.work, count, request.computed + count)
    if resources.encoder is None:
        return seconds
    if request.unencoded:
        return seconds + resources.encoder.predict_with(load.encoding, request.encoding, request.encoding)
    return seconds + (resources.encoder.predict(load.encoding) if load.encoding.rows else 0.0)

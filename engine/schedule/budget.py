"""How long a step may take, and so how much of a request still fits into it. Pure: plans and costs in, counts out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from voxlane.engine.schedule.cost import Work
from voxlane.engine.schedule.plan import MIN_CHUNK, ModelBatch, ModelResources, Plan
from voxlane.engine.schedule.request import ModelName, Request

NOTHING = ModelBatch()
"""What a plan without a model's rows asks of it; never added to."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step may take, and so how much of a request still fits into it."""

    stations: Mapping[ModelName, ModelResources]
    budget_s: float
    lane_in_use: bool  # a critical request is about: nothing may make its step longer than the budget

    def fits_one(self, plan: Plan, request: Request) -> bool:
        """Return whether the step has time for the one token of a decoding request; an empty step always has."""
        if self.budget_s == math.inf or not plan.rows:
            return True
        load = plan.loads.get(request.model, NOTHING)
        seconds = self.stations[request.model].cost.predict_with(load.work, 1, request.computed + 1)
        return seconds <= self._left_s(plan, request.model, load)

    def fits_all(self, requests: Iterable[Request]) -> bool:
        """Return whether a step has time for the next token of all that decode, if nothing else is in it."""
        if self.budget_s == math.inf:
            return True
        work: dict[ModelName, Work] = {}
        for request in requests:
            if request.decoding:
                work.setdefault(request.model, Work()).add(1, request.computed + 1)
        return sum(self.stations[model].cost.predict(load) for model, load in work.items()) <= self.budget_s

    def chunk(self, plan: Plan, request: Request, most: int) -> int:
        """Return how much of what the request has pending, up to `most`, the step has time for; 0: nothing this time.

        What cannot be cut takes all of it or nothing, whatever `most` says: it is short, and has nowhere else to go.
        """
        wanted = request.pending if request.whole else min(request.pending, most)
        if self.budget_s == math.inf:
            return wanted
        station, load = self.stations[request.model], plan.loads.get(request.model, NOTHING)
        if request.whole:
            left_s = self._left_s(plan, request.model, NOTHING)
            return wanted if not plan.rows or seconds_with(station, load, request, wanted) <= left_s else 0
        if request.starved and not request.decoding and self.lane_in_use:
            return min(wanted, MIN_CHUNK)  # it goes first, but the lane behind it stays open
        left_s = self._left_s(plan, request.model, load)
        fits = station.cost.largest_chunk(load.work, request.computed, wanted, left_s)
        smallest = min(MIN_CHUNK, wanted)
        if fits >= smallest:
            return fits
        # An empty step always takes somebody, and a step of decodes always one prompt, so that prompts are read too.
        first_prompt = not request.decoding and load.work.prefill_tokens == 0 and not self.lane_in_use
        if plan.rows and not first_prompt:
            return 0
        # What prompts cost however short they are is paid then; for half as much again a GPU reads hundreds of tokens.
        least_s = station.cost.predict_with(load.work, smallest, request.computed + smallest)
        worth_s = least_s + station.cost.prompts_s / 2
        return max(smallest, station.cost.largest_chunk(load.work, request.computed, wanted, worth_s))

    def _left_s(self, plan: Plan, model: ModelName, load: ModelBatch) -> float:
        """Return what the other models, and the encoder's part of this one's load, leave of the step."""
        left_s = self.budget_s
        if len(plan.loads) > 1 or model not in plan.loads:
            left_s -= sum(other.seconds(self.stations[name]) for name, other in plan.loads.items() if name != model)
        if load.encoding.rows:
            left_s -= ModelBatch(encoding=load.encoding).seconds(self.stations[model])
        return left_s


def seconds_with(station: ModelResources, load: ModelBatch, request: Request, count: int) -> float:
    """Return how long a load takes with `count` of the request's pending; a unit counts as a prompt of its size."""
    seconds = station.cost.predict_with(load.work, count, request.computed + count)
    if station.encoder is None:
        return seconds
    if request.unencoded:
        return seconds + station.encoder.predict_with(load.encoding, request.states, request.states)
    return seconds + (station.encoder.predict(load.encoding) if load.encoding.rows else 0.0)

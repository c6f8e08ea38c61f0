"""A step under way: launched on every model of its plan, waited for, collected. A model's fault is its rows' alone.

It knows engines, what their work costs and a clock; what is in a step, and what its outcomes mean, is the core's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import ModelBatch, ModelResources, Plan
from voxlane.engine.schedule.request import ModelName, Request
from voxlane.engine.schedule.scheduler import Scheduler

log = logging.getLogger(__name__)

_FAULTS = (RuntimeError, ValueError, IndexError, TypeError, OSError, MemoryError)


class Engine(Protocol):
    """What runs one model's part of a plan, or in a simulation something that pretends to."""

    phases: dict[str, tuple[float, float]]  # of the step that was collected last
    overlaps: bool  # whether a launch returns before its work is done

    def run(self, load: ModelBatch) -> Sequence[Outcome]:
        """Launch and collect."""

    def launch(self, load: ModelBatch) -> Any:
        """Begin; return what the others want to know of it. At most one step is neither waited for nor collected."""

    def done(self, ticket: Any) -> bool:
        """Return whether `wait` would return at once, or cannot say."""

    def wait(self, ticket: Any) -> None:
        """Wait until what was launched is done, and what it brought is safe from the next launch."""

    def collect(self, ticket: Any) -> Sequence[Outcome]:
        """Return the outcomes, in the order of the load's rows; another step may have been launched meanwhile."""

    def samples_on_device(self, request: Request) -> bool:
        """Return whether a step can be launched that goes on with a token of the request the host has not seen."""

    def prepare(self, load: ModelBatch) -> None:
        """Make ready what `launch` of this load will need, while a step is under way; it may never come."""

    @property
    def express(self) -> ConcurrentPrefill | None:
        """What runs prompts of the same model beside a step under way, if anything does."""


class ConcurrentPrefill(Engine, Protocol):
    """Runs prompts beside an engine's step: on the same pages, and on nothing else that the other writes to."""

    flights: int  # how many launches may be neither waited for nor collected

    def takes(self, request: Request) -> bool:
        """Return whether it can run this request's prompt, if that is short enough."""


@dataclass(slots=True)
class RunningStep:
    """A step under way."""

    plan: Plan
    planning: tuple[float, float]  # from when to when
    launched: float
    overlaps: bool  # it goes on while the host does something else
    landed: float = 0.0  # all models were waited for
    tickets: dict[ModelName, Any] = field(default_factory=dict)  # of models without a fault so far
    spent_s: dict[ModelName, float] = field(default_factory=dict)  # by the host in calls of each engine

    @property
    def sound(self) -> bool:
        """Whether no model had a fault so far."""
        return len(self.tickets) == len(self.plan.loads)


@dataclass(slots=True)
class StepGroup:
    """Models that step together: on a device each by itself, on the host all of them."""

    models: frozenset[ModelName]
    flight: RunningStep | None = None
    ahead: Plan | None = None  # what follows it, if nothing comes between,
    planning: tuple[float, float] | None = None  # and from when to when that was looked for


class Engines:
    """The engines of all models, as one."""

    def __init__(
        self,
        engines: Mapping[ModelName, Engine],
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        learns: bool = True,
    ) -> None:
        """Run engines; with `learns`, take what their steps cost for what such steps cost."""
        self._engines = engines
        self._scheduler = scheduler
        self._clock = clock
        self._learns = learns
        self.overlap = all(engine.overlaps for engine in engines.values())  # whatever a plan holds

    def __getitem__(self, model: ModelName) -> Engine:
        return self._engines[model]

    def prepare(self, plan: Plan) -> None:
        """Make a plan ready for its launch, while another is under way; it may never come."""
        for model, load in plan.loads.items():
            self._engines[model].prepare(load)

    def launch(self, plan: Plan, planning: tuple[float, float]) -> RunningStep:
        """Begin a plan on every model, those first whose launch does not do the work."""
        if self._learns:
            for model in plan.loads:
                self._scheduler.stations[model].pool.cool()
        overlaps = all(self._engines[model].overlaps for model in plan.loads)
        flight = RunningStep(plan, planning, self._clock(), overlaps, spent_s=dict.fromkeys(plan.loads, 0.0))
        for model in sorted(plan.loads, key=lambda model: not self._engines[model].overlaps):
            ticket = self._attempt(flight, model, self._engines[model].launch, plan.loads[model])
            if ticket is not None:
                flight.tickets[model] = ticket
        return flight

    def done(self, flight: RunningStep) -> bool:
        """Return whether there is nothing to wait for, as far as the engines can say."""
        return all(
            self._attempt(flight, model, self._engines[model].done, ticket) is not False
            for model, ticket in list(flight.tickets.items())
        )

    def wait(self, flight: RunningStep) -> None:
        """Wait for a step on every model, unless that was done."""
        if flight.landed:
            return
        for model, ticket in list(flight.tickets.items()):
            self._attempt(flight, model, self._engines[model].wait, ticket)
        flight.landed = self._clock()

    def collect(self, flight: RunningStep) -> dict[ModelName, Sequence[Outcome]]:
        """Return the outcomes of a step that was waited for, by model; learn what it cost."""
        found: dict[ModelName, Sequence[Outcome]] = {}
        for model, load in flight.plan.loads.items():
            outcomes: Sequence[Outcome] | None = None
            if model in flight.tickets:
                outcomes = self._attempt(flight, model, self._engines[model].collect, flight.tickets[model])
            if outcomes is None:
                found[model] = [Outcome(failed=True) for _ in load.rows]
            else:
                found[model] = outcomes
                if not self._learns:
                    continue
                phases = self._engines[model].phases
                observe(self._scheduler.stations[model], load, phases, flight.spent_s[model])
        return found

    def _attempt(self, flight: RunningStep, model: ModelName, call: Callable[[Any], Any], argument: object) -> Any:
        """Call an engine; after a fault the model has no ticket any more, and None is returned."""
        begin = self._clock()
        try:
            return call(argument)
        except _FAULTS:
            log.exception("step failed model=%s rows=%d", model, len(flight.plan.loads[model].rows))
            flight.tickets.pop(model, None)
            self._scheduler.drop_swapped(model)
            return None
        finally:
            flight.spent_s[model] += self._clock() - begin


def observe(
    station: ModelResources, load: ModelBatch, phases: Mapping[str, tuple[float, float]], spent_s: float
) -> None:
    """Learn what a load cost: what the device says it took, else the time the host spent on it."""
    if "device" in phases:
        start_s, stop_s = phases["device"]
        spent_s = stop_s - start_s
    if station.encoder is not None and load.encoding.rows:
        start_s, stop_s = phases["encode"]
        station.encoder.observe(load.encoding, stop_s - start_s)
        spent_s -= stop_s - start_s
    station.cost.observe(load.work, spent_s)

"""A step on its way: launched on every model of its plan, waited for, collected.

A fault of one model fails the rows of that model only. This module knows engines, what their work costs and a clock;
core.py decides what a step holds, and delivery.py what becomes of its outcomes.
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
    """Runs one model's part of a plan; a simulation pretends to."""

    # When each phase of the step that was collected last began and ended.
    phases: dict[str, tuple[float, float]]
    # Whether a launch returns before its work is done.
    overlaps: bool

    def run(self, load: ModelBatch) -> Sequence[Outcome]:
        """Launch and collect."""

    def launch(self, load: ModelBatch) -> Any:
        """Begin a step; return its ticket. At most one step is neither waited for nor collected."""

    def done(self, ticket: Any) -> bool:
        """Return whether `wait` would return at once, or cannot say."""

    def wait(self, ticket: Any) -> None:
        """Wait until a step is done and its outcomes are safe from the next launch."""

    def collect(self, ticket: Any) -> Sequence[Outcome]:
        """Return the outcomes, in the order of the load's rows; another step may have been launched meanwhile."""

    def samples_on_device(self, request: Request) -> bool:
        """Return whether a step can be launched that goes on with a token of the request the host has not seen."""

    def prepare(self, load: ModelBatch) -> None:
        """Make ready what `launch` of this load will need, while a step is under way; the launch may never come."""

    @property
    def concurrent_prefill(self) -> ConcurrentPrefill | None:
        """The engine that runs prompts of the same model beside a step under way, if there is one."""


class ConcurrentPrefill(Engine, Protocol):
    """Runs prompts beside an engine's step: on the same pages, and on nothing else that the other writes to."""

    # How many launches may be under way at the same time.
    most_launches: int

    def takes(self, request: Request) -> bool:
        """Return whether it can run this request's prompt, if that is short enough."""


@dataclass(slots=True)
class RunningStep:
    """A step under way."""

    plan: Plan
    # When planning began and ended.
    planning: tuple[float, float]
    launched_s: float
    # Whether it goes on while the host does something else.
    overlaps: bool
    # When all models were waited for; 0: not yet.
    ended_s: float = 0.0
    # By model, of models without a fault so far.
    tickets: dict[ModelName, Any] = field(default_factory=dict)
    # Seconds the host spent in calls of each engine.
    spent_s: dict[ModelName, float] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether no model had a fault so far."""
        return len(self.tickets) == len(self.plan.loads)


@dataclass(slots=True)
class StepGroup:
    """Models that step together: on a device each by itself, on the host all of them."""

    models: frozenset[ModelName]
    running_step: RunningStep | None = None
    # The plan of the step after that, made ahead; None: it is planned when the step under way has ended.
    next_plan: Plan | None = None
    # When planning ahead began and ended; None: that was not tried for the step under way.
    next_planning: tuple[float, float] | None = None


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
        """Run engines; with `learns`, the cost models learn from their steps."""
        self._engines = engines
        self._scheduler = scheduler
        self._clock = clock
        self._learns = learns
        self.overlap = all(engine.overlaps for engine in engines.values())  # whatever a plan holds

    def __getitem__(self, model: ModelName) -> Engine:
        return self._engines[model]

    def prepare(self, plan: Plan) -> None:
        """Make a plan ready for its launch while another is under way; the launch may never come."""
        for model, load in plan.loads.items():
            self._engines[model].prepare(load)

    def launch(self, plan: Plan, planning: tuple[float, float]) -> RunningStep:
        """Begin a plan on every model, those first whose launch does not do the work."""
        if self._learns:
            for model in plan.loads:
                self._scheduler.resources[model].pool.cool()
        overlaps = all(self._engines[model].overlaps for model in plan.loads)
        step = RunningStep(plan, planning, self._clock(), overlaps, spent_s=dict.fromkeys(plan.loads, 0.0))
        for model in sorted(plan.loads, key=lambda model: not self._engines[model].overlaps):
            ticket = self._attempt(step, model, self._engines[model].launch, plan.loads[model])
            if ticket is not None:
                step.tickets[model] = ticket
        return step

    def done(self, step: RunningStep) -> bool:
        """Return whether there is nothing to wait for, as far as the engines can say."""
        for model, ticket in tuple(step.tickets.items()):
            if self._attempt(step, model, self._engines[model].done, ticket) is False:
                return False
        return True

    def wait(self, step: RunningStep) -> None:
        """Wait for a step on every model, unless that was done."""
        if step.ended_s:
            return
        for model, ticket in list(step.tickets.items()):
            self._attempt(step, model, self._engines[model].wait, ticket)
        step.ended_s = self._clock()

    def collect(self, step: RunningStep) -> dict[ModelName, Sequence[Outcome]]:
        """Return the outcomes of a step that was waited for, by model; learn what it cost."""
        found: dict[ModelName, Sequence[Outcome]] = {}
        for model, load in step.plan.loads.items():
            outcomes: Sequence[Outcome] | None = None
            if model in step.tickets:
                outcomes = self._attempt(step, model, self._engines[model].collect, step.tickets[model])
            if outcomes is None:
                found[model] = [Outcome(failed=True) for _ in load.rows]
                continue
            found[model] = outcomes
            if self._learns:
                phases = self._engines[model].phases
                observe(self._scheduler.resources[model], load, phases, step.spent_s[model])
        return found

    def _attempt(self, step: RunningStep, model: ModelName, call: Callable[[Any], Any], argument: object) -> Any:
        """Call an engine; after a fault the model has no ticket any more, and None is returned."""
        begin = self._clock()
        try:
            return call(argument)
        except _FAULTS:
            log.exception("step failed model=%s rows=%d", model, len(step.plan.loads[model].rows))
            step.tickets.pop(model, None)
            self._scheduler.drop_swapped(model)
            return None
        finally:
            step.spent_s[model] += self._clock() - begin


def observe(
    resources: ModelResources, load: ModelBatch, phases: Mapping[str, tuple[float, float]], spent_s: float
) -> None:
    """Learn what a load cost: what the device says it took, else the time the host spent on it."""
    if "device" in phases:
        start_s, stop_s = phases["device"]
        spent_s = stop_s - start_s
    if resources.encoder is not None and load.encoding.rows:
        start_s, stop_s = phases["encode"]
        resources.encoder.observe(load.encoding, stop_s - start_s)
        spent_s -= stop_s - start_s
    resources.cost.observe(load.work, spent_s)

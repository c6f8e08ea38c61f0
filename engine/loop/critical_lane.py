"""Critical prompts that are read beside the steps: those that wait for it, and those under way.

This module knows the engine that can do that and the scheduler's policy; core.py delivers the outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from voxlane.engine.api import Priority
from voxlane.engine.loop.execution import ConcurrentPrefill, Engine, Engines, RunningStep
from voxlane.engine.schedule.concurrent_prefill import plan_concurrent_prefill
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import ModelName, Request, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

HOLD_S = 4e-3
"""How long a step waits at most for critical prompts, about as long as two of them take; then it goes first."""


class CriticalLane:
    """A few launches under way, each of all requests that waited when it began."""

    def __init__(self, engines: Mapping[ModelName, Engine], scheduler: Scheduler, clock: Callable[[], float]) -> None:
        prefills = {
            name: engine.concurrent_prefill for name, engine in engines.items() if engine.concurrent_prefill is not None
        }
        assert len(prefills) <= 1, "one model at most reads prompts beside its steps"
        # The model whose prompts go this way; None: no engine can do that.
        self.model: ModelName | None = next(iter(prefills), None)
        self._prefill: ConcurrentPrefill | None = None if self.model is None else prefills[self.model]
        # Beside a step everything takes longer, so nothing is learnt from these.
        self.engines = Engines(prefills, scheduler, clock, learns=False)
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: list[Request] = []
        self._running: list[RunningStep] = []
        self._held_until: float | None = None  # no step begins before; None: no step has waited yet

    @property
    def busy(self) -> bool:
        """Whether a prompt is under way, or waits to be."""
        return bool(self._running or self._waiting)

    def holds(self) -> bool:
        """Return whether a step that could begin now waits for the prompts under way; it does so for HOLD_S at most.

        Run together, a step and a prompt slow each other down; waiting costs the step a millisecond or two.
        """
        if self._running and self._held_until is None:
            self._held_until = self._clock() + HOLD_S
        return self.holding

    @property
    def holding(self) -> bool:
        """Whether a step waits."""
        return bool(self._running) and self._held_until is not None and self._clock() < self._held_until

    def stepped(self) -> None:
        """Note that a step has begun."""
        self._held_until = None

    def offer(self, request: Request) -> None:
        """Let a new request go this way if it may; if the lane is full it waits, never for long."""
        critical = request.priority is Priority.CRITICAL and self._scheduler.limits.policy == "deadline"
        if critical and request.model == self.model:
            request.offered = True
            self._waiting.append(request)

    def begin(self, steps: Iterable[RunningStep]) -> Plan | None:
        """Launch the waiting requests that fit beside the steps under way; return their plan. Others wait for a step.

        None is launched while a step moves blocks: the blocks it swaps out are free already, and not read yet.
        """
        if self._prefill is None or not self._waiting or len(self._running) == self._prefill.most_launches:
            return None
        begin = self._clock()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.offered = False
        if any(load.moves for step in steps for load in step.plan.loads.values()):
            return None
        plan = plan_concurrent_prefill(self._scheduler, waiting, begin, self._prefill.takes)
        if plan is not None:
            self._running.append(self.engines.launch(plan, (begin, self._clock())))
        return plan

    def ended(self) -> RunningStep | None:
        """Return a launch that has ended, once."""
        for step in self._running:
            if self.engines.done(step):
                self.engines.wait(step)
                self._running.remove(step)
                return step
        return None

    def leave(self, request: Request) -> None:
        """Wait for a request that is under way and about to end: it writes to blocks that others will get."""
        if request.state is RequestState.CONCURRENT:
            for step in self._running:
                self.engines.wait(step)

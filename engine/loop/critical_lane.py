"""Critical prompts on their way beside the steps: who waits to go, and who is under way.

It knows engines that can do that and the scheduler's policy; what the outcomes mean is the core's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from voxlane.engine.api import Priority
from voxlane.engine.loop.execution import ConcurrentPrefill, Engine, Engines, RunningStep
from voxlane.engine.schedule.concurrent_prefill import plan_express
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import ModelName, Request, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

HOLD_S = 4e-3
"""How long a step waits at most for critical prompts, about as long as two of them take; then it goes first."""


class Lane:
    """What goes beside the steps: a few flights, each of all who wait when it begins."""

    def __init__(self, engines: Mapping[ModelName, Engine], scheduler: Scheduler, clock: Callable[[], float]) -> None:
        prefills = {name: engine.express for name, engine in engines.items() if engine.express is not None}
        assert len(prefills) <= 1, "one model at most reads prompts beside its steps"
        self.model: ModelName | None = next(iter(prefills), None)  # the model whose prompts go this way
        self._prefill: ConcurrentPrefill | None = None if self.model is None else prefills[self.model]
        # Beside a step everything takes longer, so nothing is learnt from these.
        self.engines = Engines(prefills, scheduler, clock, learns=False)
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: list[Request] = []
        self._flights: list[RunningStep] = []
        self._held_until: float | None = None  # no step begins beside them before; None: none has waited yet

    @property
    def busy(self) -> bool:
        """Whether somebody is under way, or waits to be."""
        return bool(self._flights or self._waiting)

    def holds(self) -> bool:
        """Return whether a step that could begin now waits for those under way; it does not do so for ever.

        What runs beside them takes as long as them from each other; waiting costs a step a millisecond or two.
        """
        if self._flights and self._held_until is None:
            self._held_until = self._clock() + HOLD_S
        return self.holding

    @property
    def holding(self) -> bool:
        """Whether a step waits."""
        return bool(self._flights) and self._held_until is not None and self._clock() < self._held_until

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
        """Launch those who wait and fit beside the steps under way; return what was launched. Others wait for a step.

        Nobody goes while a step moves blocks: what it swaps out is free already, and not read yet.
        """
        if self._prefill is None or not self._waiting or len(self._flights) == self._prefill.flights:
            return None
        begin = self._clock()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.offered = False
        if any(load.moves for step in steps for load in step.plan.loads.values()):
            return None
        plan = plan_express(self._scheduler, waiting, begin, self._prefill.takes)
        if plan is not None:
            self._flights.append(self.engines.launch(plan, (begin, self._clock())))
        return plan

    def over(self) -> RunningStep | None:
        """Return one of those under way that has come through, once."""
        for flight in self._flights:
            if self.engines.done(flight):
                self.engines.wait(flight)
                self._flights.remove(flight)
                return flight
        return None

    def leave(self, request: Request) -> None:
        """Wait for a request that is under way and will be gone: it writes to blocks that become somebody else's."""
        if request.state is RequestState.EXPRESS:
            for flight in self._flights:
                self.engines.wait(flight)

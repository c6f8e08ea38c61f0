"""Critical prompts on their way beside the steps: who waits to go, and who is under way.

It knows engines that can do that and the scheduler's policy; what the outcomes mean is the core's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from voxlane.engine.api import Priority
from voxlane.engine.express import plan_express
from voxlane.engine.flight import Engine, Engines, Express, Flight
from voxlane.engine.plan import Plan
from voxlane.engine.request import ModelName, Request, State
from voxlane.engine.scheduler import Scheduler


class Lane:
    """What goes beside the steps; at most one flight at a time."""

    def __init__(self, engines: Mapping[ModelName, Engine], scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._lanes: dict[ModelName, Express] = {
            name: lane for name, engine in engines.items() if (lane := engine.express) is not None
        }
        self.engines = Engines(self._lanes, scheduler, clock, learns=False)  # beside a step all takes longer
        self._scheduler = scheduler
        self._clock = clock
        self._waiting: list[Request] = []
        self._flight: Flight | None = None
        self._alone = False  # no step begins beside the flight
        self._stepped = True  # one has begun since such a flight

    @property
    def busy(self) -> bool:
        """Whether somebody is under way, or waits to be."""
        return self._flight is not None or bool(self._waiting)

    @property
    def alone(self) -> bool:
        """Whether the next step waits for those under way: they have the device to themselves, then a step goes first.

        What runs beside them takes as long as them from each other; waiting costs a step a millisecond.
        """
        return self._alone and self._flight is not None

    def stepped(self) -> None:
        """Note that a step has begun."""
        self._stepped = True

    def offer(self, request: Request) -> None:
        """Let a new request go this way if it may; it waits while somebody is under way, which is never long."""
        critical = request.priority is Priority.CRITICAL and self._scheduler.limits.policy == "deadline"
        if critical and request.model in self._lanes:
            request.offered = True
            self._waiting.append(request)

    def begin(self, steps: Iterable[Flight]) -> Plan | None:
        """Launch those who wait and fit beside the steps under way; return what was launched. Others wait for a step.

        Nobody goes while somebody is under way, nor while a step moves blocks: what it swaps out is free already, and
        not read yet.
        """
        if not self._waiting or self._flight is not None:
            return None
        begin = self._clock()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            request.offered = False
        if any(load.moves for step in steps for load in step.plan.loads.values()):
            return None
        plan = plan_express(self._scheduler, waiting, begin, self._lanes["chat"].takes)
        if plan is not None:
            self._flight = self.engines.launch(plan, (begin, self._clock()))
            self._alone, self._stepped = self._stepped, False
        return plan

    def over(self) -> Flight | None:
        """Return those under way if they have come through, once."""
        flight = self._flight
        if flight is None or not self.engines.done(flight):
            return None
        self.engines.wait(flight)
        self._flight = None
        return flight

    def leave(self, request: Request) -> None:
        """Wait for a request that is under way and will be gone: it writes to blocks that become somebody else's."""
        if request.state is State.EXPRESS and self._flight is not None:
            self.engines.wait(self._flight)

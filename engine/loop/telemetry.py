"""What is written down of steps and requests: figures for the next report, and the trace. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Container

from voxlane.engine.api import Priority, StepStats
from voxlane.engine.loop.execution import Engines, RunningStep
from voxlane.engine.loop.meter import Meter
from voxlane.engine.loop.trace import Trace
from voxlane.engine.schedule.request import Request
from voxlane.engine.schedule.scheduler import Scheduler


class Record:
    """The books of one engine."""

    def __init__(self, clock: Callable[[], float], trace: Trace | None) -> None:
        self._clock = clock
        self._trace = trace
        self._meter = Meter(clock())
        self._until = 0.0  # steps that overlap are not counted twice

    def step(self, flight: RunningStep, engines: Engines, jobs: Container[str]) -> None:
        """Note a step whose outcomes were handed out; of those who have left, the trace needs to know no more."""
        plan, end = flight.plan, self._clock()
        begin, self._until = max(flight.planning[0], self._until), end
        phases = {"schedule": flight.planning, "publish": (flight.landed, end)}
        for model in plan.loads:
            mark = "" if model == "chat" else f"{model} "
            phases |= {f"{mark}{name}": span for name, span in engines[model].phases.items()}
        self._meter.count(plan, end - begin, phases)
        if self._trace is not None:
            told = {"rows": len(plan.rows), "prefill": plan.prefill_tokens, "predicted_s": plan.predicted_s}
            self._trace.step(begin, end, phases, **told)
            self._rows(flight)
            self._trace.keep(jobs)

    def express(self, flight: RunningStep) -> None:
        """Note prompts that were read beside a step."""
        self._meter.count_express(flight.plan)
        self._rows(flight)

    def admitted(self, request: Request, now: float) -> None:
        """Note that a request is in a step for the first time."""
        if request.priority is Priority.CRITICAL:
            self._meter.lane_wait_s = max(self._meter.lane_wait_s, now - request.arrival_s)
        self._row(request, "queued", request.arrival_s, now)

    def resumed(self, request: Request, now: float) -> None:
        """Note how long a request was paused."""
        self._row(request, "paused", request.progress_s, now)

    def lookup(self, proposed: int, accepted: int) -> None:
        """Note how many guesses were right."""
        self._meter.count_lookup(proposed, accepted)

    def report(self, scheduler: Scheduler) -> StepStats:
        """Return what was done since the last report, and how things stand."""
        return self._meter.report(self._clock(), scheduler)

    @property
    def due(self) -> bool:
        """Whether the last report is old enough."""
        return self._meter.due(self._clock())

    def flush(self) -> None:
        """Let the trace be looked at."""
        if self._trace is not None:
            self._trace.flush()

    def _rows(self, flight: RunningStep) -> None:
        if self._trace is None:
            return
        for row in flight.plan.rows:
            what = "decode" if row.count == 1 else f"prefill {row.count}"
            if row.request.unit:
                what = f"say {row.request.unit}"
            elif row.encode:
                what = f"hear {row.request.states}"
            self._row(row.request, what, flight.launched, flight.landed, start=row.start, drafts=len(row.drafts))

    def _row(self, request: Request, what: str, start_s: float, stop_s: float, **counts: object) -> None:
        if self._trace is not None:
            self._trace.row(request.job, request.priority.name.lower(), what, start_s, stop_s, **counts)

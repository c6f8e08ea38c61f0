"""Figures of steps and requests: sums for the next report to the server, and the trace."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from voxlane.engine.api import Priority, StepStats
from voxlane.engine.loop.execution import Engines, RunningStep
from voxlane.engine.loop.trace import Trace
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

STATS_INTERVAL_S = 1.0


class Meter:
    """Sums over the steps between two reports."""

    def __init__(self, now: float) -> None:
        """Start counting at `now`."""
        self._since = now
        self._clear()

    def _clear(self) -> None:
        self.steps = 0
        self._rows = 0
        self._busy_s = 0.0
        self._pressing_s = 0.0
        self._longest_s = 0.0
        self._phases = dict.fromkeys(("schedule", "move", "forward", "sample"), 0.0)
        self._proposed = 0
        self._accepted = 0
        self._prefill = 0
        self._decode = 0
        self._preempted = 0
        self.lane_wait_s = 0.0

    def count(self, plan: Plan, seconds: float, phases: Mapping[str, tuple[float, float]]) -> None:
        self.steps += 1
        self._rows += len(plan.rows)
        for name, (begin, end) in phases.items():
            mark, _, kind = name.rpartition(" ")  # "asr forward" is time in a model like any other
            if kind in ("encode", "codec", "launch", "wait"):
                # Where a device says how long it took, that counts, whatever the host did meanwhile.
                kind = "" if f"{mark} device".lstrip() in phases else "forward"
            elif kind == "device":
                kind = "forward"
            if kind in self._phases:
                self._phases[kind] += end - begin
        self._busy_s += seconds
        if any(row.request.priority > Priority.NORMAL for row in plan.rows):
            self._pressing_s += seconds
        self._longest_s = max(self._longest_s, seconds)
        self._prefill += plan.prefill_tokens
        self._decode += sum(1 for row in plan.rows if row.count == 1 and not row.request.unit)
        self._preempted += plan.preempted

    def count_prefill(self, plan: Plan) -> None:
        """Count prompts that were read beside a step."""
        self._rows += len(plan.rows)
        self._prefill += plan.prefill_tokens

    def count_lookup(self, proposed: int, accepted: int) -> None:
        self._proposed += proposed
        self._accepted += accepted

    def due(self, now: float) -> bool:
        return self.steps > 0 and now - self._since >= STATS_INTERVAL_S

    def report(self, now: float, scheduler: Scheduler) -> StepStats:
        pools = [resources.pool for resources in scheduler.resources.values()]
        stats = StepStats(
            steps=self.steps,
            rows=self._rows,
            prefill_tokens=self._prefill,
            decode_tokens=self._decode,
            busy_s=self._busy_s,
            longest_step_s=self._longest_s,
            **{f"{name}_s": seconds for name, seconds in self._phases.items()},
            lookup_proposed=self._proposed,
            lookup_accepted=self._accepted,
            running=scheduler.count(RequestState.RUNNING) + scheduler.count(RequestState.CONCURRENT),
            waiting=scheduler.count(RequestState.WAITING),
            paused=scheduler.count(RequestState.PAUSED),
            blocks_free=sum(pool.free for pool in pools),
            blocks_cached=sum(pool.cached for pool in pools),
            blocks_used=sum(pool.used for pool in pools),
            preemptions=self._preempted,
            lane_wait_s=self.lane_wait_s,
            interval_s=now - self._since,
            pressing_s=self._pressing_s,
            blocks_available=min((1 - pool.used / pool.num_blocks for pool in pools if pool.num_blocks), default=1.0),
        )
        self._since = now
        self._clear()
        return stats


class Telemetry:
    """Notes what happens to steps and requests, in the meter and in the trace if there is one."""

    def __init__(self, clock: Callable[[], float], trace: Trace | None) -> None:
        self._clock = clock
        self._trace = trace
        self._meter = Meter(clock())
        self._counted_until_s = 0.0  # so that the time of steps that overlap is counted once

    def step(self, step: RunningStep, engines: Engines, live: Container[str]) -> None:
        """Note a step whose outcomes are delivered; the trace closes the lanes of requests that are not `live`."""
        plan, end = step.plan, self._clock()
        begin, self._counted_until_s = max(step.planning[0], self._counted_until_s), end
        phases = {"schedule": step.planning, "publish": (step.ended_s, end)}
        for model in plan.loads:
            mark = "" if model == "chat" else f"{model} "
            phases |= {f"{mark}{name}": span for name, span in engines[model].phases.items()}
        self._meter.count(plan, end - begin, phases)
        if self._trace is not None:
            counts = {"rows": len(plan.rows), "prefill": plan.prefill_tokens, "predicted_s": plan.predicted_s}
            self._trace.step(begin, end, phases, **counts)
            self._trace_rows(step)
            self._trace.keep(live)

    def concurrent_prefill(self, step: RunningStep) -> None:
        """Note prompts that were read beside a step."""
        self._meter.count_prefill(step.plan)
        self._trace_rows(step)

    def admitted(self, request: Request, now: float) -> None:
        """Note that a request is in a step for the first time."""
        if request.priority is Priority.CRITICAL:
            self._meter.lane_wait_s = max(self._meter.lane_wait_s, now - request.arrival_s)
        self._trace_row(request, "queued", request.arrival_s, now)

    def resumed(self, request: Request, now: float) -> None:
        """Note how long a request was paused."""
        self._trace_row(request, "paused", request.progress_s, now)

    def lookup(self, proposed: int, accepted: int) -> None:
        """Note how many guessed tokens were right."""
        self._meter.count_lookup(proposed, accepted)

    def report(self, scheduler: Scheduler) -> StepStats:
        """Return the sums since the last report, and how many requests and blocks there are now."""
        return self._meter.report(self._clock(), scheduler)

    @property
    def due(self) -> bool:
        """Whether the last report is old enough for the next."""
        return self._meter.due(self._clock())

    def flush(self) -> None:
        """Write what the trace holds back to its file."""
        if self._trace is not None:
            self._trace.flush()

    def _trace_rows(self, step: RunningStep) -> None:
        if self._trace is None:
            return
        for row in step.plan.rows:
            what = "decode" if row.count == 1 else f"prefill {row.count}"
            if row.request.unit:
                what = f"say {row.request.unit}"
            elif row.encode:
                what = f"hear {row.request.states}"
            counts = {"start": row.start, "drafts": len(row.drafts)}
            self._trace_row(row.request, what, step.launched_s, step.ended_s, **counts)

    def _trace_row(self, request: Request, what: str, start_s: float, stop_s: float, **counts: object) -> None:
        if self._trace is not None:
            self._trace.row(request.job, request.priority.name.lower(), what, start_s, stop_s, **counts)

"""What the engine has been doing since it last said so. It adds up; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from voxlane.engine.api import StepStats
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import RequestState
from voxlane.engine.schedule.scheduler import Scheduler

STATS_INTERVAL_S = 1.0


class Meter:
    """Adds up steps between two reports."""

    def __init__(self, now: float) -> None:
        """Start counting at `now`."""
        self._since = now
        self._clear()

    def _clear(self) -> None:
        self.steps = 0
        self._rows = 0
        self._busy_s = 0.0
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
        self._longest_s = max(self._longest_s, seconds)
        self._prefill += plan.prefill_tokens
        self._decode += sum(1 for row in plan.rows if row.count == 1 and not row.request.unit)
        self._preempted += plan.preempted

    def count_express(self, plan: Plan) -> None:
        self._rows += len(plan.rows)
        self._prefill += plan.prefill_tokens

    def count_lookup(self, proposed: int, accepted: int) -> None:
        self._proposed += proposed
        self._accepted += accepted

    def due(self, now: float) -> bool:
        return self.steps > 0 and now - self._since >= STATS_INTERVAL_S

    def report(self, now: float, scheduler: Scheduler) -> StepStats:
        pools = [station.pool for station in scheduler.stations.values()]
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
            running=scheduler.count(RequestState.RUNNING) + scheduler.count(RequestState.EXPRESS),
            waiting=scheduler.count(RequestState.WAITING),
            paused=scheduler.count(RequestState.PAUSED),
            blocks_free=sum(pool.free for pool in pools),
            blocks_cached=sum(pool.cached for pool in pools),
            blocks_used=sum(pool.used for pool in pools),
            preemptions=self._preempted,
            lane_wait_s=self.lane_wait_s,
        )
        self._since = now
        self._clear()
        return stats

"""What an engine's reports say of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from voxlane.engine.api import StepStats


def steps_of(stats: Sequence[StepStats]) -> dict[str, float]:
    """Return what some reports of an engine say of its steps."""
    steps = max(1, sum(one.steps for one in stats))
    return {
        "steps": steps,
        "step_ms": round(1e3 * sum(one.busy_s for one in stats) / steps, 2),
        "longest_step_ms": round(1e3 * max((one.longest_step_s for one in stats), default=0.0), 1),
        "rows": round(sum(one.rows for one in stats) / steps, 1),
        "schedule_ms": round(1e3 * sum(one.schedule_s for one in stats) / steps, 3),
        "lane_wait_ms": round(1e3 * max((one.lane_wait_s for one in stats), default=0.0), 2),
        "preemptions": sum(one.preemptions for one in stats),
    }

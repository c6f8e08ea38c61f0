"""Plans of critical prompts that are read beside the step under way. Pure, like the scheduler's own plans.

These prompts take only free blocks, none that another request holds and none that the step may still write to or read,
and little of the device. So none is launched beside a step that moves blocks. A prompt that does not fit waits for the
next step, where the scheduler makes room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from voxlane.engine.schedule.budget import StepTime
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import CACHED_TASKS, Scheduler

CONCURRENT_TOKENS, CONCURRENT_ROWS = 512, 8
"""Most tokens and prompts in one launch. A question and the turns since the last one are a few dozen tokens; the
conversation before them is in the prefix cache."""


def plan_concurrent_prefill(
    scheduler: Scheduler, requests: Iterable[Request], now: float, takes: Callable[[Request], bool]
) -> Plan | None:
    """Return a plan of the requests that can run now, their blocks taken; None if there are none."""
    plan, left = Plan(), CONCURRENT_TOKENS
    time = StepTime(scheduler.resources, math.inf, lane_in_use=True)

    def room(request: Request, count: int) -> bool:
        return request.table.needed(count) <= scheduler.resources[request.model].pool.untouched

    for request in requests:
        if len(plan.rows) == CONCURRENT_ROWS:
            break
        waits = request.state is RequestState.WAITING and not request.host_blocks
        if not waits or request.task not in CACHED_TASKS or not takes(request):
            continue
        if (row := scheduler.place_prompt(request, plan, time, left, room, whole=True)) is not None:
            left -= row.tokens
            request.state, request.progress_s = RequestState.CONCURRENT, now
    plan.predicted_s = plan.seconds(scheduler.resources)
    return plan if plan.rows else None

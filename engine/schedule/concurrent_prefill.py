"""Critical prompts that are read beside the step under way. Pure, like the scheduler's own plans.

They need nothing of anybody: no block that is held, none that the step may still write to or read, and little of the
device. So they never run beside a step that moves blocks.
Whoever does not fit waits for the next step, where the scheduler makes room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from voxlane.engine.schedule.budget import StepTime
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import CACHED_TASKS, Scheduler

EXPRESS_TOKENS, EXPRESS_ROWS = 512, 8
"""Most of what is read at a time. A question and what was said since the last one are a few dozen; the conversation
before them is in the cache."""


def plan_express(
    scheduler: Scheduler, requests: Iterable[Request], now: float, takes: Callable[[Request], bool]
) -> Plan | None:
    """Return a plan of those requests that can run at once, their blocks taken; None if there are none."""
    plan, left = Plan(), EXPRESS_TOKENS
    time = StepTime(scheduler.stations, math.inf, lane_in_use=True)

    def room(request: Request, count: int) -> bool:
        return request.table.needed(count) <= scheduler.stations[request.model].pool.untouched

    for request in requests:
        if len(plan.rows) == EXPRESS_ROWS:
            break
        waits = request.state is RequestState.WAITING and not request.host_blocks
        if not waits or request.task not in CACHED_TASKS or not takes(request):
            continue
        if (row := scheduler.place_prompt(request, plan, time, left, room, whole=True)) is not None:
            left -= row.tokens
            request.state, request.progress_s = RequestState.EXPRESS, now
    plan.predicted_s = plan.seconds(scheduler.stations)
    return plan if plan.rows else None

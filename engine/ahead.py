"""The plan of the next step, made while this one runs. Pure, like the scheduler's own.

It is made only where what the host does not know yet, the tokens of the step under way, cannot change who should be in
it: whoever could run decodes, or is in that step, reaches its end there, and has its token chosen by the device. The
next step goes on from that. Whoever ends by what was chosen was in the next step for nothing: its row is dropped.

Where not all of them fit, those go first who were not in the step under way. Requests in the queue must wait only if
there is no place for them anyway, and nothing says that they go before others.
"""

from __future__ import annotations

from collections.abc import Callable

from voxlane.engine.api import Priority
from voxlane.engine.cost import Work
from voxlane.engine.plan import Load, Plan, Row
from voxlane.engine.request import ModelName, Request, State
from voxlane.engine.scheduler import PATIENCE_S, Scheduler


def plan_ahead(
    scheduler: Scheduler,
    plan: Plan,
    now: float,
    foresees: Callable[[Request], bool],
    models: frozenset[ModelName],
) -> Plan | None:
    """Return what follows a plan that is under way, its blocks taken; None if that has to wait for its outcomes.

    Requests of models other than `models` have steps of their own.
    """
    if set(plan.loads) != {"chat"} or scheduler.limits.lookup_tokens:
        return None
    there: set[Request] = set()
    staying: list[Request] = []
    for row in plan.rows:
        request = row.request
        if not foresees(request):  # asked of those too that are not RUNNING any more: the host still has to choose
            return None
        if request.state is not State.RUNNING:  # cancelled or paused meanwhile
            continue
        if row.drafts or not row.reaches_end:
            return None
        there.add(request)
        if not _ends(request):
            staying.append(request)
    others = _others(scheduler, there, now, models)
    if others is None:
        return None
    waiting, left_out = others
    rows = _fitting(scheduler, sorted([*left_out, *staying], key=lambda request: not _goes_first(request)))
    if not rows or (waiting and len(rows) < scheduler.limits.max_batch):
        return None
    available = scheduler.stations["chat"].pool.available
    if len(rows) > available and sum(request.table.needed(1) for request in rows) > available:
        return None
    return _place(scheduler, rows, now)


def take_back(plan: Plan) -> None:
    """Undo a plan that was made ahead and not launched."""
    for row in plan.rows:
        row.request.table.rewind(row.start)


def _others(
    scheduler: Scheduler, there: set[Request], now: float, models: frozenset[ModelName]
) -> tuple[bool, list[Request]] | None:
    """Return whether somebody waits, and who decodes but is not `there`; None if somebody may have to go first."""
    if scheduler.ready_count(models) == len(there):
        return False, []
    waiting, left_out = False, []
    for request in scheduler.requests.values():
        if not request.ready or request.model not in models or request in there or request.rests_until_s > now:
            continue
        if request.model != "chat" or request.aged or now - request.progress_s > PATIENCE_S:
            return None
        if request.state is State.RUNNING and request.decoding:
            left_out.append(request)
        elif request.state is State.WAITING and not (
            request.started or request.continues or request.due_s is not None or request.priority > Priority.NORMAL
        ):
            waiting = True
        else:
            return None
    return waiting, left_out


def _fitting(scheduler: Scheduler, requests: list[Request]) -> list[Request]:
    """Return the first of them, as many as a step has room and time for."""
    limits, cost, budget_s = scheduler.limits, scheduler.stations["chat"].cost, scheduler.budget_s
    fitting = requests[: min(limits.max_batch, limits.max_step_tokens)]
    if cost.predict(_work(fitting)) <= budget_s:
        return fitting
    work = Work()
    for count, request in enumerate(fitting):
        work.add(1, request.table.length + 1)
        if count and cost.predict(work) > budget_s:
            return fitting[:count]
    return fitting


def _work(requests: list[Request]) -> Work:
    return Work(len(requests), context_tokens=sum(request.table.length + 1 for request in requests))


def _place(scheduler: Scheduler, requests: list[Request], now: float) -> Plan:
    load = Load(work=_work(requests))
    for request in requests:
        load.rows.append(Row(request, request.table.length, 1))
        copies = request.table.append(1)
        assert not copies, "a decoding request writes to a block of its own"
        request.progress_s = now
    return Plan(list(load.rows), {"chat": load}, predicted_s=load.seconds(scheduler.stations["chat"]))


def _goes_first(request: Request) -> bool:
    return request.aged or request.priority is Priority.CRITICAL


def _ends(request: Request) -> bool:
    """Return whether the token under way is the request's last, whatever it is."""
    longest = min(request.prompt_tokens + request.sampling.max_tokens, request.limit)
    return len(request.tokens) + 1 >= longest

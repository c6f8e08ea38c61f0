"""The plan of the next step, made while this one runs. Pure, like the scheduler's own.

The host does not know the tokens of the step under way yet. A plan is made ahead only where they cannot change which
requests it holds: the device chooses the token of each request that decodes, and the next step goes on from it. A
request that finishes with that token has a wasted row in the next step; its outcome is dropped. Where not all requests
fit, those that are not in the step under way go first.

The plan is completed when that step has ended: stopped requests are taken out, resumed ones and prompts are added. They
are few, so the device does not wait for long. If a request may have to go before others, or one has to yield its
blocks, everything is planned anew.
"""

from __future__ import annotations

from collections.abc import Callable

from voxlane.engine.api import Priority
from voxlane.engine.schedule.cost import Work
from voxlane.engine.schedule.plan import MIN_CHUNK, ModelBatch, Plan, Row
from voxlane.engine.schedule.request import ModelName, Request, RequestState
from voxlane.engine.schedule.scheduler import PATIENCE_S, Scheduler


def plan_ahead(
    scheduler: Scheduler,
    plan: Plan,
    now: float,
    samples_on_device: Callable[[Request], bool],
    models: frozenset[ModelName],
) -> Plan | None:
    """Return the plan after the one under way, its blocks taken; None if it has to wait for the outcomes.

    Requests of models other than `models` have steps of their own.
    """
    if len(plan.loads) != 1 or scheduler.limits.lookup_tokens:
        return None
    (model,) = plan.loads
    if not scheduler.resources[model].abilities.plans_ahead:
        return None
    there: set[Request] = set()  # in the step under way
    staying: list[Request] = []  # of these, those that decode in the next one too
    reading = False  # whether a prompt in the step under way is not read to its end
    for row in plan.rows:
        request = row.request
        # Asked of requests that are not RUNNING any more too: the host still has to choose their tokens.
        if not samples_on_device(request):
            return None
        if request.state is not RequestState.RUNNING:  # cancelled or paused meanwhile
            continue
        if row.drafts:
            return None
        there.add(request)
        if row.start + row.count == len(request.tokens):
            if request.tokens_left > 1:  # else the token of the step under way is its last
                staying.append(request)
        elif request.pending == 1:  # the last token of a prompt is read like a chosen one
            staying.append(request)
        else:
            reading = True
    left_out = _left_out(scheduler, model, there, now, models)
    if left_out is None:
        return None
    rows = _fitting(scheduler, model, _first_first([*left_out, *staying]))
    if not rows or (reading and len(rows) == scheduler.limits.max_batch):
        return None
    available = scheduler.resources[model].pool.available
    if len(rows) > available and sum(request.table.needed(1) for request in rows) > available:
        return None
    return _place(model, rows)


def completed(scheduler: Scheduler, plan: Plan, now: float) -> Plan | None:
    """Return a plan made ahead as it can be launched now that the step before has ended; None: plan anew.

    Requests that were stopped since are taken out, resumed ones are added, then prompts. It is another plan if the
    requests that decode have changed.
    """
    (model,) = plan.loads
    there = {row.request for row in plan.rows}
    rows = [row for row in plan.rows if row.request.state is RequestState.RUNNING]
    others: list[Request] = []
    if len(live := scheduler.of(model)) > len(rows):
        others = [one for one in live if one not in there and one.ready and one.not_needed_before_s <= now]
    if not any(request.starved or request.host_blocks or _starves(request, now) for request in others):
        back = [request for request in others if request.decoding]
        prompts = [request for request in others if request.pending > 0 and not request.decoding]
        if len(rows) < len(plan.rows) or back:
            plan = _changed(scheduler, model, plan, rows, back)
        missed = {request for request in back if _goes_first(request)} - {row.request for row in plan.rows}
        if plan.rows and not missed and _add_prompts(scheduler, plan, prompts, now):
            for row in plan.rows:  # not before: a request that is planned for but in no step still waits
                row.request.progress_s = now
            plan.predicted_s = plan.seconds(scheduler.resources)
            return plan
    take_back(plan)
    return None


def can_take_back(scheduler: Scheduler, plan: Plan) -> bool:
    """Return whether `take_back` undoes all that a plan did: it only takes tokens out of block tables."""
    return all(
        scheduler.resources[model].abilities.plans_ahead and not load.moves for model, load in plan.loads.items()
    )


def take_back(plan: Plan, *, launched: bool = False) -> None:
    """Undo a plan that was made ahead; one that was launched and failed may have written to its blocks."""
    for row in plan.rows:
        if row.request.state is not RequestState.FINISHED:
            table = row.request.table
            (table.rewind if launched else table.withdraw)(row.start)


def _changed(scheduler: Scheduler, model: ModelName, plan: Plan, rows: list[Row], back: list[Request]) -> Plan:
    """Return a plan of some rows of another and of the resumed requests that fit; the same plan if nothing changes."""
    for row in plan.rows:
        if row.request.state is RequestState.PAUSED:
            row.request.table.withdraw(row.start)
    first, most = sum(map(_goes_first, back)), _most(scheduler)
    while rows and len(rows) + first > most and not _goes_first(rows[-1].request):
        row = rows.pop()
        row.request.table.withdraw(row.start)
    load = ModelBatch(list(rows), work=Work(len(rows), context_tokens=sum(row.start + 1 for row in rows)))
    made = Plan(list(rows), {model: load})
    resources, budget_s = scheduler.resources[model], scheduler.budget_s
    for request in sorted(back, key=lambda request: not _goes_first(request)):
        fits = len(made.rows) < most and request.table.needed(1) <= resources.pool.available
        cost = resources.cost.predict_with(load.work, 1, request.computed + 1)
        if fits and (cost <= budget_s or not made.rows or _goes_first(request)):
            scheduler.place(request, 1, made)
    return plan if made.rows == plan.rows else made


def _add_prompts(scheduler: Scheduler, plan: Plan, prompts: list[Request], now: float) -> bool:
    """Add prompts; return False if one of them may have to go before others, or a request has to yield its blocks.

    If the first prompt is pressing, all of it is placed: else the scheduler might put it before the requests that
    decode.
    """
    if any(_goes_first(request) for request in prompts):
        return False
    limits, added = scheduler.limits, False
    time, left = scheduler.time(row.request for row in plan.rows), limits.max_step_tokens - len(plan.rows)

    def room(request: Request, count: int) -> bool:
        return scheduler.missing(request, count) <= scheduler.resources[request.model].pool.available

    for request in scheduler.in_order(prompts, now):
        if len(plan.rows) == limits.max_batch or left <= 0 or not time.chunk(plan, request, MIN_CHUNK):
            return added or not _pressing(scheduler, request)
        whole = not added and _pressing(scheduler, request)
        row = scheduler.place_prompt(request, plan, time, left, room, whole=whole)
        if row is not None:
            left -= row.tokens
            added = True
        elif not added or limits.policy == "fcfs":  # no request overtakes another
            return added
    return True


def _left_out(
    scheduler: Scheduler, model: ModelName, there: set[Request], now: float, models: frozenset[ModelName]
) -> list[Request] | None:
    """Return the requests that decode and are not `there`; None if one of the others may have to go first."""
    left_out = []
    for request in scheduler.requests.values():
        if request in there or request.model not in models or not request.ready or request.not_needed_before_s > now:
            continue
        if request.model != model or request.starved or _starves(request, now):
            return None
        if request.state is RequestState.RUNNING and request.decoding:
            left_out.append(request)
    return left_out


def _starves(request: Request, now: float) -> bool:
    return now - request.progress_s > PATIENCE_S


def _pressing(scheduler: Scheduler, request: Request) -> bool:
    """Return whether the scheduler may put a prompt before the requests that decode."""
    begun = request.first_token_s if scheduler.limits.policy == "deadline" else request.started or request.continues
    return bool(begun) or request.due_s is not None or request.priority > Priority.NORMAL


def _fitting(scheduler: Scheduler, model: ModelName, requests: list[Request]) -> list[Request]:
    """Return the first of some requests, as many as a step has room and time for."""
    cost, budget_s = scheduler.resources[model].cost, scheduler.budget_s
    fitting = requests[: _most(scheduler)]
    if cost.predict(_work(fitting)) <= budget_s:
        return fitting
    work = Work()
    for count, request in enumerate(fitting):
        work.add(1, request.table.length + 1)
        if count and cost.predict(work) > budget_s:
            return fitting[:count]
    return fitting


def _most(scheduler: Scheduler) -> int:
    """Return how many requests may decode in a step."""
    return min(scheduler.limits.max_batch, scheduler.limits.max_step_tokens)


def _work(requests: list[Request]) -> Work:
    return Work(len(requests), context_tokens=sum(request.table.length + 1 for request in requests))


def _place(model: ModelName, requests: list[Request]) -> Plan:
    load = ModelBatch(work=_work(requests))
    for request in requests:
        table = request.table
        load.rows.append(Row(request, table.length, 1))
        copies = [] if table.grow() else table.append(1)
        assert not copies, "a decoding request writes to a block of its own"
    return Plan(list(load.rows), {model: load})


def _first_first(requests: list[Request]) -> list[Request]:
    """Return requests in their order, except that starved and critical ones come first."""
    first = [one for one in requests if _goes_first(one)]
    return [*first, *(one for one in requests if not _goes_first(one))] if first else requests


def _goes_first(request: Request) -> bool:
    return request.starved or request.priority is Priority.CRITICAL

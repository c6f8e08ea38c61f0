"""Which requests run in the next step. Pure: requests, blocks and cost models in, a plan out; the clock is an argument.

Requests of several models share one step and its time: text, recognition and speech are ordered by urgency alone. Each
model has its own blocks.

The most urgent request is placed first, and a placed request is never a victim of the same plan: so the first request
can always take the blocks it needs, and the engine cannot deadlock.

How a request yields depends on what is short:
    rows or time    the less urgent requests are not in this step; they keep their blocks
    blocks          a victim is swapped to host memory if there is room and copying is cheaper than computing again,
                    else its blocks are dropped and it is prefilled anew; either way its tokens come out the same
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from voxlane.engine.api import Priority
from voxlane.engine.schedule.budget import NOTHING, StepTime, seconds_with
from voxlane.engine.schedule.cost import Work
from voxlane.engine.schedule.plan import MIN_CHUNK, Limits, ModelResources, Move, Plan, Row, recompute
from voxlane.engine.schedule.request import ModelName, Request, RequestState
from voxlane.engine.schedule.speculation import guess

PATIENCE_S = 4.0
"""A request that was in no step for this long becomes `starved`; only one at a time, so that the lane stays open."""

FIRST_TOKEN_TARGET_S = {Priority.NORMAL: 2.0, Priority.HIGH: 0.5, Priority.CRITICAL: 0.1}
"""When a first token is due if the sender gave no deadline."""

CACHED_TASKS = frozenset({"chat", "complete", "probe", "converse"})
"""Tasks whose prompts use the prefix cache."""

SPARE_S = 0.25
"""While a request of a model that hurries is late, those that are due later than this are in none of its steps."""

SLOW_MACHINE_FACTOR = 2.0
"""A step may always take this many times as long as a model's smallest step, or a slow machine would batch nothing."""


class Scheduler:
    """Holds the live requests of all models and decides, step by step, which of them run."""

    def __init__(self, resources: Mapping[ModelName, ModelResources], limits: Limits) -> None:
        self.resources = resources
        self.limits = limits
        self.requests: dict[str, Request] = {}
        # The same requests by model.
        self._of: dict[ModelName, dict[str, Request]] = {model: {} for model in resources}
        self._added = 0
        # The ids of the last batch, for each set of models that step together.
        self._last_batch: dict[frozenset[ModelName], set[str]] = {}
        # The ids of the requests that may be in the step that is being planned.
        self._contenders: set[str] = set()
        # Most blocks that requests of a model and class that never ran can get from others in that step.
        self._yields: dict[tuple[ModelName, int], int] = {}
        # Sets of models whose last step was for critical requests alone.
        self._was_alone: set[frozenset[ModelName]] = set()

    # ---- the life of a request

    def add(self, request: Request, job: int | None = None) -> None:
        """Take a new request into the queue; with the number of its `job`, it has that job's place."""
        request.progress_s = request.arrival_s
        request.number = (self._added if job is None else job, self._added)
        self._added += 1
        self.requests[request.id] = self._of[request.model][request.id] = request

    def pause(self, request: Request, now: float) -> None:
        """Keep a request out of the batch from the next step on; it keeps its blocks until others need them."""
        if request.state in (RequestState.WAITING, RequestState.RUNNING):
            request.state = RequestState.PAUSED
            request.progress_s = now

    def resume(self, request: Request, now: float) -> None:
        """Let a paused request back in, with the token it would have produced."""
        if request.state is RequestState.PAUSED:
            request.state = RequestState.RUNNING if request.blocks else RequestState.WAITING
            request.progress_s = now

    def remove(self, request: Request) -> None:
        """End a request: its blocks, on the device and the host, are free when this returns."""
        request.state = RequestState.FINISHED
        request.free()
        self._drop_host(request)
        self.requests.pop(request.id, None)
        self._of[request.model].pop(request.id, None)

    def drop_swapped(self, model: ModelName) -> None:
        """Have a model's swapped-out requests computed again: a failed step may not have written their host blocks."""
        for request in self._of[model].values():
            self._drop_host(request)

    def count(self, state: RequestState) -> int:
        """Return how many live requests are in `state`."""
        return sum(1 for request in self.requests.values() if request.state is state)

    def of(self, model: ModelName) -> Collection[Request]:
        """Return the live requests of a model."""
        return self._of[model].values()

    def ready(self, models: Iterable[ModelName] | None = None) -> bool:
        """Return whether a step, of some models or of all, would have anything to do."""
        return any(request.ready for model in models or self._of for request in self._of[model].values())

    def check(self) -> None:
        """Assert that every block and every host block is accounted for."""
        for _ in self.audit():
            pass

    def audit(self) -> Iterator[None]:
        """Check the same a piece at a time, while nothing else changes; the first piece checks all the sums."""
        audits = []
        for model, resources in self.resources.items():
            requests = self._of[model].values()
            assert resources.host.used == sum(len(request.host_blocks) for request in requests), "host blocks leak"
            audits.append(resources.pool.audit([table for request in requests for table in request.tables]))
            next(audits[-1])
        yield
        for audit in audits:
            yield from audit

    # ---- one step

    def schedule(self, now: float, models: frozenset[ModelName] | None = None) -> Plan:
        """Return the plan of the next step, of some models or of all, with all its blocks already taken."""
        plan = Plan()
        placed: set[str] = set()
        tokens_left = self.limits.max_step_tokens
        models = models or frozenset(self.resources)
        order = self._order(now, models)
        self._contenders, self._yields = {request.id for request in order}, {}
        time = self.time(order)
        # All decodes fit, as long as the step holds nothing else and no guesses.
        roomy = time.fits_all(order)
        # Models without time for another prompt: the next prompts are not tried, so a long queue is cheap.
        full: set[ModelName] = set()
        # Whether critical requests have the step to themselves; never two steps in a row.
        lane_alone = False

        def room(request: Request, count: int) -> bool:
            return self._make_room(request, count, plan, placed)

        for request in order:
            if len(plan.rows) == self.limits.max_batch or tokens_left <= 0:
                break
            if lane_alone and request.priority is not Priority.CRITICAL:
                break
            if decoding := request.decoding:
                if not roomy and not time.fits_one(plan, request):
                    continue
                if not self.limits.lookup_tokens and plan.decode(request):  # nearly every row of a full step
                    placed.add(request.id)
                    tokens_left -= 1
                    request.progress_s = now
                    continue
                row = self.place(request, 1, plan, tokens_left - 1) if room(request, 1) else None
            else:
                if request.model in full:
                    continue
                if not time.chunk(plan, request, MIN_CHUNK):
                    full.add(request.model)
                    continue
                row = self.place_prompt(request, plan, time, tokens_left, room)
            if row is not None:
                placed.add(request.id)
                roomy = roomy and decoding and not self.limits.lookup_tokens
                if request.priority is Priority.CRITICAL and not decoding and time.budget_s < math.inf:
                    lane_alone = models not in self._was_alone
                tokens_left -= row.tokens
                request.progress_s = now
            elif self.limits.policy == "fcfs":
                break  # no request overtakes another
        (self._was_alone.add if lane_alone else self._was_alone.discard)(models)
        self._count_left_out(plan, placed, models)
        plan.predicted_s = plan.seconds(self.resources)
        return plan

    @property
    def budget_s(self) -> float:
        """How long a step may take."""
        if self.limits.policy != "deadline":
            return math.inf
        budget_s = self.limits.step_budget_s
        for resources in self.resources.values():
            if (least := resources.abilities.smallest_step) and resources.pool.num_blocks:
                budget_s = max(budget_s, SLOW_MACHINE_FACTOR * resources.cost.predict_with(Work(), least, least))
        return budget_s

    def time(self, order: Iterable[Request]) -> StepTime:
        """Return how long a step of some requests may take."""
        lane_in_use = any(request.priority is Priority.CRITICAL for request in order)
        return StepTime(self.resources, self.budget_s, lane_in_use=lane_in_use)

    # ---- order

    def _order(self, now: float, models: Iterable[ModelName]) -> list[Request]:
        ready = [request for model in models for request in self._of[model].values() if request.ready]
        # A request far ahead of its listener must make no step longer; it runs when no other request is ready.
        awake = [request for request in ready if request.not_needed_before_s <= now]
        if not awake and any(other.ready and other.not_needed_before_s <= now for other in self.requests.values()):
            return []
        if not awake:
            return self.in_order(ready, now)
        hurried = self._hurried(awake, now)
        if hurried:
            awake = [one for one in awake if one.model not in hurried or self._due(one) <= now + SPARE_S]
        return self.in_order(awake, now) + self._company(ready, awake, hurried, now)

    def _hurried(self, awake: list[Request], now: float) -> set[ModelName]:
        """Return the models that hurry and have a late request: its person hears nothing."""
        if self.limits.policy != "deadline":
            return set()
        models = {name for name, resources in self.resources.items() if resources.abilities.hurries}
        return {one.model for one in awake if one.model in models and self._due(one) <= now}

    def _company(
        self, ready: list[Request], awake: list[Request], hurried: Collection[ModelName], now: float
    ) -> list[Request]:
        """Return the requests that may join a step of their model before they are needed: a frame more costs little.

        None joins a model whose step holds a prompt, or a late request.
        """
        models = {one.model for one in awake} - {one.model for one in awake if not one.decoding} - set(hurried)
        resting = (one for one in ready if one.joins_from_s <= now < one.not_needed_before_s and one.model in models)
        return sorted(resting, key=lambda one: one.not_needed_before_s)

    def in_order(self, ready: list[Request], now: float) -> list[Request]:
        """Return requests in the order in which they are placed."""
        if self.limits.policy == "fcfs":
            # Requests that have started go first: one that was paused before it started must not block them.
            return sorted(ready, key=lambda request: (not (request.started or request.continues), request.number))
        self._age(ready, now)
        if self.limits.policy == "priority":
            return sorted(ready, key=lambda request: (not request.starved, -request.priority, request.number))
        return sorted(ready, key=lambda request: self._urgency(request, now))

    def _age(self, ready: list[Request], now: float) -> None:
        if not ready or any(request.starved for request in ready):
            return
        oldest = min(ready, key=lambda request: request.waiting_since_s)
        if now - oldest.waiting_since_s > PATIENCE_S:
            oldest.starved = True

    def _urgency(self, request: Request, now: float) -> tuple[int, float]:
        """Order by lane, then by slack: the time left until the next token is due, less the work it still needs.

        Lanes: starved requests; critical ones; those with output, a deadline or high priority; new prompts. Without
        the last two apart, an overloaded engine would stop every answer until all prompts are read.
        """
        next_token_s, due = self.resources[request.model].abilities.next_token_s, self._due(request)
        promised = request.first_token_s or request.due_s is not None or request.priority is Priority.HIGH
        if request.starved:
            lane = 0
        elif request.priority is Priority.CRITICAL:
            lane = 1
        else:
            lane = 2 if promised else 3
        if next_token_s is not None and request.decoding:
            return lane, due - now  # the next token takes about as long for every request
        needed_s = seconds_with(self.resources[request.model], NOTHING, request, request.pending)
        return lane, due - now - needed_s

    def _due(self, request: Request) -> float:
        """Return when a request's next token is due, or its next sound."""
        next_token_s = self.resources[request.model].abilities.next_token_s
        if request.first_token_s and next_token_s is not None:
            return request.last_token_s + next_token_s
        if request.due_s is not None:
            return request.due_s
        return request.arrival_s + FIRST_TOKEN_TARGET_S[request.priority]

    # ---- blocks

    def _make_room(self, request: Request, count: int, plan: Plan, placed: set[str]) -> bool:
        """Evict others until `count` tokens of `request` fit; return False if too few blocks yield to it, so it waits.

        It keeps its blocks while it waits: the request of the highest rank can always make room, so one always runs.
        """
        pool = self.resources[request.model].pool
        missing = self.missing(request, count)
        if missing <= pool.available:
            return True
        theirs = (request.model, self._rank(request)[0])
        if not request.started and missing > pool.available + self._yields.get(theirs, missing):
            return False  # requests before it found that too few yield: a long queue is cheap
        victims = self._victims(request, placed)
        held = Counter(block for victim in victims for block in victim.blocks)
        if not request.started:
            self._yields[theirs] = len(held)
        gain = sum(1 for block, times in held.items() if pool.references(block) == times)
        if missing > pool.available + gain:
            return False  # evicting would not be enough
        for victim in victims:
            if missing <= pool.available:
                break
            self._evict(victim, plan)
        return True

    def missing(self, request: Request, count: int) -> int:
        """Return how many blocks a request needs for `count` more tokens."""
        size = self.resources[request.model].pool.block_tokens
        if request.unit:
            return 0
        if request.host_blocks:
            return -(-(request.host_length + count) // size) + -(-request.cross_states // size)
        return request.table.needed(count) + (-(-request.cross_states // size) if request.unencoded else 0)

    def _victims(self, request: Request, placed: set[str]) -> list[Request]:
        """Return the requests that yield: first those not in the running, longest idle first, then lower ranks first.

        A request that never ran displaces only lower classes; one that ran before also displaces younger requests of
        its own class.
        """
        holders = [
            other
            for other in self.requests.values()
            if other.blocks
            and other.model == request.model
            and other.id not in placed
            and other is not request
            and other.state is not RequestState.CONCURRENT
        ]
        idle = [other for other in holders if other.id not in self._contenders]
        rank = self._rank(request)
        depth = 2 if request.started else 1
        below = [
            other for other in holders if other.id in self._contenders and self._rank(other)[:depth] < rank[:depth]
        ]
        return sorted(idle, key=lambda other: other.progress_s) + sorted(below, key=self._rank)

    def _rank(self, request: Request) -> tuple[int, tuple[int, int]]:
        """Order requests by their claim on memory. It does not depend on the clock: two cannot evict each other."""
        job, place = request.number
        if self.limits.policy == "fcfs":
            return 0, (-job, -place)
        return (len(Priority) if request.starved else int(request.priority)), (-job, -place)

    def _evict(self, victim: Request, plan: Plan) -> None:
        resources, load = self.resources[victim.model], plan.load(victim.model)
        recompute_s = recompute(victim).seconds(resources)
        swap_s = 2 * len(victim.blocks) * resources.swap_block_s
        if len(victim.blocks) <= resources.host.available and swap_s < recompute_s:
            host_blocks = resources.host.take(len(victim.blocks))
            load.moves += [
                Move("swap_out", source, target) for source, target in zip(victim.blocks, host_blocks, strict=True)
            ]
            victim.host_blocks, victim.host_length = host_blocks, victim.table.length
        victim.free()
        if victim.state is RequestState.RUNNING:
            victim.state = RequestState.WAITING
        victim.preemptions += 1
        plan.preempted += 1

    def place_prompt(
        self,
        request: Request,
        plan: Plan,
        time: StepTime,
        most: int,
        room: Callable[[Request, int], bool],
        *,
        whole: bool = False,
    ) -> Row | None:
        """Put as much of a prompt into the plan as the step has time for, up to `most` tokens; return its row.

        What the prefix cache holds of it counts as computed. `room` says whether there are blocks for so many tokens.
        With `whole`, all of the prompt is placed or nothing, and no guesses. None: what waits holds no blocks.
        """
        waiting = request.state is RequestState.WAITING
        # A score wants the logits of every token, so it can take nothing from the cache.
        if waiting and not request.host_blocks and request.task in CACHED_TASKS:
            request.table.adopt(request.tokens)
        count = time.chunk(plan, request, most)
        if count and (count == request.pending or not whole) and room(request, count):
            return self.place(request, count, plan, 0 if whole else most - count)
        if waiting:
            request.free()
        return None

    def place(self, request: Request, count: int, plan: Plan, drafts_left: int = 0) -> Row:
        """Put `count` tokens of a request, and up to `drafts_left` guesses, into the plan; return its row."""
        load = plan.load(request.model)
        if request.state is RequestState.WAITING:
            self._admit(request, plan)
        start, encode = request.table.length, request.unencoded
        drafts = [] if request.unit else self._drafts(request, start + count, drafts_left)
        row = Row(request, start, count, drafts, encode)
        size = count + len(drafts)
        load.work.add(size, request.computed + size)
        if encode:
            load.encoding.add(request.encoding, request.encoding)
        if encode and request.cross is not None:
            request.cross.append(request.states)
        load.moves += [Move("copy", source, target) for source, target in request.table.append(row.tokens)]
        load.rows.append(row)
        plan.rows.append(row)
        return row

    def _admit(self, request: Request, plan: Plan) -> None:
        """Make a waiting request a running one: swapped-out blocks come back, a cached prefix counts as computed."""
        if request.host_blocks:
            request.table.append(request.host_length)
            if request.cross is not None:
                request.cross.append(request.states)
            plan.load(request.model).moves += [
                Move("swap_in", source, target)
                for source, target in zip(request.host_blocks, request.blocks, strict=True)
            ]
            self._drop_host(request)
        request.state = RequestState.RUNNING
        if not request.started:
            request.started = True
            request.cached_tokens = request.table.length
            plan.admitted.append(request)

    def _drafts(self, request: Request, stop: int, tokens_left: int) -> list[int]:
        """Return guesses of the tokens after `stop`; a guess never takes blocks from another request."""
        drafts = guess(request, stop, tokens_left, self.limits.lookup_tokens)
        pool = self.resources[request.model].pool
        while drafts and self.missing(request, stop - request.computed + len(drafts)) > pool.available:
            drafts.pop()
        return drafts

    def _drop_host(self, request: Request) -> None:
        host = self.resources[request.model].host
        for block in request.host_blocks:
            host.release(block)
        request.host_blocks = []
        request.host_length = 0

    def _count_left_out(self, plan: Plan, batch: set[str], models: frozenset[ModelName]) -> None:
        for left_out in self._last_batch.get(models, set()) - batch:
            request = self.requests.get(left_out)
            if request is not None and request.state is RequestState.RUNNING and left_out in self._contenders:
                request.preemptions += 1
                plan.preempted += 1
        self._last_batch[models] = batch

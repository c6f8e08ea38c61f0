"""What runs in the next step. Pure: requests, blocks and a cost model in, a plan out; the clock is an argument.

The most urgent request is placed first, and a placed request is never a victim of the same plan: so whoever is first
in the order can always take what it needs, and the engine cannot deadlock.

What is short decides how somebody gives way:
    rows or time    the less urgent simply are not in this step; their blocks stay
    blocks          a victim is swapped to host memory if there is room and copying is cheaper than computing again,
                    else its blocks are dropped and it is prefilled anew; either way its tokens come out the same
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from voxlane.engine.api import Policy, Priority
from voxlane.engine.cost import CostModel, Work
from voxlane.engine.kv import BlockPool
from voxlane.engine.lookup import propose
from voxlane.engine.request import Request, State

MIN_CHUNK = 16
"""Fewest prefill tokens worth a place in a step, unless fewer are left: below this the weights are read for nothing."""

PATIENCE_S = 4.0
"""A request that was in no step for this long becomes `aged`; only one at a time, so that the lane stays open."""

FIRST_TOKEN_TARGET_S = {Priority.NORMAL: 2.0, Priority.HIGH: 0.5, Priority.CRITICAL: 0.1}
"""When a first token is due if the sender gave no deadline."""

NEXT_TOKEN_TARGET_S = 0.15
"""When each further token is due: about twice as fast as speech uses words."""

SLOW_MACHINE_FACTOR = 2.0
"""A step may always take this many times what the smallest prefill takes, or a slow machine would batch nothing."""

MoveKind = Literal["copy", "swap_out", "swap_in"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    max_batch: int = 16
    max_step_tokens: int = 512
    step_budget_s: float = 0.06
    policy: Policy = "deadline"
    lookup_tokens: int = 0
    swap_block_s: float = 1e-5  # seconds to move one block to the host or back


@dataclass(slots=True)
class Row:
    """One request's part of a step: tokens[start : start + count], then the drafts."""

    request: Request
    start: int
    count: int
    drafts: list[int] = field(default_factory=list)

    @property
    def reaches_end(self) -> bool:
        """Whether the row computes the newest token, so that the next one can be sampled."""
        return self.start + self.count == len(self.request.tokens)


@dataclass(frozen=True, slots=True)
class Move:
    """A block transfer. Moves happen in order, before the step's forward pass."""

    kind: MoveKind
    source: int
    target: int


@dataclass(slots=True)
class Plan:
    """What the next step does."""

    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)  # in a step for the first time
    work: Work = field(default_factory=Work)
    predicted_s: float = 0.0
    preempted: int = 0


@dataclass(frozen=True, slots=True)
class _Time:
    """How long a step may take, and so how many tokens of a request still fit into it."""

    cost: CostModel
    budget_s: float
    lane_in_use: bool  # a critical request is about: nothing may make its step longer than the budget

    def chunk(self, plan: Plan, request: Request, most: int) -> int:
        """Return how many of the request's next tokens, up to `most`, the step has time for; 0: none this time."""
        wanted = min(request.pending, most)
        if self.budget_s == math.inf:
            return wanted
        if request.aged and not request.decoding and self.lane_in_use:
            return min(wanted, MIN_CHUNK)  # it goes first, but the lane behind it stays open
        fits = self.cost.largest_chunk(plan.work, request.computed, wanted, self.budget_s)
        smallest = min(MIN_CHUNK, wanted)
        if fits >= smallest:
            return fits
        # An empty step always takes somebody, and a step of decodes always one prompt, so that prompts are read too.
        first_prompt = not request.decoding and plan.work.prefill_tokens == 0 and not self.lane_in_use
        return smallest if not plan.rows or first_prompt else 0


class Scheduler:
    """Holds the live requests and decides, step by step, which of them run."""

    def __init__(self, pool: BlockPool, host: BlockPool, cost: CostModel, limits: Limits) -> None:
        self.pool = pool
        self.host = host
        self.cost = cost
        self.limits = limits
        self.requests: dict[str, Request] = {}
        self._added = 0
        self._last_batch: set[str] = set()

    # ---- the request's life

    def add(self, request: Request) -> None:
        """Take a new request into the queue."""
        request.progress_s = request.arrival_s
        request.number = self._added
        self._added += 1
        self.requests[request.id] = request

    def pause(self, request: Request, now: float) -> None:
        """Keep a request out of the batch from the next step on; it keeps its blocks while nobody needs them."""
        if request.state in (State.WAITING, State.RUNNING):
            request.state = State.PAUSED
            request.progress_s = now

    def resume(self, request: Request, now: float) -> None:
        """Let a paused request back in, with the token it would have produced."""
        if request.state is State.PAUSED:
            request.state = State.RUNNING if request.table.blocks else State.WAITING
            request.progress_s = now

    def remove(self, request: Request) -> None:
        """End a request: its blocks, on the device and the host, are free when this returns."""
        request.state = State.FINISHED
        request.table.free()
        self._drop_host(request)
        self.requests.pop(request.id, None)

    def drop_swapped(self) -> None:
        """Have every swapped-out request computed again: after a step that broke off, host blocks may be unwritten."""
        for request in self.requests.values():
            self._drop_host(request)

    def count(self, state: State) -> int:
        """Return how many live requests are in `state`."""
        return sum(1 for request in self.requests.values() if request.state is state)

    def ready(self) -> bool:
        """Return whether a step would have anything to do."""
        return any(request.state in (State.WAITING, State.RUNNING) for request in self.requests.values())

    def check(self) -> None:
        """Assert that every block and every host block is accounted for."""
        self.pool.check(request.table for request in self.requests.values())
        assert self.host.used == sum(len(request.host_blocks) for request in self.requests.values()), "host blocks leak"

    # ---- one step

    def schedule(self, now: float) -> Plan:
        """Return the next step's plan, with all its blocks already taken."""
        plan = Plan()
        placed: set[str] = set()
        tokens_left = self.limits.max_step_tokens
        order = self._order(now)
        time = self._time(order)
        prompts_wait = False  # no time for this prompt means none for the next: a long queue costs nothing
        for request in order:
            if len(plan.rows) == self.limits.max_batch or tokens_left == 0:
                break
            if prompts_wait and not request.decoding:
                continue
            if time.chunk(plan, request, MIN_CHUNK) == 0:
                prompts_wait = prompts_wait or not request.decoding
                continue
            # A score wants the logits of every token, so it can take nothing from the cache.
            if request.state is State.WAITING and not request.host_blocks and request.task != "score":
                request.table.adopt(request.tokens)
            count = time.chunk(plan, request, tokens_left)
            if count and self._make_room(request, count, plan, placed):
                placed.add(request.id)
                tokens_left -= self._place(request, count, plan, tokens_left - count)
                request.progress_s = now
                continue
            if request.state is State.WAITING:
                request.table.free()
            if count and self.limits.policy == "fcfs":
                break  # nobody overtakes
        self._count_left_out(plan, placed)
        plan.predicted_s = self.cost.predict(plan.work)
        return plan

    def _time(self, order: list[Request]) -> _Time:
        if self.limits.policy != "deadline":
            return _Time(self.cost, math.inf, lane_in_use=False)
        smallest = self.cost.predict(Work().plus(MIN_CHUNK, MIN_CHUNK))
        lane_in_use = any(request.priority is Priority.CRITICAL for request in order)
        return _Time(self.cost, max(self.limits.step_budget_s, SLOW_MACHINE_FACTOR * smallest), lane_in_use=lane_in_use)

    # ---- order

    def _order(self, now: float) -> list[Request]:
        ready = [request for request in self.requests.values() if request.state in (State.WAITING, State.RUNNING)]
        if self.limits.policy == "fcfs":
            # Who has started goes on first: one that was paused before it started must not block them.
            return sorted(ready, key=lambda request: (not request.started, request.number))
        self._age(ready, now)
        if self.limits.policy == "priority":
            return sorted(ready, key=lambda request: (not request.aged, -request.priority, request.number))
        return sorted(ready, key=lambda request: self._urgency(request, now))

    def _age(self, ready: list[Request], now: float) -> None:
        if not ready or any(request.aged for request in ready):
            return
        oldest = min(ready, key=lambda request: request.progress_s)
        if now - oldest.progress_s > PATIENCE_S:
            oldest.aged = True

    def _urgency(self, request: Request, now: float) -> tuple[int, float]:
        """Order by lane, then by slack: the time left until the next token is due, less the work it still needs.

        Lanes: who starved; critical; who is being listened to, or has a promise; new prompts. Without the last two
        apart, an overloaded engine would let every answer stand still until all prompts were read.
        """
        if request.first_token_s:
            due = request.last_token_s + NEXT_TOKEN_TARGET_S
        elif request.due_s is not None:
            due = request.due_s
        else:
            due = request.arrival_s + FIRST_TOKEN_TARGET_S[request.priority]
        promised = request.first_token_s or request.due_s is not None or request.priority is Priority.HIGH
        if request.aged:
            lane = 0
        elif request.priority is Priority.CRITICAL:
            lane = 1
        else:
            lane = 2 if promised else 3
        needed = self.cost.predict(Work().plus(request.pending, len(request.tokens)))
        return lane, due - now - needed

    # ---- blocks

    def _make_room(self, request: Request, count: int, plan: Plan, placed: set[str]) -> bool:
        """Evict others until `count` tokens of `request` fit; False: nobody has to yield to it, so it waits.

        It keeps what it holds while it waits: the highest in rank can always make room, so somebody always runs.
        """
        missing = self._missing(request, count)
        if missing <= self.pool.available:
            return True
        victims = self._victims(request, placed)
        held = Counter(block for victim in victims for block in victim.table.blocks)
        gain = sum(1 for block, times in held.items() if self.pool.references(block) == times)
        if missing > self.pool.available + gain:
            return False  # nobody is evicted for nothing
        for victim in victims:
            if missing <= self.pool.available:
                break
            self._evict(victim, plan)
        return True

    def _missing(self, request: Request, count: int) -> int:
        if request.host_blocks:
            return -(-(request.host_length + count) // self.pool.block_tokens)
        return request.table.needed(count)

    def _victims(self, request: Request, placed: set[str]) -> list[Request]:
        """Return who yields, in order: paused requests, longest first, then those below `request`, lowest first.

        A request that never ran displaces only lower classes; one that ran before also displaces younger equals.
        """
        holders = [
            other
            for other in self.requests.values()
            if other.table.blocks and other.id not in placed and other is not request
        ]
        paused = [other for other in holders if other.state is State.PAUSED]
        rank = self._rank(request)
        depth = 2 if request.started else 1
        below = [
            other for other in holders if other.state is not State.PAUSED and self._rank(other)[:depth] < rank[:depth]
        ]
        return sorted(paused, key=lambda other: other.progress_s) + sorted(below, key=self._rank)

    def _rank(self, request: Request) -> tuple[int, int]:
        """Order requests by their claim on memory. It does not depend on the clock: two cannot evict each other."""
        if self.limits.policy == "fcfs":
            return 0, -request.number
        return (len(Priority) if request.aged else int(request.priority)), -request.number

    def _evict(self, victim: Request, plan: Plan) -> None:
        table = victim.table
        recompute_s = self.cost.predict(Work().plus(max(table.length, 2), table.length))
        swap_s = 2 * len(table.blocks) * self.limits.swap_block_s
        if len(table.blocks) <= self.host.available and swap_s < recompute_s:
            victim.host_blocks = self.host.take(len(table.blocks))
            victim.host_length = table.length
            plan.moves += [
                Move("swap_out", source, target)
                for source, target in zip(table.blocks, victim.host_blocks, strict=True)
            ]
        table.free()
        if victim.state is State.RUNNING:
            victim.state = State.WAITING
        victim.preemptions += 1
        plan.preempted += 1

    def _place(self, request: Request, count: int, plan: Plan, tokens_left: int) -> int:
        """Put the request into the plan; return how many tokens that adds to the step."""
        if request.state is State.WAITING:
            self._admit(request, plan)
        start = request.table.length
        drafts = self._drafts(request, count, tokens_left)
        copies = request.table.append(count + len(drafts))
        plan.moves += [Move("copy", source, target) for source, target in copies]
        plan.rows.append(Row(request, start, count, drafts))
        plan.work = plan.work.plus(count + len(drafts), start + count + len(drafts))
        return count + len(drafts)

    def _admit(self, request: Request, plan: Plan) -> None:
        """Make a waiting request a running one: swapped-out blocks come back, a cached prefix counts as computed."""
        if request.host_blocks:
            request.table.append(request.host_length)
            plan.moves += [
                Move("swap_in", source, target)
                for source, target in zip(request.host_blocks, request.table.blocks, strict=True)
            ]
            self._drop_host(request)
        request.state = State.RUNNING
        if not request.started:
            request.started = True
            request.cached_tokens = request.table.length
            plan.admitted.append(request)

    def _drafts(self, request: Request, count: int, tokens_left: int) -> list[int]:
        """Guess the next tokens of a plain greedy decode; a guess never takes blocks from anybody."""
        sampling = request.sampling
        plain = sampling.is_plain_greedy and sampling.logprobs < 0
        if not (self.limits.lookup_tokens and plain and count == 1 and request.task != "score"):
            return []
        room = min(
            self.limits.lookup_tokens,
            tokens_left,
            sampling.max_tokens - request.output_tokens - 1,
            request.limit - len(request.tokens) - 1,
        )
        drafts = propose(request.tokens, room)
        while drafts and request.table.needed(count + len(drafts)) > self.pool.available:
            drafts.pop()
        return drafts

    def _drop_host(self, request: Request) -> None:
        for block in request.host_blocks:
            self.host.release(block)
        request.host_blocks = []
        request.host_length = 0

    def _count_left_out(self, plan: Plan, placed: Iterable[str]) -> None:
        batch = set(placed)
        for left_out in self._last_batch - batch:
            request = self.requests.get(left_out)
            if request is not None and request.state is State.RUNNING:
                request.preemptions += 1
                plan.preempted += 1
        self._last_batch = batch

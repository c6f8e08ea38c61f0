"""The step loop: schedule, run, postprocess, collect. It joins the parts and owns none of their rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from voxlane.engine.api import (
    Cancel,
    Finished,
    FinishReason,
    FromEngine,
    Interrupt,
    Pause,
    Priority,
    Refused,
    RequestStats,
    Resume,
    Started,
    StepStats,
    Submit,
    Text,
    ToEngine,
    TokenLogprob,
)
from voxlane.engine.detokenizer import TextStream
from voxlane.engine.intake import Intake, Refusal, TextCodec
from voxlane.engine.request import Request, State
from voxlane.engine.runner import Outcome
from voxlane.engine.sampler import Choice
from voxlane.engine.scheduler import Plan, Row, Scheduler
from voxlane.engine.trace import Trace

log = logging.getLogger(__name__)

STATS_INTERVAL_S = 1.0
CRITICAL_QUEUE_FACTOR = 4
"""How much longer than `max_waiting` the queue may get before a critical request is refused too."""


class Engine(Protocol):
    """What runs a plan: a model with its cache, or in a simulation something that pretends to be one."""

    phases: dict[str, tuple[float, float]]

    def run(self, plan: Plan) -> list[Outcome]:
        """Carry out the plan; outcomes are in the order of its rows."""


@dataclass(slots=True)
class _Job:
    """What a Submit became: its requests, its text so far, and for a score the sum over its windows."""

    submit: Submit
    requests: dict[str, Request]
    stream: TextStream
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of text that is still held back
    prompt_tokens: int = 0
    logprob_sum: float = 0.0
    scored_tokens: int = 0


class Core:
    """An engine without its process: commands in, messages out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        tokenizer: TextCodec,
        intake: Intake,
        *,
        clock: Callable[[], float],
        max_waiting: int = 256,
        trace: Trace | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._engine = engine
        self._tokenizer = tokenizer
        self._intake = intake
        self._clock = clock
        self._max_waiting = max_waiting
        self._trace = trace
        self._jobs: dict[str, _Job] = {}
        self._owner: dict[str, _Job] = {}  # by the id of a request, which a score job has several of
        self._meter = _Meter(clock())

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.ready()

    def handle(self, commands: Iterable[ToEngine]) -> list[FromEngine]:
        """Apply commands in order; return what they lead to at once. All of it is in force at the next step."""
        messages: list[FromEngine] = []
        for command in commands:
            match command:
                case Submit():
                    messages += self._submit(command)
                case Cancel(request_id):
                    messages += self._cancel(request_id)
                case Pause(request_id):
                    self._each(request_id, self.scheduler.pause)
                case Resume(request_id):
                    self._each(request_id, self._resume)
                case Interrupt(session):
                    for job in [job for job in self._jobs.values() if job.submit.session == session]:
                        self._each(job.submit.request_id, self.scheduler.pause)
                case _:
                    raise AssertionError(f"{type(command).__name__} is for the process, not the core")
        return messages

    def step(self) -> list[FromEngine]:
        """Run one step; return the messages it leads to."""
        begin = self._clock()
        plan = self.scheduler.schedule(begin)
        assert plan.rows, "an engine with work must have a row to run"
        messages = self._admit(plan, begin)
        planned = self._clock()
        outcomes = self._run(plan)
        ran = self._clock()
        for row, outcome in zip(plan.rows, outcomes, strict=True):
            if row.request.state is not State.FINISHED:  # another row of its job may just have ended it
                messages += self._advance(row, outcome, ran)
        self._record(plan, begin, planned, ran)
        return messages

    def _run(self, plan: Plan) -> list[Outcome]:
        """Run the plan; a fault ends the requests that were in it and nobody else."""
        begin = self._clock()
        try:
            outcomes = self._engine.run(plan)
        except (RuntimeError, ValueError, IndexError, TypeError):
            log.exception("step failed rows=%d", len(plan.rows))
            self.scheduler.drop_swapped()
            return [Outcome(failed=True) for _ in plan.rows]
        self.scheduler.cost.observe(plan.work, self._clock() - begin)
        return outcomes

    def idle(self) -> list[FromEngine]:
        """Note that there is nothing to do: check the books, flush the trace, report."""
        self.scheduler.check()
        if self._trace:
            self._trace.flush()
        return [self._meter.report(self._clock(), self.scheduler)]  # a cancel may have changed the counts

    def stats_due(self) -> list[FromEngine]:
        """Return a report if the last one is old enough."""
        now = self._clock()
        return [self._meter.report(now, self.scheduler)] if self._meter.due(now) else []

    # ---- commands

    def _submit(self, submit: Submit) -> list[FromEngine]:
        now = self._clock()
        try:
            self._check_queue(submit)
            requests = self._intake.requests(submit, now)
        except Refusal as refusal:
            return [Refused(submit.request_id, submit.epoch, refusal.code, refusal.detail)]
        job = _Job(submit, {request.id: request for request in requests}, TextStream(submit.sampling.stop))
        job.prompt_tokens = sum(request.prompt_tokens for request in requests)
        self._jobs[submit.request_id] = job
        for request in requests:
            self._owner[request.id] = job
            self.scheduler.add(request)
        return []

    def _check_queue(self, submit: Submit) -> None:
        if submit.request_id in self._jobs:
            raise Refusal("duplicate_id", "a request with this id is running")
        most = self._max_waiting * (CRITICAL_QUEUE_FACTOR if submit.priority is Priority.CRITICAL else 1)
        waiting = sum(1 for job in self._jobs.values() if not any(r.started for r in job.requests.values()))
        if waiting >= most:
            raise Refusal("overloaded", f"{waiting} requests are waiting")

    def _cancel(self, request_id: str) -> list[FromEngine]:
        job = self._jobs.get(request_id)
        if job is None:
            return []
        if self._trace:
            for name in job.requests:
                self._trace.forget(name)
        return [self._end(job, "cancelled", self._clock())]

    def _each(self, request_id: str, action: Callable[[Request, float], None]) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            for request in job.requests.values():
                action(request, self._clock())

    def _resume(self, request: Request, now: float) -> None:
        if request.state is State.PAUSED:
            self._trace_row(request, "paused", request.progress_s, now)
        self.scheduler.resume(request, now)

    # ---- a step's results

    def _admit(self, plan: Plan, now: float) -> list[FromEngine]:
        messages: list[FromEngine] = []
        for request in plan.admitted:
            request.started_s = now
            job = self._owner[request.id]
            if request.priority is Priority.CRITICAL:
                self._meter.lane_wait_s = max(self._meter.lane_wait_s, now - request.arrival_s)
            self._trace_row(request, "queued", request.arrival_s, now)
            if request.task != "score":
                submit = job.submit
                messages.append(Started(submit.request_id, submit.epoch, request.prompt_tokens, request.cached_tokens))
        return messages

    def _advance(self, row: Row, outcome: Outcome, now: float) -> list[FromEngine]:
        """Give a request what its row brought; end it if that was its last step."""
        request, job = row.request, self._owner[row.request.id]
        if outcome.failed:
            return [self._end(job, "failed", now)]
        if request.task == "score":
            return self._scored(row, outcome, job, now)
        messages: list[FromEngine] = []
        if row.drafts:
            hits = len(outcome.choices) - 1
            request.lookup_proposed += len(row.drafts)
            request.lookup_accepted += hits
            self._meter.count_lookup(len(row.drafts), hits)
        text, reason = "", None
        for choice in outcome.choices:
            text += self._take(request, job, choice, now)
            reason = self._reason(request, job, choice)
            if reason:
                text += job.stream.finish()
                break
        if outcome.choices:
            request.table.rewind(len(request.tokens) - 1)  # rejected guesses go
        request.table.seal(request.tokens)
        if text or (reason and job.logprobs):
            messages.append(Text(job.submit.request_id, job.submit.epoch, text, tuple(job.logprobs)))
            job.logprobs.clear()
        if reason:
            messages.append(self._end(job, reason, now))
        return messages

    def _take(self, request: Request, job: _Job, choice: Choice, now: float) -> str:
        request.tokens.append(choice.token)
        request.first_token_s = request.first_token_s or now
        request.last_token_s = now
        # A model's vocabulary may be padded past the tokenizer's: such a token says nothing.
        silent = choice.token in self._tokenizer.special_ids or choice.token >= self._tokenizer.vocab_size
        piece = b"" if silent else self._tokenizer.token_bytes(choice.token)
        if choice.logprob is not None and not silent:
            top = tuple((self._spelling(token), logprob) for token, logprob in choice.top)
            job.logprobs.append(TokenLogprob(piece, choice.logprob, top))
        return job.stream.push(piece)

    def _spelling(self, token: int) -> bytes:
        if token in self._tokenizer.special_ids or token >= self._tokenizer.vocab_size:
            return self._tokenizer.token_name(token).encode()
        return self._tokenizer.token_bytes(token)

    def _reason(self, request: Request, job: _Job, choice: Choice) -> FinishReason | None:
        sampling = request.sampling
        if choice.token in self._tokenizer.eos_ids and not sampling.ignore_eos:
            return "eos"
        if job.stream.stopped:
            return "stop"
        if request.output_tokens >= sampling.max_tokens or len(request.tokens) >= request.limit:
            return "length"
        return None

    def _scored(self, row: Row, outcome: Outcome, job: _Job, now: float) -> list[FromEngine]:
        request = row.request
        job.logprob_sum += outcome.logprob_sum
        job.scored_tokens += outcome.scored_tokens
        request.scored_tokens += outcome.scored_tokens
        if not row.reaches_end:
            return []
        request.first_token_s = request.last_token_s = now
        if len(job.requests) == 1:
            return [self._end(job, "length", now)]
        self._forget(job, request)
        return []

    def _end(self, job: _Job, reason: FinishReason, now: float) -> Finished:
        """Close a job: its blocks are free when this returns."""
        stats = self._stats(job, now)
        for request in list(job.requests.values()):
            self._forget(job, request)
        del self._jobs[job.submit.request_id]
        return Finished(job.submit.request_id, job.submit.epoch, reason, stats)

    def _forget(self, job: _Job, request: Request) -> None:
        self.scheduler.remove(request)
        del job.requests[request.id]
        del self._owner[request.id]

    @staticmethod
    def _stats(job: _Job, now: float) -> RequestStats:
        last = next(reversed(job.requests.values()))
        return replace(
            last.stats(now),
            prompt_tokens=job.prompt_tokens,
            logprob_sum=job.logprob_sum,
            scored_tokens=job.scored_tokens,
        )

    def _record(self, plan: Plan, begin: float, planned: float, ran: float) -> None:
        end = self._clock()
        phases = {"schedule": (begin, planned), **self._engine.phases, "publish": (ran, end)}
        self._meter.count(plan, end - begin, phases)
        if self._trace is None:
            return
        self._trace.step(
            begin, end, phases, rows=len(plan.rows), prefill=plan.work.prefill_tokens, predicted_s=plan.predicted_s
        )
        for row in plan.rows:
            what = "decode" if row.count == 1 else f"prefill {row.count}"
            self._trace_row(row.request, what, planned, ran, start=row.start, drafts=len(row.drafts))
            if row.request.state is State.FINISHED:
                self._trace.forget(row.request.id)

    def _trace_row(self, request: Request, what: str, start_s: float, stop_s: float, **counts: object) -> None:
        if self._trace:
            self._trace.row(request.id, request.priority.name.lower(), what, start_s, stop_s, **counts)


class _Meter:
    """Adds up steps between two reports."""

    def __init__(self, now: float) -> None:
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
        for name in self._phases:
            begin, end = phases.get(name, (0.0, 0.0))
            self._phases[name] += end - begin
        self._busy_s += seconds
        self._longest_s = max(self._longest_s, seconds)
        self._prefill += plan.work.prefill_tokens
        self._decode += sum(1 for row in plan.rows if row.count == 1)
        self._preempted += plan.preempted

    def count_lookup(self, proposed: int, accepted: int) -> None:
        self._proposed += proposed
        self._accepted += accepted

    def due(self, now: float) -> bool:
        return self.steps > 0 and now - self._since >= STATS_INTERVAL_S

    def report(self, now: float, scheduler: Scheduler) -> StepStats:
        pool = scheduler.pool
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
            running=scheduler.count(State.RUNNING),
            waiting=scheduler.count(State.WAITING),
            paused=scheduler.count(State.PAUSED),
            blocks_free=pool.free,
            blocks_cached=pool.cached,
            blocks_used=pool.used,
            preemptions=self._preempted,
            lane_wait_s=self.lane_wait_s,
        )
        self._since = now
        self._clear()
        return stats

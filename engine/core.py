"""The step loop: schedule, launch, collect, advance. It joins the parts and owns none of their rules.

On the host a step is run from beginning to end. On a device it is left under way: commands are handled, jobs work, and
what the step before it brought is told while it runs. Where its tokens cannot change what comes next, that is planned
meanwhile too, and launched as soon as the device is free, unless a command has come: that is in force in the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait
from typing import Protocol

from voxlane.engine.ahead import plan_ahead, take_back
from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FinishReason,
    FromEngine,
    Interrupt,
    Pause,
    Priority,
    Refused,
    Resume,
    Started,
    Submit,
    Task,
    ToEngine,
)
from voxlane.engine.flight import Engine, Engines, Flight
from voxlane.engine.intake import Refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.meter import Meter
from voxlane.engine.plan import Plan
from voxlane.engine.request import ModelName, Request, State
from voxlane.engine.scheduler import Scheduler
from voxlane.engine.trace import Trace

WORK_BUDGET_S = 0.01
"""How long jobs may work between two steps; who was left out is first the next time."""

WORK_ROUNDS = 4
"""In how many steps each job that wants to work has its turn, however soon a device is done."""

CRITICAL_QUEUE_FACTOR = 4
"""How much longer than `max_waiting` the queue may get before a critical request is refused too."""

REST_S = 1e-3
"""How long a step with nothing to run waits for what a job awaits. Commands that come meanwhile wait as long."""

MODEL_OF: Mapping[Task, ModelName] = {
    "chat": "chat",
    "complete": "chat",
    "score": "chat",
    "probe": "chat",
    "asr": "asr",
    "tts": "tts",
}


class Desk(Protocol):
    """Where jobs for one model are opened."""

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""


class Core:
    """An engine without its process: commands in, messages out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[ModelName, Engine],
        desks: Mapping[ModelName, Desk],
        *,
        clock: Callable[[], float],
        max_waiting: int = 256,
        trace: Trace | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._engines = Engines(engines, scheduler, clock)
        self._flight: Flight | None = None
        self._desks = desks
        self._clock = clock
        self._max_waiting = max_waiting
        self._trace = trace
        self._jobs: dict[str, Job] = {}
        self._owner: dict[str, Job] = {}  # by the id of a request, of which a job may have several
        self._meter = Meter(clock())
        self._recorded = 0.0  # until when
        self._opened = 0  # jobs
        self._round = 0  # of work between steps
        self._touched = True  # something was done since the books were checked

    @property
    def busy(self) -> bool:
        """Whether a step is under way, or would do anything."""
        ready = self._flight is not None or self.scheduler.ready()
        return ready or any(job.wants_work for job in self._jobs.values())

    def handle(self, commands: Iterable[ToEngine]) -> list[FromEngine]:
        """Apply commands in order; return what they lead to at once. All of it is in force at the next step.

        A step may be under way: what it brings for a request that was cancelled meanwhile is dropped, for one that was
        paused it counts.
        """
        messages: list[FromEngine] = []
        for command in commands:
            match command:
                case Submit():
                    messages += self._submit(command)
                case Append(request_id):
                    messages += self._append(request_id, command)
                case EndInput(request_id):
                    messages += self._tell(request_id, lambda job, now: job.end_input(now))
                case Cancel(request_id):
                    messages += self._cancel(request_id)
                case Pause(request_id):
                    self._pause(self._jobs.get(request_id))
                case Resume(request_id):
                    self._resume(self._jobs.get(request_id))
                case Interrupt(session):
                    for job in [job for job in self._jobs.values() if job.submit.session == session]:
                        self._pause(job)
                case _:
                    raise AssertionError(f"{type(command).__name__} is for the process, not the core")
        return messages

    def step(self, receive: Callable[[], Iterable[ToEngine]] = tuple) -> list[FromEngine]:
        """Take the engine a step further; return the messages that leads to.

        That ends the step under way, if there is one, applies the commands `receive` then gives, and begins another.
        """
        begin = self._clock()
        messages = self._work(begin)
        if (flight := self._flight) is not None:
            self._flight, told = self._land(flight, receive)
            messages += told
            if self._flight is not None or not self._engines.overlap:
                return messages  # what an engine does on the host is not begun before these were told
            begin = self._clock()
        if not self.scheduler.ready():
            if awaited := [job.awaited for job in self._jobs.values() if job.awaited is not None]:
                wait(awaited, REST_S, FIRST_COMPLETED)
            return messages
        plan = self.scheduler.schedule(begin)
        assert plan.rows, "an engine with work must have a row to run"
        messages += self._admit(plan, begin)
        flight = self._engines.launch(plan, (begin, self._clock()))
        if flight.overlaps:
            self._flight = flight
        else:
            self._engines.wait(flight)
            messages += self._advance(flight)
        return messages

    def _land(
        self, flight: Flight, receive: Callable[[], Iterable[ToEngine]]
    ) -> tuple[Flight | None, list[FromEngine]]:
        """End the step under way; go on at once with what was planned ahead, if there is no command."""
        begin = self._clock()
        ahead = plan_ahead(self.scheduler, flight.plan, begin, self._engines.foresees)
        if ahead is not None:
            self._engines.prepare(ahead)
        planned = self._clock()
        messages: list[FromEngine] = []
        while True:
            done = self._engines.done(flight)
            commands = list(receive())
            if commands and ahead is not None:
                take_back(ahead)
                ahead = None
            if done:
                break
            messages += self.handle(commands)
        self._engines.wait(flight)
        following: Flight | None = None
        if ahead is not None and flight.sound:
            following = self._engines.launch(ahead, (begin, planned))
        if ahead is not None and (following is None or not following.sound):
            take_back(ahead)
            following = None
        return following, messages + self._advance(flight) + self.handle(commands)

    def _advance(self, flight: Flight) -> list[FromEngine]:
        """Hand out what a step brought."""
        messages: list[FromEngine] = []
        outcomes, now = self._engines.collect(flight), flight.landed
        for model, load in flight.plan.loads.items():
            for row, outcome in zip(load.rows, outcomes[model], strict=True):
                if row.request.state is State.FINISHED:  # cancelled, or another row of its job has just ended it
                    continue
                job = self._owner[row.request.id]
                change = Change(end="failed") if outcome.failed else job.advance(row, outcome, now)
                if row.drafts and row.request.model == "chat" and not outcome.failed:
                    self._meter.count_lookup(len(row.drafts), len(outcome.choices) - 1)
                messages += self._apply(job, change, now)
        self._record(flight)
        return messages

    def _work(self, begin: float) -> list[FromEngine]:
        """Let jobs do what no step waits for, the urgent and the long neglected first, for a few milliseconds.

        With a step under way that is while the device is busy, but for a share of them in any case.
        """
        self._round += 1
        messages: list[FromEngine] = []
        wanting = [job for job in self._jobs.values() if job.wants_work]
        due = len(wanting) if self._flight is None else -(-len(wanting) // WORK_ROUNDS)
        for count, job in enumerate(sorted(wanting, key=lambda job: (-job.submit.priority, job.worked)), start=1):
            job.worked = self._round
            messages += self._apply(job, job.work(begin), begin)
            if self._clock() - begin > WORK_BUDGET_S:
                break
            if count >= due and self._flight is not None and self._engines.done(self._flight):
                break
        return messages

    def idle(self) -> list[FromEngine]:
        """Note that there is nothing to do: check the books, flush the trace, report; once after something was done."""
        if not self._touched:
            return []
        self._touched = False
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
            desk = self._desks.get(MODEL_OF[submit.task])
            if desk is None:
                raise Refusal("no_model", f"this engine has no model for {submit.task}")
            job = desk.open(submit, now)
        except Refusal as refusal:
            return [Refused(submit.request_id, submit.epoch, refusal.code, refusal.detail)]
        self._opened += 1
        job.number, self._touched = self._opened, True
        self._jobs[submit.request_id] = job
        return self._apply(job, job.open(now), now)

    def _check_queue(self, submit: Submit) -> None:
        if submit.request_id in self._jobs:
            raise Refusal("duplicate_id", "a request with this id is running")
        most = self._max_waiting * (CRITICAL_QUEUE_FACTOR if submit.priority is Priority.CRITICAL else 1)
        waiting = sum(1 for job in self._jobs.values() if job.requests and not job.started)
        if waiting >= most:
            raise Refusal("overloaded", f"{waiting} requests are waiting")

    def _tell(self, request_id: str, event: Callable[[Job, float], Change]) -> list[FromEngine]:
        job, now = self._jobs.get(request_id), self._clock()
        return [] if job is None else self._apply(job, event(job, now), now)

    def _append(self, request_id: str, more: Append) -> list[FromEngine]:
        return self._tell(request_id, lambda job, now: job.append(more, now))

    def _cancel(self, request_id: str) -> list[FromEngine]:
        job = self._jobs.get(request_id)
        return [] if job is None else [self._end(job, "cancelled", self._clock())]

    def _pause(self, job: Job | None) -> None:
        if job is not None:
            job.paused = True
            for request in job.requests.values():
                self.scheduler.pause(request, self._clock())

    def _resume(self, job: Job | None) -> None:
        if job is None:
            return
        job.paused, now = False, self._clock()
        for request in job.requests.values():
            if request.state is State.PAUSED:
                self._trace_row(request, "paused", request.progress_s, now)
            self.scheduler.resume(request, now)

    # ---- what jobs want

    def _apply(self, job: Job, change: Change, now: float) -> list[FromEngine]:
        """Carry out what an event did to a job."""
        if change.refusal is not None:
            del self._jobs[job.submit.request_id]
            return [Refused(job.submit.request_id, job.submit.epoch, change.refusal.code, change.refusal.detail)]
        if change.end is not None:
            return [*change.messages, self._end(job, change.end, now)]
        for request in change.drop:
            self._forget(job, request)
        for request in change.begin:
            job.requests[request.id] = request
            self._owner[request.id] = job
            request.job, request.continues = job.submit.request_id, job.started or request.model != "chat"
            self.scheduler.add(request, job.number)
            if job.paused:
                self.scheduler.pause(request, now)
        return change.messages

    def _end(self, job: Job, reason: FinishReason, now: float) -> Finished:
        """Close a job: its blocks are free when this returns."""
        stats = job.stats(now)
        job.close()
        for request in list(job.requests.values()):
            self._forget(job, request)
        del self._jobs[job.submit.request_id]
        self._touched = True
        return Finished(job.submit.request_id, job.submit.epoch, reason, stats)

    def _forget(self, job: Job, request: Request) -> None:
        self.scheduler.remove(request)
        del job.requests[request.id]
        del self._owner[request.id]

    # ---- a step

    def _admit(self, plan: Plan, now: float) -> list[FromEngine]:
        messages: list[FromEngine] = []
        for request in plan.admitted:
            request.started_s = now
            job = self._owner[request.id]
            if request.priority is Priority.CRITICAL:
                self._meter.lane_wait_s = max(self._meter.lane_wait_s, now - request.arrival_s)
            self._trace_row(request, "queued", request.arrival_s, now)
            if not job.started:
                job.started_s = now
                if request.task != "score":
                    submit = job.submit
                    messages.append(
                        Started(submit.request_id, submit.epoch, request.prompt_tokens, request.cached_tokens)
                    )
        return messages

    def _record(self, flight: Flight) -> None:
        plan, end = flight.plan, self._clock()
        begin, self._recorded = max(flight.planning[0], self._recorded), end  # steps that overlap are not counted twice
        self._touched = True
        phases = {"schedule": flight.planning, "publish": (flight.landed, end)}
        for model in plan.loads:
            mark = "" if model == "chat" else f"{model} "
            phases |= {f"{mark}{name}": span for name, span in self._engines[model].phases.items()}
        self._meter.count(plan, end - begin, phases)
        if self._trace is None:
            return
        self._trace.step(
            begin, end, phases, rows=len(plan.rows), prefill=plan.prefill_tokens, predicted_s=plan.predicted_s
        )
        for row in plan.rows:
            what = "decode" if row.count == 1 else f"prefill {row.count}"
            if row.request.unit:
                what = f"say {row.request.unit}"
            elif row.encode:
                what = f"hear {row.request.states}"
            self._trace_row(row.request, what, flight.launched, flight.landed, start=row.start, drafts=len(row.drafts))
        self._trace.keep(self._jobs)

    def _trace_row(self, request: Request, what: str, start_s: float, stop_s: float, **counts: object) -> None:
        if self._trace:
            self._trace.row(request.job, request.priority.name.lower(), what, start_s, stop_s, **counts)

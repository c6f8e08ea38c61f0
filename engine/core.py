"""The step loop: schedule, launch, collect, advance. It joins the parts and owns none of their rules.

On the host a step is run from beginning to end. On a device each model has steps of its own, which are left under way:
commands are handled, jobs work, and what the step before brought is told while one runs. Where its tokens cannot change
what follows, that is planned meanwhile, and launched once it is over, unless a command has come: that is in force then.

Whatever the loop is at, it looks up every millisecond or so: an interruption is in force and a critical prompt is on
the device before the loop goes on with what it was doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, wait

from voxlane.engine.ahead import plan_ahead, take_back
from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FinishReason,
    ForgetVoice,
    FromEngine,
    Interrupt,
    KeepVoice,
    Pause,
    Refused,
    Resume,
    Started,
    Submit,
    ToEngine,
)
from voxlane.engine.desks import Cloning, Desk, Desks
from voxlane.engine.flight import Engine, Engines, Flight, Track
from voxlane.engine.inbox import Inbox, Receive, stirs
from voxlane.engine.intake import Refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.lane import Lane
from voxlane.engine.outbox import Outbox, Tell
from voxlane.engine.plan import Plan
from voxlane.engine.record import Record
from voxlane.engine.request import ModelName, Request, State
from voxlane.engine.scheduler import Scheduler
from voxlane.engine.trace import Trace

WORK_BUDGET_S = 0.01
"""How long jobs may work between two steps; who was left out is first the next time."""

WORK_ROUNDS = 4
"""In how many steps each job that wants to work has its turn, however soon a device is done."""

LOOK_ROWS = 16
"""Rows of a step that are handed out between two looks at the socket: some 0.2 ms."""

REST_S = 1e-3
"""How long a step with nothing to run waits for what a job awaits. Commands that come meanwhile wait as long."""


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
        cloning: Cloning | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._engines = Engines(engines, scheduler, clock)
        together = [[name] for name in engines] if self._engines.overlap else [list(engines)]
        self._tracks = [Track(frozenset(names)) for names in together]
        self._lane = Lane(engines, scheduler, clock)
        self._desks = Desks(desks, cloning, max_waiting)
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._owner: dict[str, Job] = {}  # by the id of a request, of which a job may have several
        self._inbox = Inbox(self._session_of)
        self._receive: Receive = tuple
        self._out = Outbox()
        self._record = Record(clock, trace)
        self._opened = 0  # jobs
        self._round = 0  # of work between steps
        self._touched = True  # something was done since the books were checked

    @property
    def busy(self) -> bool:
        """Whether a step is under way, or would do anything."""
        ready = bool(self._flights) or self._lane.busy or self.scheduler.ready()
        return ready or len(self._inbox) > 0 or any(job.wants_work for job in self._jobs.values())

    def handle(self, commands: Iterable[ToEngine]) -> list[FromEngine]:
        """Apply commands in order; return what they lead to at once. All of it is in force at the next step.

        A step may be under way: what it brings for a request that was cancelled meanwhile is dropped, for one that was
        paused it counts.
        """
        self._inbox.add(commands)
        messages: list[FromEngine] = []
        while len(self._inbox):
            messages += self._carry_out(self._inbox.next())
        return messages

    def step(self, receive: Receive = tuple, tell: Tell | None = None) -> list[FromEngine]:
        """Take the engine a step further; return the messages that leads to.

        That ends the step under way, if there is one, applies the commands `receive` gives, and begins another. What
        cannot wait until it returns is told by `tell`, if there is one.
        """
        self._receive = receive
        self._out.open(tell)
        self._go_on()
        return self._out.take()

    def _go_on(self) -> None:
        begin = self._clock()
        self._look()
        if not self._flights:
            self._drain()
        self._work(begin)
        if self._flights:
            self._await_one()
            for track in self._tracks:
                if track.flight is not None and self._engines.done(track.flight):
                    self._land(track, track.flight)
            self._drain()
            if not self._engines.overlap:
                return  # what an engine does on the host is not begun before these were told
        for track in self._tracks:
            if track.flight is None:
                self._begin(track)
        if self._flights or self._lane.busy or self.scheduler.ready():
            return
        if awaited := [job.awaited for job in self._jobs.values() if job.awaited is not None]:
            wait(awaited, REST_S, FIRST_COMPLETED)

    def _begin(self, track: Track) -> None:
        """Begin a step if there is anything to do; on the host that is all of it."""
        self._look()
        if not self.scheduler.ready(track.models):
            return
        begin = self._clock()
        plan = self.scheduler.schedule(begin, track.models)
        if not plan.rows:  # they can wait, and other models have work; or prompts beside the step hold all blocks
            assert len(self._tracks) > 1 or self._lane.busy, "an engine with work must have a row to run"
            return
        self._out.add(self._admit(plan, begin))
        flight = self._engines.launch(plan, (begin, self._clock()))
        if flight.overlaps:
            track.flight = flight
        else:
            self._engines.wait(flight)
            self._advance(flight)

    def _await_one(self) -> None:
        """Plan what follows the steps under way; with one track, do what is asked for until its step is over."""
        for track in self._tracks:
            if track.flight is not None and track.planning is None:
                begin = self._clock()
                track.ahead = plan_ahead(self.scheduler, track.flight.plan, begin, self._engines.foresees, track.models)
                if track.ahead is not None:
                    self._engines.prepare(track.ahead)
                track.planning = begin, self._clock()
        while True:
            done = any(self._engines.done(flight) for flight in self._flights)
            self._look()
            if self._inbox.stirs:
                self._withdraw()
            if done or len(self._tracks) > 1:  # what another model waits for must not wait for this one's step
                break
            if len(self._inbox):
                self._out.add(self._carry_out(self._inbox.next()))

    def _land(self, track: Track, flight: Flight) -> None:
        """End a step under way; go on at once with what was planned ahead, if no command came."""
        self._engines.wait(flight)
        ahead, planning = track.ahead, track.planning or (flight.landed, flight.landed)
        track.flight = track.ahead = track.planning = None
        following = self._engines.launch(ahead, planning) if ahead is not None and flight.sound else None
        if following is not None and following.sound:
            track.flight = following
        elif ahead is not None:
            take_back(ahead)
        self._advance(flight)

    def _advance(self, flight: Flight) -> None:
        """Hand out what a step brought."""
        for number, (paused, messages) in enumerate(self._outcomes(flight, self._engines), start=1):
            (self._out.hurry if paused else self._out.add)(messages)
            if number % LOOK_ROWS == 0:
                self._look()
        self._touched = True
        self._record.step(flight, self._engines, self._jobs)

    def _outcomes(self, flight: Flight, engines: Engines) -> Iterator[tuple[bool, list[FromEngine]]]:
        """Give each row what a step brought, the paused first; yield whether it is paused, and its messages."""
        outcomes, now = engines.collect(flight), flight.landed
        for model, load in flight.plan.loads.items():
            rows = zip(load.rows, outcomes[model], strict=True)
            for row, outcome in sorted(rows, key=lambda pair: pair[0].request.state is not State.PAUSED):
                if row.request.state is State.FINISHED:  # cancelled, or another row of its job has just ended it
                    continue
                job = self._owner[row.request.id]
                change = Change(end="failed") if outcome.failed else job.advance(row, outcome, now)
                if row.drafts and row.request.model == "chat" and not outcome.failed:
                    self._record.lookup(len(row.drafts), len(outcome.choices) - 1)
                yield row.request.state is State.PAUSED, self._apply(job, change, now)

    def _work(self, begin: float) -> None:
        """Let jobs do what no step waits for, the urgent and the long neglected first, for a few milliseconds.

        With a step under way that is while the device is busy, but for a share of them in any case.
        """
        self._round += 1
        wanting = [job for job in self._jobs.values() if job.wants_work]
        under_way = self._flights
        due = -(-len(wanting) // WORK_ROUNDS) if under_way else len(wanting)
        for count, job in enumerate(sorted(wanting, key=lambda job: (-job.submit.priority, job.worked)), start=1):
            self._look()
            if self._jobs.get(job.submit.request_id) is not job or not job.wants_work:
                continue  # a command came
            job.worked = self._round
            self._out.add(self._apply(job, job.work(begin), begin))
            if self._clock() - begin > WORK_BUDGET_S:
                break
            if count >= due and any(self._engines.done(flight) for flight in under_way):
                break

    # ---- what cannot wait

    def _look(self) -> None:
        """Carry out what cannot wait, and see to the prompts that are read beside the steps."""
        self._inbox.add(self._receive())
        for command in self._inbox.urgent():
            self._out.hurry(self._carry_out(command))
        if (flight := self._lane.over()) is not None:
            for row in flight.plan.rows:
                if row.request.state is State.EXPRESS:
                    row.request.state = State.PAUSED if self._owner[row.request.id].paused else State.RUNNING
            for _, messages in self._outcomes(flight, self._lane.engines):
                self._out.hurry(messages)
            self._touched = True
            self._record.express(flight)
        if (plan := self._lane.begin(self._flights)) is not None:
            self._out.hurry(self._admit(plan, self._clock()))

    def _withdraw(self) -> None:
        """Give up what was planned ahead."""
        for track in self._tracks:
            track.withdraw()

    def idle(self) -> list[FromEngine]:
        """Note that there is nothing to do: check the books, flush the trace, report; once after something was done."""
        if not self._touched:
            return []
        self._touched = False
        self.scheduler.check()
        self._record.flush()
        return [self._record.report(self.scheduler)]  # a cancel may have changed the counts

    def stats_due(self) -> list[FromEngine]:
        """Return a report if the last one is old enough."""
        return [self._record.report(self.scheduler)] if self._record.due else []

    # ---- commands

    def _drain(self) -> None:
        """Carry out what has come so far."""
        for _ in range(len(self._inbox)):
            self._look()
            if len(self._inbox):
                self._out.add(self._carry_out(self._inbox.next()))

    def _carry_out(self, command: ToEngine) -> list[FromEngine]:
        if stirs(command):
            self._withdraw()
        match command:
            case Submit():
                return self._submit(command)
            case Append(request_id):
                return self._event(request_id, lambda job, now: job.append(command, now))
            case EndInput(request_id):
                return self._event(request_id, lambda job, now: job.end_input(now))
            case Cancel(request_id):
                return self._cancel(request_id)
            case Pause(request_id):
                self._pause(self._jobs.get(request_id))
            case Resume(request_id):
                self._resume(self._jobs.get(request_id))
            case Interrupt(session):
                for job in [job for job in self._jobs.values() if job.submit.session == session]:
                    self._pause(job)
            case KeepVoice() | ForgetVoice():
                self._desks.rename(command)
            case _:
                raise AssertionError(f"{type(command).__name__} is for the process, not the core")
        return []

    @property
    def _flights(self) -> list[Flight]:
        return [track.flight for track in self._tracks if track.flight is not None]

    def _session_of(self, request_id: str) -> str:
        job = self._jobs.get(request_id)
        return "" if job is None else job.submit.session

    def _submit(self, submit: Submit) -> list[FromEngine]:
        now = self._clock()
        try:
            job = self._desks.open(submit, self._jobs, now)
        except Refusal as refusal:
            return [Refused(submit.request_id, submit.epoch, refusal.code, refusal.detail)]
        self._opened += 1
        job.number, self._touched = self._opened, True
        self._jobs[submit.request_id] = job
        return self._apply(job, job.open(now), now)

    def _event(self, request_id: str, event: Callable[[Job, float], Change]) -> list[FromEngine]:
        job, now = self._jobs.get(request_id), self._clock()
        return [] if job is None else self._apply(job, event(job, now), now)

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
                self._record.resumed(request, now)
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
            job.requests[request.id], self._owner[request.id] = request, job
            request.job, request.continues = job.submit.request_id, job.started or request.model != "chat"
            self.scheduler.add(request, job.number)
            if request.model == "chat":
                self._withdraw()  # it may have to go first
            if job.paused:
                self.scheduler.pause(request, now)
            else:
                self._lane.offer(request)
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
        self._lane.leave(request)
        self.scheduler.remove(request)
        del job.requests[request.id]
        del self._owner[request.id]

    # ---- a step

    def _admit(self, plan: Plan, now: float) -> list[FromEngine]:
        messages: list[FromEngine] = []
        for request in plan.admitted:
            request.started_s = now
            job = self._owner[request.id]
            self._record.admitted(request, now)
            if not job.started:
                job.started_s = now
                if request.task != "score":
                    submit = job.submit
                    messages.append(
                        Started(submit.request_id, submit.epoch, request.prompt_tokens, request.cached_tokens)
                    )
        return messages

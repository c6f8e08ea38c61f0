"""The step loop: schedule, launch, collect, advance. It joins the parts and owns none of their rules.

On the host a step is run from beginning to end. On a device each model has steps of its own, which are left under way:
commands are handled, jobs work, and what the step before brought is told while one runs. Where its tokens cannot change
what follows, that is planned meanwhile, and launched once it is over, with what has come by then in force.

Whatever the loop is at, it looks up every millisecond or so: an interruption is in force and a critical prompt is on
the device before the loop goes on with what it was doing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    ForgetVoice,
    FromEngine,
    KeepVoice,
    Pause,
    Resume,
    Rewind,
    Submit,
    ToEngine,
)
from voxlane.engine.jobs.factory import Cloning, Desks, JobFactory
from voxlane.engine.loop.command_queue import CommandQueue, Receive
from voxlane.engine.loop.critical_lane import Lane
from voxlane.engine.loop.delivery import Delivery, brought_by
from voxlane.engine.loop.execution import Engine, Engines, RunningStep, StepGroup
from voxlane.engine.loop.job_table import JobTable
from voxlane.engine.loop.outbox import Outbox, Tell
from voxlane.engine.loop.telemetry import Record
from voxlane.engine.loop.trace import Trace
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.plan_ahead import can_take_back, completed, plan_ahead, take_back
from voxlane.engine.schedule.request import ModelName, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

WORK_BUDGET_S = 0.01
"""How long jobs may work between two steps; who was left out is first the next time."""

WORK_ROUNDS = 4
"""In how many steps each job that wants to work has its turn, however soon a device is done."""

DRAIN_BUDGET_S = 0.004
"""How long commands may be carried out between two steps: three hundred prompts that come at once take some 200 ms to
be read into tokens, and voices must not stand still for that. Other commands do not wait for those of others."""

LOOK_ROWS, LOOK_COMMANDS = 16, 16
"""Rows of a step that are handed out, and commands but prompts that are carried out, between two looks at the socket:
some 0.2 ms."""

LOOK_BUDGET_S = 0.002
"""How long critical prompts are read at one look, the last of them begun within it: 0.7 ms each, and an interruption
waits for one of them at most."""

LOOK_EVERY_S = 1.5e-4
"""How long nobody looks while jobs work, and plans are made."""

REST_S = 1e-3
"""How long a step with nothing to run waits for what a job awaits. Commands that come meanwhile wait as long."""

AUDIT_EVERY_S = 60.0
"""How long it may go on that something always comes before the books are gone through: with 16,000 blocks that takes
some 5 ms, which an interruption would wait for."""


class Core:
    """An engine without its process: commands in, messages out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[ModelName, Engine],
        desks: Mapping[ModelName, JobFactory],
        *,
        clock: Callable[[], float],
        max_waiting: int = 256,
        trace: Trace | None = None,
        cloning: Cloning | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._engines = Engines(engines, scheduler, clock)
        together = [[name] for name in engines] if self._engines.overlap else [list(engines)]
        self._tracks = [StepGroup(frozenset(names)) for names in together]
        self._lane = Lane(engines, scheduler, clock)
        self._desks = Desks(desks, cloning, max_waiting)
        self._clock = clock
        self._record = Record(clock, trace)
        self._roster = JobTable(scheduler, self._lane, self._desks, self._record, clock)
        self._handing = Delivery(self._engines, self._roster, self._record)
        self._inbox = CommandQueue(self._roster.session_of)
        self._receive: Receive = tuple
        self._out = Outbox()
        self._round = 0  # of work between steps
        self._looked_s = clock()
        self._audited, self._audited_s = False, clock()  # whether the books were gone through, and when they last were

    @property
    def busy(self) -> bool:
        """Whether a step is under way, or would do anything."""
        ready = bool(self._flights) or self._lane.busy or self.scheduler.ready()
        return ready or len(self._inbox) > 0 or any(job.unfinished for job in self._roster.jobs.values())

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

        That ends the step under way, if there is one, applies the commands `receive` gives, and begins another. Of very
        many commands some are left for the next time. What cannot wait until it returns is told by `tell`, if there is
        one.
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
        if awaited := [job.awaited for job in self._roster.jobs.values() if job.awaited is not None]:
            wait(awaited, REST_S, FIRST_COMPLETED)

    def _begin(self, track: StepGroup) -> None:
        """Begin a step if there is anything to do; on the host that is all of it."""
        self._look()
        if track.ahead is not None and (self._gives_way(track) or self._follow(track)):
            return
        while self.scheduler.ready(track.models) and not self._gives_way(track):
            begin = self._clock()
            plan = self.scheduler.schedule(begin, track.models)
            if not plan.rows:  # they can wait, and other models have work; or prompts beside the step hold all blocks
                assert len(self._tracks) > 1 or self._lane.busy, "an engine with work must have a row to run"
                return
            self._out.add(self._roster.admit(plan, begin))
            if not self._stands(plan):
                continue
            flight = self._launch(track, plan, (begin, self._clock()))
            if flight.overlaps:
                track.flight = flight
            else:
                self._engines.wait(flight)
                self._advance(flight)
            return

    def _stands(self, plan: Plan) -> bool:
        """Return whether a plan can be launched; not if somebody in it has just been stopped: it is taken back then."""
        if not self._engines.overlap or not can_take_back(self.scheduler, plan):
            return True
        self._glance()
        if all(row.request.state is RequestState.RUNNING for row in plan.rows):
            return True
        take_back(plan)
        return False

    def _launch(self, track: StepGroup, plan: Plan, planning: tuple[float, float]) -> RunningStep:
        if self._lane.model in track.models:
            self._lane.stepped()
        return self._engines.launch(plan, planning)

    def _gives_way(self, track: StepGroup) -> bool:
        """Return whether a step waits for critical prompts of its model, which are on the device."""
        return self._lane.model in track.models and self._lane.holds()

    def _await_one(self) -> None:
        """Plan what follows the steps under way; with one track, do what is asked for until its step is over."""
        for track in self._tracks:
            if track.flight is not None and track.flight.sound and track.planning is None:
                self._plan_ahead(track, track.flight)
        while True:
            done = any(self._engines.done(flight) for flight in self._flights)
            self._look()
            if done or len(self._tracks) > 1:  # what another model waits for must not wait for this one's step
                break
            if len(self._inbox):
                self._out.add(self._carry_out(self._inbox.next()))

    def _plan_ahead(self, track: StepGroup, flight: RunningStep) -> None:
        self._glance()
        if self._inbox.changes_batch:
            self._drain_light(self._clock())
        begin = self._clock()
        samples_on_device = self._engines[next(iter(flight.plan.loads))].samples_on_device
        ahead = plan_ahead(self.scheduler, flight.plan, begin, samples_on_device, track.models)
        track.ahead, track.planning = ahead, (begin, self._clock())
        self._glance()
        if ahead is not None and not any(row.request.state is RequestState.FINISHED for row in ahead.rows):
            self._engines.prepare(ahead)  # else it is another plan by then

    def _land(self, track: StepGroup, flight: RunningStep) -> None:
        """End a step under way; go on at once with what was planned ahead, unless that gives way and waits."""
        self._engines.wait(flight)
        track.flight = None
        if track.ahead is not None and not flight.sound:
            take_back(track.ahead)
            track.ahead = None
        if track.ahead is not None:
            if self._inbox.changes_batch:
                self._drain_light(self._clock())  # what has come is in force in the next step
            if not self._inbox.changes_batch and not self._gives_way(track):
                self._follow(track)
        if track.ahead is None:
            track.planning = None
        self._advance(flight)

    def _follow(self, track: StepGroup) -> bool:
        """Launch what was planned ahead, as things stand now; False if there is nothing, or it has to be planned anew.

        Nobody else's step of this model was in between.
        """
        plan, planning = track.ahead, track.planning
        track.ahead = track.planning = None
        if plan is None or planning is None:
            return False
        begin = self._clock()
        found = completed(self.scheduler, plan, begin)
        if found is None:
            return False
        self._out.add(self._roster.admit(found, begin))
        if found is not plan:
            self._engines.prepare(found)
        if not self._stands(found):
            return False
        following = self._launch(track, found, planning)
        if following.sound:
            track.flight = following
        else:
            take_back(found)
        return following.sound

    def _advance(self, flight: RunningStep) -> None:
        """Hand out what a step brought."""
        self._handing.land(flight)
        self._look()
        for number, (paused, messages) in enumerate(self._handing.rest(), start=1):
            (self._out.hurry if paused else self._out.add)(messages)
            if number % LOOK_ROWS == 0:
                self._look()
        self._roster.touched = True
        self._record.step(flight, self._engines, self._roster.jobs)

    def _work(self, begin: float) -> None:
        """Let jobs do what no step waits for, the urgent and the long neglected first, for a few milliseconds.

        With a step under way, or one that gives way, that is while the device is busy, but for a share in any case.
        """
        self._round += 1
        wanting = [job for job in self._roster.jobs.values() if job.wants_work]
        under_way = self._flights
        gives_way = self._lane.holding
        due = -(-len(wanting) // WORK_ROUNDS) if under_way or gives_way else len(wanting)
        for count, job in enumerate(sorted(wanting, key=lambda job: (-job.submit.priority, job.worked)), start=1):
            self._glance()
            if self._roster.jobs.get(job.submit.request_id) is not job or not job.wants_work:
                continue  # a command came
            job.worked = self._round
            self._out.add(self._roster.apply(job, job.work(begin), begin))
            now = self._clock()
            if now - begin > WORK_BUDGET_S:
                break
            if count >= due and gives_way and not self._lane.holding:
                break
            if count >= due and any(self._engines.done(flight) for flight in under_way):
                break

    # ---- what cannot wait

    def _look(self) -> None:
        """Carry out what cannot wait, and see to the prompts that are read beside the steps."""
        begin = self._clock()
        self._inbox.add(self._receive())
        in_time = True
        while (command := self._inbox.urgent(prompts=in_time)) is not None:
            self._out.hurry(self._carry_out(command))
            if isinstance(command, Submit | KeepVoice | ForgetVoice):
                in_time = self._clock() - begin <= LOOK_BUDGET_S
                self._inbox.add(self._receive())
        while (flight := self._lane.over()) is not None:
            for row in flight.plan.rows:
                if row.request.state is RequestState.EXPRESS:
                    row.request.state = (
                        RequestState.PAUSED if self._roster.owner(row.request).paused else RequestState.RUNNING
                    )
            for brought in brought_by(flight, self._lane.engines):
                self._out.overtake(self._handing.give(*brought))
            self._roster.touched = True
            self._record.express(flight)
        if (plan := self._lane.begin(self._flights)) is not None:
            self._out.hurry(self._roster.admit(plan, self._clock()))

        self._looked_s = self._clock()

    def _glance(self) -> None:
        """Look if nobody has for a while."""
        if self._clock() - self._looked_s > LOOK_EVERY_S:
            self._look()

    def idle(self, came: Callable[[], bool] = lambda: False) -> list[FromEngine]:
        """Note that there is nothing to do: check the books, flush the trace, report; once after something was done.

        Checked are the sums. The books themselves are gone through until something has come, and another time then.
        """
        messages: list[FromEngine] = []
        if self._roster.touched:
            self._roster.touched = self._audited = False
            self._record.flush()
            messages.append(self._record.report(self.scheduler))  # a cancel may have changed the counts
        if not self._audited:
            self._audit(came)
        return messages

    def _audit(self, came: Callable[[], bool]) -> None:
        overdue = self._clock() - self._audited_s > AUDIT_EVERY_S
        for _ in self.scheduler.audit():
            if came() and not overdue:
                return
        self._audited, self._audited_s = True, self._clock()

    def stats_due(self) -> list[FromEngine]:
        """Return a report if the last one is old enough."""
        return [self._record.report(self.scheduler)] if self._record.due else []

    # ---- commands

    def _drain(self) -> None:
        """Carry out what has come so far: first what takes no time, then prompts, as many as there is time for."""
        begin = self._clock()
        self._drain_light(begin)
        for _ in range(len(self._inbox)):
            self._out.add(self._carry_out(self._inbox.next()))
            self._look()
            if not len(self._inbox) or self._clock() - begin > DRAIN_BUDGET_S:
                break
        self._drain_light(self._clock())  # who was cancelled before their prompt was read is in no step

    def _drain_light(self, begin: float) -> None:
        while self._clock() - begin <= DRAIN_BUDGET_S and (commands := self._inbox.cheap(LOOK_COMMANDS)):
            for command in commands:
                self._out.add(self._carry_out(command))
            self._look()

    def _carry_out(self, command: ToEngine) -> list[FromEngine]:
        match command:
            case Submit():
                return self._roster.submit(command)
            case Append() | EndInput() | Rewind():
                return self._roster.tell(command)
            case Cancel(request_id):
                return self._roster.cancel(request_id)
            case Pause(request_ids):
                messages = self._handing.give_first(request_ids)
                self._roster.pause(request_ids)
                return messages
            case Resume(request_id):
                self._roster.resume(request_id)
            case KeepVoice() | ForgetVoice():
                self._desks.rename(command)
            case _:
                raise AssertionError(f"{type(command).__name__} is for the process, not the core")
        return []

    @property
    def _flights(self) -> list[RunningStep]:
        return [track.flight for track in self._tracks if track.flight is not None]

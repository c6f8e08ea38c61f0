"""The step loop: plan, launch, wait, deliver.

On the host a step runs from beginning to end. On a device each model has steps of its own, which go on while the host
applies commands, lets jobs work and delivers the outcomes of the step before. Where the tokens of a step cannot change
what follows it, the next step is planned meanwhile and launched as soon as the step has ended, with all commands that
have come by then in force.

Whatever the loop does, it polls every millisecond or less (preemption.py): a pause is in force and a critical prompt is
on the device before the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, wait

from voxlane.engine import progress
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
from voxlane.engine.jobs.factory import Cloning, JobFactories, JobFactory
from voxlane.engine.loop.command_queue import Receive
from voxlane.engine.loop.critical_lane import CriticalLane
from voxlane.engine.loop.delivery import Delivery, Outbox, Send, row_outcomes
from voxlane.engine.loop.execution import Engine, Engines, RunningStep, StepGroup
from voxlane.engine.loop.job_table import JobTable
from voxlane.engine.loop.preemption import ROWS_PER_POLL, Preemption
from voxlane.engine.loop.telemetry import Telemetry
from voxlane.engine.loop.trace import Trace
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.plan_ahead import can_take_back, completed, plan_ahead, take_back
from voxlane.engine.schedule.request import ModelName, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

WORK_BUDGET_S = 0.01
"""How long jobs may work between two steps; a job that was left out is first the next time."""

WORK_ROUNDS = 4
"""In how many steps each job that wants to work has its turn, however soon a device is done."""

REST_S = 1e-3
"""How long a step with nothing to run waits for what a job awaits. Commands that come meanwhile wait as long."""

AUDIT_EVERY_S = 60.0
"""How long commands may put off the check of all blocks: with 16,000 blocks it takes some 5 ms, and a pause would wait
for it."""


class Core:
    """An engine without its process: commands in, messages out, one step at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Mapping[ModelName, Engine],
        factories: Mapping[ModelName, JobFactory],
        *,
        clock: Callable[[], float],
        max_waiting: int = 256,
        trace: Trace | None = None,
        cloning: Cloning | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._engines = Engines(engines, scheduler, clock)
        together = [[name] for name in engines] if self._engines.overlap else [list(engines)]
        self._groups = [StepGroup(frozenset(names)) for names in together]
        self._lane = CriticalLane(engines, scheduler, clock)
        self._factories = JobFactories(factories, cloning, max_waiting)
        self._clock = clock
        self._telemetry = Telemetry(clock, trace)
        self._jobs = JobTable(scheduler, self._lane, self._factories, self._telemetry, clock)
        self._delivery = Delivery(self._engines, self._jobs, self._telemetry)
        self._outbox = Outbox()
        self._preemption = Preemption(self._jobs.session_of, self._apply, self._serve_lane, self._outbox, clock)
        self._round = 0  # of jobs' work between steps
        self._audited = False  # whether all blocks were checked since something was done
        self._audited_s = clock()

    @property
    def busy(self) -> bool:
        """Whether a step is under way, or would do anything."""
        ready = bool(self._running_steps) or self._lane.busy or self.scheduler.ready()
        return ready or len(self._preemption) > 0 or self._jobs.unfinished

    def handle(self, commands: Iterable[ToEngine]) -> list[FromEngine]:
        """Apply commands in order; return the messages they lead to at once. All are in force at the next step.

        A step may be under way: its token for a request that is cancelled now is dropped, for one that is paused it
        counts.
        """
        return self._preemption.apply_all(commands)

    def step(self, receive: Receive = tuple, send: Send | None = None) -> list[FromEngine]:
        """Take the engine a step further; return the messages.

        That ends a step under way, if one is done, applies the commands `receive` returns, and begins another. Of very
        many commands some wait for the next call. Messages that cannot wait for the return are sent by `send`, if it is
        given.
        """
        self._preemption.read_from(receive)
        self._outbox.open(send)
        self._go_on()
        return self._outbox.take()

    def idle(self, came: Callable[[], bool] = lambda: False) -> list[FromEngine]:
        """Flush the trace, report and check the blocks, once after something was done.

        The sums are checked at once, the blocks one by one until `came` says that a command is there; then the check
        begins anew the next time.
        """
        messages: list[FromEngine] = []
        if self._jobs.touched:
            self._jobs.touched = self._audited = False
            self._telemetry.flush()
            messages.append(self._telemetry.report(self.scheduler))  # a cancel may have changed the counts
        if not self._audited:
            self._audit(came)
        return messages

    def stats_due(self) -> list[FromEngine]:
        """Return a report if the last one is old enough."""
        return [self._telemetry.report(self.scheduler)] if self._telemetry.due else []

    # ---- steps

    def _go_on(self) -> None:
        begin = self._clock()
        self._preemption.apply_urgent()
        if not self._running_steps:
            self._preemption.apply_waiting()
        self._work(begin)
        if self._running_steps:
            self._await_step()
            for group in self._groups:
                if group.running_step is not None and self._engines.done(group.running_step):
                    self._end_step(group, group.running_step)
            self._preemption.apply_waiting()
            if not self._engines.overlap:
                return  # the messages are sent before an engine on the host begins its next step
        for group in self._groups:
            if group.running_step is None:
                self._begin_step(group)
        if self._running_steps or self._lane.busy or self.scheduler.ready():
            return
        if awaited := self._jobs.awaited():
            wait(awaited, REST_S, FIRST_COMPLETED)

    def _begin_step(self, group: StepGroup) -> None:
        """Begin a step if there is anything to do; on the host, run all of it."""
        if group.next_plan is None and not self.scheduler.ready(group.models):
            return
        self._preemption.apply_urgent()
        if group.next_plan is not None and (self._yields_to_lane(group) or self._launch_next(group)):
            return
        while self.scheduler.ready(group.models) and not self._yields_to_lane(group):
            begin = self._clock()
            plan = self.scheduler.schedule(begin, group.models)
            if not plan.rows:  # they can wait, and other models have work; or prompts beside the step hold all blocks
                assert len(self._groups) > 1 or self._lane.busy, "an engine with work must have a row to run"
                return
            self._outbox.add(self._jobs.admit(plan, begin))
            if not self._still_holds(plan):
                continue
            step = self._launch(group, plan, (begin, self._clock()))
            if step.overlaps:
                group.running_step = step
            else:
                self._engines.wait(step)
                self._deliver(step)
            return

    def _still_holds(self, plan: Plan) -> bool:
        """Apply urgent commands; return whether the plan can still be launched. If not, it is taken back.

        A plan with a request that was just stopped cannot. A plan that cannot be taken back always can.
        """
        if not self._engines.overlap or not can_take_back(self.scheduler, plan):
            return True
        self._preemption.apply_urgent_if_due()
        if all(row.request.state is RequestState.RUNNING for row in plan.rows):
            return True
        take_back(plan)
        return False

    def _launch(self, group: StepGroup, plan: Plan, planning: tuple[float, float]) -> RunningStep:
        if self._lane.model in group.models:
            self._lane.stepped()
        return self._engines.launch(plan, planning)

    def _yields_to_lane(self, group: StepGroup) -> bool:
        """Return whether a step waits for critical prompts of its model, which are on the device."""
        return self._lane.model in group.models and self._lane.holds()

    def _await_step(self) -> None:
        """Plan ahead for the steps under way; with one group, apply commands until its step is done."""
        for group in self._groups:
            if group.running_step is not None and group.running_step.healthy and group.next_planning is None:
                self._plan_ahead(group, group.running_step)
        while True:
            done = any(self._engines.done(step) for step in self._running_steps)
            self._preemption.apply_urgent()
            if done or len(self._groups) > 1:  # with several, the other models' work must not wait for this step
                break
            self._preemption.apply_next()

    def _plan_ahead(self, group: StepGroup, step: RunningStep) -> None:
        self._preemption.apply_urgent_if_due()
        self._preemption.apply_batch_changes()
        begin = self._clock()
        samples_on_device = self._engines[next(iter(step.plan.loads))].samples_on_device
        plan = plan_ahead(self.scheduler, step.plan, begin, samples_on_device, group.models)
        group.next_plan, group.next_planning = plan, (begin, self._clock())
        self._preemption.apply_urgent_if_due()
        if plan is not None and not any(row.request.state is RequestState.FINISHED for row in plan.rows):
            self._engines.prepare(plan)  # else the plan changes before its launch

    def _end_step(self, group: StepGroup, step: RunningStep) -> None:
        """End a step; launch the next one if it was planned ahead and need not yield; then deliver the outcomes."""
        self._engines.wait(step)
        group.running_step = None
        if group.next_plan is not None and not step.healthy:
            take_back(group.next_plan)
            group.next_plan = None
        # Commands that have come are in force in the next step.
        if group.next_plan is not None and self._preemption.apply_batch_changes() and not self._yields_to_lane(group):
            self._launch_next(group)
        if group.next_plan is None:
            group.next_planning = None
        self._deliver(step)

    def _launch_next(self, group: StepGroup) -> bool:
        """Launch the plan made ahead, completed as things stand now; return False if all has to be planned anew.

        No other step of this model was in between.
        """
        ahead, planning = group.next_plan, group.next_planning
        group.next_plan = group.next_planning = None
        if ahead is None or planning is None:
            return False
        begin = self._clock()
        plan = completed(self.scheduler, ahead, begin)
        if plan is None:
            return False
        self._outbox.add(self._jobs.admit(plan, begin))
        if plan is not ahead:
            self._engines.prepare(plan)
        if not self._still_holds(plan):
            return False
        step = self._launch(group, plan, planning)
        if step.healthy:
            group.running_step = step
        else:
            take_back(plan, launched=True)
        return step.healthy

    def _deliver(self, step: RunningStep) -> None:
        """Deliver the outcomes of a step."""
        self._delivery.begin(step)
        for paused, messages in self._preemption.between(self._delivery.rest(), ROWS_PER_POLL):
            (self._outbox.hurry if paused else self._outbox.add)(messages)
        self._jobs.touched = True
        self._telemetry.step(step, self._engines, self._jobs.jobs)

    def _work(self, begin: float) -> None:
        """Let jobs do work that no step waits for, the urgent and the long neglected first, for a few milliseconds.

        With a step under way, or one that yields to the lane, jobs work while the device is busy; a share of them works
        in any case.
        """
        self._round += 1
        wanting = self._jobs.wanting_work()
        steps, yields = self._running_steps, self._lane.holding
        due = -(-len(wanting) // WORK_ROUNDS) if steps or yields else len(wanting)
        ordered = sorted(wanting, key=lambda job: (-job.submit.priority, job.worked))
        for count, job in enumerate(self._preemption.between(ordered), start=1):
            if self._jobs.jobs.get(job.submit.request_id) is not job or not job.wants_work:
                continue  # a command was applied
            job.worked = self._round
            self._outbox.add(self._jobs.apply(job, job.work(begin), begin))
            if self._clock() - begin > WORK_BUDGET_S:
                break
            if count >= due and yields and not self._lane.holding:
                break
            if count >= due and any(self._engines.done(step) for step in steps):
                break

    # ---- commands

    def _apply(self, command: ToEngine) -> list[FromEngine]:
        match command:
            case Submit():
                with progress.allow(progress.PROMPT_S):
                    return self._jobs.submit(command)
            case Append() | EndInput() | Rewind():
                return self._jobs.tell(command)
            case Cancel(request_id):
                return self._jobs.cancel(request_id)
            case Pause(request_ids):
                messages = self._delivery.deliver_first(request_ids)
                self._jobs.pause(request_ids)
                return messages
            case Resume(request_id):
                self._jobs.resume(request_id)
            case KeepVoice() | ForgetVoice():
                self._factories.rename(command)
            case _:
                raise AssertionError(f"{type(command).__name__} is for the process, not the core")
        return []

    def _serve_lane(self) -> None:
        """Deliver the prompts that were read beside the steps, and launch those that wait."""
        if not self._lane.busy:
            return
        while (step := self._lane.ended()) is not None:
            for row in step.plan.rows:
                if row.request.state is RequestState.CONCURRENT:
                    paused = self._jobs.owner(row.request).paused
                    row.request.state = RequestState.PAUSED if paused else RequestState.RUNNING
            for outcome in row_outcomes(step, self._lane.engines):
                self._outbox.overtake(self._delivery.deliver(*outcome))
            self._jobs.touched = True
            self._telemetry.concurrent_prefill(step)
        if (plan := self._lane.begin(self._running_steps)) is not None:
            self._outbox.hurry(self._jobs.admit(plan, self._clock()))

    def _audit(self, came: Callable[[], bool]) -> None:
        overdue = self._clock() - self._audited_s > AUDIT_EVERY_S
        for _ in self.scheduler.audit():
            if came() and not overdue:
                return
        self._audited, self._audited_s = True, self._clock()

    @property
    def _running_steps(self) -> list[RunningStep]:
        return [step for group in self._groups if (step := group.running_step) is not None]

"""The live jobs, and which of the scheduler's requests belong to each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from voxlane.engine.api import (
    Append,
    EndInput,
    Finished,
    FinishReason,
    FromEngine,
    Refused,
    RequestStats,
    Rewind,
    Started,
    Submit,
)
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.factory import JobFactories
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.loop.critical_lane import CriticalLane
from voxlane.engine.loop.telemetry import Telemetry
from voxlane.engine.schedule.plan import Plan
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import Scheduler

log = logging.getLogger(__name__)

NO_STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)
"""The figures of a request that was never opened."""


TIDIED_EVERY = 8
"""Every so often, jobs that are not restless any more leave: to find out takes as long as to ask them all."""


class JobTable:
    """The jobs of one engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        lane: CriticalLane,
        factories: JobFactories,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._lane = lane
        self._factories = factories
        self._telemetry = telemetry
        self._clock = clock
        self.jobs: dict[str, Job] = {}
        # The job of each request the scheduler holds, by the request's id; a job may have several.
        self._owner: dict[str, Job] = {}
        # The jobs that may want to work: each enters with every event of its own, and leaves when it is not restless.
        self._restless: dict[Job, None] = {}
        self._asked = 0  # how often all of them were asked
        self._opened = 0
        # Whether a job began, went on or ended since Core.idle looked last.
        self.touched = True

    def owner(self, request: Request) -> Job:
        """Return the job that a request of the scheduler belongs to."""
        return self._owner[request.id]

    def session_of(self, request_id: str) -> str:
        """Return the session of a job, "" if there is no such job."""
        job = self.jobs.get(request_id)
        return "" if job is None else job.submit.session

    def wanting_work(self) -> list[Job]:
        """Return the jobs that want to work now."""
        wanting, self._asked = [], self._asked + 1
        tidies = self._asked % TIDIED_EVERY == 0
        for job in list(self._restless) if tidies else self._restless:
            if job.wants_work:
                wanting.append(job)
            elif tidies and not job.restless:
                del self._restless[job]
        return wanting

    @property
    def unfinished(self) -> bool:
        """Whether a job has something to do without another command."""
        return any(job.unfinished for job in self._restless)

    def awaited(self) -> list[Future[Any]]:
        """Return what jobs wait for that other threads make."""
        return [job.awaited for job in self._restless if job.awaited is not None]

    # ---- commands

    def submit(self, submit: Submit) -> list[FromEngine]:
        """Open a job, or refuse it."""
        now = self._clock()
        try:
            job = self._factories.open(submit, self.jobs, now)
        except Refusal as refusal:
            return [Refused(submit.request_id, submit.epoch, refusal.code, refusal.detail)]
        except REQUEST_FAULTS as fault:
            log.error("request not read %s", describe_fault(fault))
            return [Finished(submit.request_id, submit.epoch, "failed", NO_STATS)]
        self._opened += 1
        job.number, self.touched = self._opened, True
        self.jobs[submit.request_id] = job
        return self.apply(job, job.open(now), now)

    def tell(self, command: Append | EndInput | Rewind) -> list[FromEngine]:
        """Give a command to its job; nothing happens if the job has ended."""
        job, now = self.jobs.get(command.request_id), self._clock()
        return [] if job is None else self.apply(job, job.take(command, now), now)

    def cancel(self, request_id: str) -> list[FromEngine]:
        """End a job."""
        job = self.jobs.get(request_id)
        return [] if job is None else [self._end(job, "cancelled", self._clock())]

    def pause(self, request_ids: Iterable[str]) -> None:
        """Keep jobs out of the next step."""
        now = self._clock()
        for job in [self.jobs[request_id] for request_id in request_ids if request_id in self.jobs]:
            job.paused = True
            for request in job.requests.values():
                self._scheduler.pause(request, now)

    def resume(self, request_id: str) -> None:
        """Let a job go on."""
        job, now = self.jobs.get(request_id), self._clock()
        if job is None:
            return
        job.paused = False
        self._restless[job] = None
        for request in job.requests.values():
            if request.state is RequestState.PAUSED:
                self._telemetry.resumed(request, now)
            self._scheduler.resume(request, now)

    # ---- changes of jobs

    def apply(self, job: Job, change: Change, now: float) -> list[FromEngine]:
        """Apply the change that an event made to a job; return the messages."""
        if change.refusal is not None:
            self._leave(job)
            return [Refused(job.submit.request_id, job.submit.epoch, change.refusal.code, change.refusal.detail)]
        if change.end is not None:
            return [*change.messages, self._end(job, change.end, now)]
        self._restless[job] = None
        for request in change.drop:
            self._forget(job, request)
        for request in change.begin:
            job.requests[request.id], self._owner[request.id] = request, job
            request.job, request.continues = job.submit.request_id, job.started or request.model != "chat"
            self._scheduler.add(request, job.number)
            if job.paused:
                self._scheduler.pause(request, now)
            else:
                self._lane.offer(request)
        return change.messages

    def admit(self, plan: Plan, now: float) -> list[FromEngine]:
        """Note the requests that are in a step for the first time; return the messages."""
        messages: list[FromEngine] = []
        for request in plan.admitted:
            request.started_s = now
            job = self._owner[request.id]
            self._telemetry.admitted(request, now)
            if not job.started:
                job.started_s = now
                if request.task != "score":
                    submit = job.submit
                    messages.append(
                        Started(submit.request_id, submit.epoch, request.prompt_tokens, request.cached_tokens)
                    )
        return messages

    def _end(self, job: Job, reason: FinishReason, now: float) -> Finished:
        """Close a job: its blocks are free when this returns."""
        stats = job.stats(now)
        job.close()
        for request in list(job.requests.values()):
            self._forget(job, request)
        self._leave(job)
        self.touched = True
        return Finished(job.submit.request_id, job.submit.epoch, reason, stats)

    def _leave(self, job: Job) -> None:
        del self.jobs[job.submit.request_id]
        self._restless.pop(job, None)

    def _forget(self, job: Job, request: Request) -> None:
        self._lane.leave(request)
        self._scheduler.remove(request)
        del job.requests[request.id]
        del self._owner[request.id]

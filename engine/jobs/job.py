"""What every job has in common: how it takes commands and outcomes, and how it tells the core what to do."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from voxlane.engine.api import Append, EndInput, FinishReason, FromEngine, RequestStats, Rewind, Submit
from voxlane.engine.errors import Refusal
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request


@dataclass(slots=True)
class Change:
    """What an event did to a job; the core carries it out."""

    messages: list[FromEngine] = field(default_factory=list)
    begin: list[Request] = field(default_factory=list)  # to be scheduled
    drop: list[Request] = field(default_factory=list)  # to be removed from the scheduler
    end: FinishReason | None = None
    refusal: Refusal | None = None  # the job cannot be served after all; none of it has run


class Job:
    """A submission under way. The core keeps `requests`: those of the job that the scheduler holds."""

    def __init__(self, submit: Submit, now: float) -> None:
        self.submit = submit
        self.requests: dict[str, Request] = {}
        self.arrival_s = now
        self.started_s: float | None = None
        self.paused = False
        self.number = 0  # order of arrival; kept by the core
        self.worked = 0  # the round in which `work` was last called; kept by the core

    @property
    def started(self) -> bool:
        """Whether any of its requests has been in a step."""
        return self.started_s is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for its first step."""
        return bool(self.requests) and not self.started

    @property
    def awaited(self) -> Future[Any] | None:
        """What another thread makes ready for `work`, if the job waits for nothing else."""
        return None

    @property
    def wants_work(self) -> bool:
        """Whether `work` has something to do now."""
        return False

    @property
    def unfinished(self) -> bool:
        """Whether `work` has something to do now, or will have without another command: the engine may not sleep."""
        return self.wants_work or self.awaited is not None

    @property
    def restless(self) -> bool:
        """Whether `work` may get something to do without a command or an outcome for this very job.

        The core asks only restless jobs whether they want to work: most of hundreds only wait.
        """
        return self.unfinished

    def open(self, now: float) -> Change:
        """Begin."""
        return Change()

    def take(self, command: Append | EndInput | Rewind, now: float) -> Change:
        """Take a command for this job."""
        match command:
            case Append():
                return self.append(command, now)
            case EndInput():
                return self.end_input(now)
            case Rewind(sample=sample):
                return self.rewind(max(sample, 0), now)

    def append(self, more: Append, now: float) -> Change:
        """Take more input; a job that has all of it from the start ignores it."""
        return Change()

    def end_input(self, now: float) -> Change:
        """Note that the input is complete."""
        return Change()

    def rewind(self, sample: int, now: float) -> Change:
        """Speak again from a sample on; a job that does not speak ignores it."""
        return Change()

    def work(self, now: float) -> Change:
        """Do a few milliseconds of the job's work between steps."""
        return Change()

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a step's outcome for one of its requests."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancel what other threads make for it: the job is over."""

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        raise NotImplementedError

    def queue_s(self, now: float) -> float:
        """Return how long it waited for its first step."""
        return (now if self.started_s is None else self.started_s) - self.arrival_s

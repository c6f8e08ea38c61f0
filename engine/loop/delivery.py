"""What steps brought, handed to the jobs it is for. Who is told of it, and when, is the core's business."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from voxlane.engine.api import FromEngine
from voxlane.engine.jobs.job import Change
from voxlane.engine.loop.execution import Engines, RunningStep
from voxlane.engine.loop.job_table import JobTable
from voxlane.engine.loop.telemetry import Record
from voxlane.engine.runners.decoder import Outcome, TokenOutcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState

Brought = tuple[Row, Sequence[Outcome], int, float]  # to whom, its place among what came of a step, and when


class Delivery:
    """A step that is over, and what it brought as far as that was not handed out."""

    def __init__(self, engines: Engines, roster: JobTable, record: Record) -> None:
        self._engines = engines
        self._roster = roster
        self._record = record
        self._landed: RunningStep | None = None  # nobody has looked at what it brought
        self._untold: dict[Request, Brought] = {}

    def land(self, flight: RunningStep) -> None:
        """Take a step that was waited for; all of the one before was handed out."""
        self._landed = flight

    def rest(self) -> Iterator[tuple[bool, list[FromEngine]]]:
        """Hand out what is left, to the paused first; yield whether it was to such a one, and what is told of it."""
        self._bring()
        for request in list(self._untold):
            if (brought := self._untold.pop(request, None)) is not None:
                yield request.state is RequestState.PAUSED, self.give(*brought)

    def give(self, row: Row, outcomes: Sequence[Outcome], place: int, now: float) -> list[FromEngine]:
        """Give a request what a step brought; return what is told of it."""
        request = row.request
        if request.state is RequestState.FINISHED:  # cancelled, or another row of its job has just ended it
            return []
        job, outcome = self._roster.owner(request), outcomes[place]
        change = Change(end="failed") if outcome.failed else job.advance(row, outcome, now)
        if row.drafts and request.model == "chat" and isinstance(outcome, TokenOutcome) and not outcome.failed:
            self._record.lookup(len(row.drafts), len(outcome.choices) - 1)
        return self._roster.apply(job, change, now)

    def give_first(self, request_ids: Collection[str]) -> list[FromEngine]:
        """Give some jobs their outcomes of the step that is being delivered; return the messages.

        A request that is paused now may be in a step under way: its token is sent too, but no second one.
        """
        messages: list[FromEngine] = []
        self._bring()
        for request in list(self._untold):
            if request.state is not RequestState.FINISHED and request.job in request_ids:
                messages += self.give(*self._untold.pop(request))
        return messages

    def _bring(self) -> None:
        """Have what the step that is over brought ready to be handed out, if it is not."""
        if self._landed is not None:
            flight, self._landed = self._landed, None
            self._untold = {brought[0].request: brought for brought in brought_by(flight, self._engines)}


def brought_by(flight: RunningStep, engines: Engines) -> list[Brought]:
    """Return what a step brought, to the paused first."""
    outcomes, landed = engines.collect(flight), flight.landed
    found = [
        (row, outcomes[model], place, landed)
        for model, load in flight.plan.loads.items()
        for place, row in enumerate(load.rows)
    ]
    if any(brought[0].request.state is RequestState.PAUSED for brought in found):
        found.sort(key=lambda brought: brought[0].request.state is not RequestState.PAUSED)
    return found

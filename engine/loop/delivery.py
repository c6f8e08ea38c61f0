"""The outcomes of steps on their way out: first to the jobs they are for, then as messages to the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from voxlane.engine.api import FromEngine
from voxlane.engine.jobs.job import Change
from voxlane.engine.loop.execution import Engines, RunningStep
from voxlane.engine.loop.job_table import JobTable
from voxlane.engine.loop.telemetry import Telemetry
from voxlane.engine.runners.decoder import Outcome, TokenOutcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState

Send = Callable[[list[FromEngine]], object]

RowOutcome = tuple[Row, Sequence[Outcome], int, float]
"""A row, the outcomes of all rows of its model, the row's place among them, and when the step ended."""


class Outbox:
    """Messages in order. They wait until the step returns, unless some are sent at once."""

    def __init__(self) -> None:
        self._send: Send | None = None
        self._waiting: list[FromEngine] = []

    def open(self, send: Send | None) -> None:
        """Begin anew; messages that are sent at once are sent by `send`, or wait like the rest if that is None."""
        self._send = send
        self._waiting = []

    def add(self, messages: list[FromEngine]) -> None:
        """Keep messages until they are taken."""
        self._waiting += messages

    def hurry(self, messages: list[FromEngine]) -> None:
        """Send messages at once, and before them all that wait."""
        self._waiting += messages
        if self._send is not None and messages:
            sent, self._waiting = self._waiting, []
            self._send(sent)

    def overtake(self, messages: list[FromEngine]) -> None:
        """Send messages at once, before those of other requests that wait: a step has hundreds of these."""
        about = {getattr(message, "request_id", None) for message in messages}
        if self._send is None or any(getattr(message, "request_id", None) in about for message in self._waiting):
            self.hurry(messages)
        elif messages:
            self._send(messages)

    def take(self) -> list[FromEngine]:
        """Return the messages that wait."""
        return self._waiting


class Delivery:
    """The outcomes of the step that ended last, as far as their jobs do not have them yet."""

    def __init__(self, engines: Engines, jobs: JobTable, telemetry: Telemetry) -> None:
        self._engines = engines
        self._jobs = jobs
        self._telemetry = telemetry
        self._ended: RunningStep | None = None  # its outcomes are not collected yet
        self._undelivered: dict[Request, RowOutcome] = {}

    def begin(self, step: RunningStep) -> None:
        """Take a step that has ended; all outcomes of the one before are delivered."""
        self._ended = step

    def rest(self) -> Iterator[tuple[bool, list[FromEngine]]]:
        """Deliver all that is left, to paused requests first; yield whether the request is paused, and its messages.

        `deliver_first` may be called between two items.
        """
        self._collect()
        for request in list(self._undelivered):
            if (outcome := self._undelivered.pop(request, None)) is not None:
                yield request.state is RequestState.PAUSED, self.deliver(*outcome)

    def deliver(self, row: Row, outcomes: Sequence[Outcome], place: int, now: float) -> list[FromEngine]:
        """Give a job the outcome of one row; return the messages."""
        request = row.request
        if request.state is RequestState.FINISHED:  # cancelled, or another row of its job has just ended it
            return []
        job, outcome = self._jobs.owner(request), outcomes[place]
        change = Change(end="failed") if outcome.failed else job.advance(row, outcome, now)
        if row.drafts and request.model == "chat" and isinstance(outcome, TokenOutcome) and not outcome.failed:
            self._telemetry.lookup(len(row.drafts), len(outcome.choices) - 1)
        return self._jobs.apply(job, change, now)

    def deliver_first(self, request_ids: Collection[str]) -> list[FromEngine]:
        """Give some jobs their outcomes of the step that is being delivered; return the messages.

        A request that is paused now may be in a step under way: its token is sent too, but no second one.
        """
        messages: list[FromEngine] = []
        self._collect()
        for request in list(self._undelivered):
            if request.state is not RequestState.FINISHED and request.job in request_ids:
                messages += self.deliver(*self._undelivered.pop(request))
        return messages

    def _collect(self) -> None:
        """Collect the outcomes of the step that has ended, if that was not done."""
        if self._ended is not None:
            step, self._ended = self._ended, None
            self._undelivered = {outcome[0].request: outcome for outcome in row_outcomes(step, self._engines)}


def row_outcomes(step: RunningStep, engines: Engines) -> list[RowOutcome]:
    """Return the outcomes of a step that has ended, those of paused requests first."""
    outcomes, ended_s = engines.collect(step), step.ended_s
    found = [
        (row, outcomes[model], place, ended_s)
        for model, load in step.plan.loads.items()
        for place, row in enumerate(load.rows)
    ]
    if any(outcome[0].request.state is RequestState.PAUSED for outcome in found):
        found.sort(key=lambda outcome: outcome[0].request.state is not RequestState.PAUSED)
    return found

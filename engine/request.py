"""One request: its tokens, where it stands, and what it has cost. It knows no policy and no tensor."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from voxlane.engine.api import Priority, RequestStats, SamplingParams, Task
from voxlane.engine.kv import BlockTable


class State(enum.Enum):
    """Where a request stands.

    WAITING ──admitted──▶ RUNNING ──Pause──▶ PAUSED ──Resume──▶ RUNNING or WAITING
       ▲                     │
       └─swapped or dropped──┘          any ──▶ FINISHED
    """

    WAITING = "waiting"  # holds no device blocks; `host_blocks` if it was swapped out
    RUNNING = "running"  # holds blocks; the scheduler decides step by step whether it is in the batch
    PAUSED = "paused"  # out of the batch until resumed; blocks kept unless somebody needs them
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A sequence to be computed. Its newest tokens, `tokens[computed:]`, have no key and value in the cache yet."""

    id: str
    task: Task
    tokens: list[int]  # prompt, then output
    prompt_tokens: int
    table: BlockTable
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = Priority.NORMAL
    arrival_s: float = 0.0
    due_s: float | None = None  # when the first token is due, if the sender said
    session: str = ""
    seed: int = 0
    limit: int = 1 << 30  # longest the sequence may get

    number: int = 0  # order of arrival, given by the scheduler
    state: State = State.WAITING
    host_blocks: list[int] = field(default_factory=list)  # swapped out: the table's content is here
    host_length: int = 0
    started: bool = False
    aged: bool = False  # starved once: goes before everyone until it is done
    cached_tokens: int = 0
    preemptions: int = 0
    lookup_proposed: int = 0
    lookup_accepted: int = 0
    scored_tokens: int = 0  # task "score": so many tokens have had their log-probability counted
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    progress_s: float = 0.0  # when it last was in a step, or arrived

    @property
    def computed(self) -> int:
        """How many tokens have their key and value stored, on the device or swapped out."""
        return self.host_length if self.host_blocks else self.table.length

    @property
    def pending(self) -> int:
        """How many tokens must be computed before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        """How many tokens have come out."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is left to compute."""
        return self.pending == 1 and self.computed > 0

    def stats(self, now: float) -> RequestStats:
        """Return what the request has cost so far."""
        first = self.first_token_s - self.arrival_s if self.first_token_s else 0.0
        gaps = self.output_tokens - 1
        return RequestStats(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            queue_s=(self.started_s if self.started else now) - self.arrival_s,
            first_token_s=first,
            per_token_s=(self.last_token_s - self.first_token_s) / gaps if gaps > 0 else 0.0,
            total_s=now - self.arrival_s,
            preemptions=self.preemptions,
            lookup_proposed=self.lookup_proposed,
            lookup_accepted=self.lookup_accepted,
        )

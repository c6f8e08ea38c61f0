"""One request: its tokens, its blocks, its state, and what it has cost."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from voxlane.engine.api import Priority, RequestStats, SamplingParams, Task
from voxlane.engine.memory.blocks import BlockTable

if TYPE_CHECKING:
    from voxlane.engine.text.constraint import Constraint

ModelName = Literal["chat", "asr", "tts", "speech"]
"""The models one engine holds, by what they do."""


class RequestState(enum.Enum):
    """Where a request stands.

    WAITING ──admitted──▶ RUNNING ──Pause──▶ PAUSED ──Resume──▶ RUNNING or WAITING
       ▲ └──▶ CONCURRENT ──▶ │
       └─swapped or dropped──┘          any ──▶ FINISHED
    """

    WAITING = "waiting"  # holds no device blocks; `host_blocks` if it was swapped out
    RUNNING = "running"  # holds blocks; the scheduler decides step by step whether it is in the batch
    CONCURRENT = (
        "concurrent"  # critical: its prompt is prefilled beside the step under way, and its blocks cannot be taken
    )
    PAUSED = "paused"  # out of the batch until resumed; keeps its blocks unless another request needs them
    FINISHED = "finished"


class Payload:
    """What one task needs of a request beside what the scheduler reads: each runner defines its own kind."""

    __slots__ = ()


@dataclass(slots=True)
class ChatPayload(Payload):
    """What the chat model needs of a request."""

    constraint: Constraint | None = None  # the grammar that the output follows
    barred_starts: frozenset[int] = frozenset()  # tokens that cannot be the first of the output
    ends: frozenset[int] = frozenset()  # task "probe": the tokens whose probability is wanted
    scored_tokens: int = 0  # task "score": how many tokens have had their log-probability counted


@dataclass(frozen=True, slots=True)
class ClipStates:
    """Where the encoder states of a request's clip lie in the cache."""

    count: int
    table: BlockTable | None  # their own blocks; None: they are among the prompt's positions, and read with them
    encoded: int = 0  # how many of them the encoder computes; 0: all, else the others are known beforehand


@dataclass(slots=True, eq=False)
class Request:
    """One sequence or one unit of work for one model.

    A sequence has tokens: the newest, `tokens[computed:]`, have no key and value in the cache yet. A sequence about a
    clip also has `clip`, and its clip is encoded before its first token. A unit has no tokens: `unit` is its size, and
    one step does all of it.
    """

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
    model: ModelName = "chat"
    payload: Payload = field(default_factory=ChatPayload)
    clip: ClipStates | None = None
    unit: int = 0
    drafts: list[int] = field(default_factory=list)  # tokens that may follow the prompt; verified once, then dropped
    waiting_for_input: bool = False  # it is in no step until more input comes; it keeps its blocks if it can
    offered: bool = False  # to the concurrent prefill: it is in no step until that declines
    not_needed_before_s: float = 0.0  # its listener has audio until then: schedule it last
    joins_from_s: float = 0.0  # from then on it joins a step that its model runs anyway

    job: str = ""  # the submission it belongs to
    continues: bool = False  # its job was in a step before, or is a stream: it is not queued as a new one
    number: tuple[int, int] = (0, 0)  # order of arrival of its job, and its own; given by the scheduler
    state: RequestState = RequestState.WAITING
    host_blocks: list[int] = field(default_factory=list)  # swapped out: the table's content is here
    host_length: int = 0
    started: bool = False
    starved: bool = False  # it waited too long once: it goes before all others until it is done
    cached_tokens: int = 0
    preemptions: int = 0
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    progress_s: float = 0.0  # when it last was in a step, or arrived

    @property
    def next_barred(self) -> frozenset[int]:
        """The tokens that cannot be its next."""
        payload = self.payload
        return payload.barred_starts if isinstance(payload, ChatPayload) and not self.output_tokens else frozenset()

    @property
    def cross(self) -> BlockTable | None:
        """The blocks of the clip's encoder states, if they have blocks of their own."""
        return None if self.clip is None else self.clip.table

    @property
    def states(self) -> int:
        """How many encoder states the clip becomes."""
        return 0 if self.clip is None else self.clip.count

    @property
    def encoding(self) -> int:
        """How many encoder states must be computed for the clip."""
        return self.states if self.clip is None or not self.clip.encoded else self.clip.encoded

    @property
    def computed(self) -> int:
        """How many tokens have their key and value stored, on the device or swapped out."""
        return self.host_length if self.host_blocks else self.table.length

    @property
    def pending(self) -> int:
        """How many tokens must be computed before the next one can be sampled; of a unit, its size."""
        return self.unit or len(self.tokens) - self.computed

    @property
    def unencoded(self) -> bool:
        """Whether the clip must be encoded before anything else."""
        if self.clip is None:
            return False
        if self.clip.table is None:
            return self.computed == 0
        return not self.clip.table.blocks and not self.host_blocks

    @property
    def cross_states(self) -> int:
        """How many encoder states need blocks of their own."""
        return 0 if self.cross is None else self.states

    @property
    def whole(self) -> bool:
        """Whether one step must do all that is pending."""
        return self.unit > 0 or self.unencoded

    @property
    def ready(self) -> bool:
        """Whether a step could take it."""
        return (
            self.state in (RequestState.WAITING, RequestState.RUNNING)
            and not self.waiting_for_input
            and not self.offered
        )

    @property
    def waiting_since_s(self) -> float:
        """Since when it could have been in a step and was not."""
        return max(self.progress_s, self.not_needed_before_s)

    @property
    def tables(self) -> tuple[BlockTable, ...]:
        """Its block tables."""
        cross = self.cross
        return (self.table,) if cross is None else (self.table, cross)

    @property
    def blocks(self) -> list[int]:
        """The device blocks it holds."""
        cross = self.cross
        return self.table.blocks if cross is None else self.table.blocks + cross.blocks

    def free(self) -> None:
        """Give all device blocks back; their content is lost."""
        self.table.free()
        if self.cross is not None:
            self.cross.free()

    @property
    def output_tokens(self) -> int:
        """How many tokens have come out."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def tokens_left(self) -> int:
        """How many more tokens it may get."""
        return min(self.prompt_tokens + self.sampling.max_tokens, self.limit) - len(self.tokens)

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is left to compute."""
        computed = self.host_length if self.host_blocks else self.table.length
        return not self.unit and 0 < computed == len(self.tokens) - 1

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
        )

"""One request: its tokens, where it stands, and what it has cost. It knows no policy and no tensor."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from voxlane.engine.api import Priority, RequestStats, SamplingParams, Task
from voxlane.engine.memory.blocks import BlockTable

if TYPE_CHECKING:
    from voxlane.engine.text.constraint import Constraint

ModelName = Literal["chat", "asr", "tts"]
"""The models one engine holds, by what they do."""


class RequestState(enum.Enum):
    """Where a request stands.

    WAITING ──admitted──▶ RUNNING ──Pause──▶ PAUSED ──Resume──▶ RUNNING or WAITING
       ▲ └──▶ EXPRESS ─────▶ │
       └─swapped or dropped──┘          any ──▶ FINISHED
    """

    WAITING = "waiting"  # holds no device blocks; `host_blocks` if it was swapped out
    RUNNING = "running"  # holds blocks; the scheduler decides step by step whether it is in the batch
    EXPRESS = "express"  # critical; its prompt is being read beside the step under way: nobody may take its blocks
    PAUSED = "paused"  # out of the batch until resumed; blocks kept unless somebody needs them
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """Something to be computed by one model, in one of three shapes.

    A sequence of tokens: the newest, `tokens[computed:]`, have no key and value in the cache yet. A sequence about an
    encoded clip: the same, and `states` places in the cache for what the encoder makes of `material`. A unit: `unit`
    is its size, it is done in one step or not at all, and there are no tokens.
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
    material: Any = None  # what the model works on beside tokens: a clip, or a clause with its voice
    cross: BlockTable | None = None  # where the encoded clip lies
    states: int = 0  # how many places it takes
    inline: bool = False  # the clip's places are among the tokens' own: what stands there is read once, with the prompt
    unit: int = 0
    drafts: list[int] = field(default_factory=list)  # what a look before this one heard after the prompt: tried once
    detects_language: bool = False  # the first token it writes names a language
    constraint: Constraint | None = None  # what the output must look like
    ends: frozenset[int] = frozenset()  # task "probe": tokens whose probability is wanted
    wants_attention: bool = False  # where the decoder looked is wanted at the end, for the words' times
    waiting_for_input: bool = (
        False  # what it goes on with has not come: it is in no step, and keeps its blocks if it can
    )
    offered: bool = False  # to what runs beside the steps: until that has said no, it is in none
    not_needed_before_s: float = 0.0  # nobody needs what it makes before: until then others go first, all of them,
    joins_from_s: float = 0.0  # but from then on it goes along where its model has a step anyway

    job: str = ""  # the submission it belongs to,
    continues: bool = False  # which waits for no place of its own any more: it was in a step, or it is a stream
    number: tuple[int, int] = (0, 0)  # order of arrival of that, and its own, given by the scheduler
    state: RequestState = RequestState.WAITING
    host_blocks: list[int] = field(default_factory=list)  # swapped out: the table's content is here
    host_length: int = 0
    started: bool = False
    starved: bool = False  # starved once: goes before everyone until it is done
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
        """How many tokens must be computed before the next one can be sampled; of a unit, its size."""
        return self.unit or len(self.tokens) - self.computed

    @property
    def unencoded(self) -> bool:
        """Whether a clip has to go through the encoder before anything else."""
        if self.inline:
            return self.computed == 0
        return self.cross is not None and not self.cross.blocks and not self.host_blocks

    @property
    def cross_states(self) -> int:
        """How many places the clip takes in a table of its own."""
        return 0 if self.cross is None else self.states

    @property
    def whole(self) -> bool:
        """Whether what is pending is done in one step or not at all."""
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
        """When it was last in a step, or rested."""
        return max(self.progress_s, self.not_needed_before_s)

    @property
    def tables(self) -> tuple[BlockTable, ...]:
        """Where its blocks stand."""
        return (self.table,) if self.cross is None else (self.table, self.cross)

    @property
    def blocks(self) -> list[int]:
        """The device blocks it holds."""
        return self.table.blocks if self.cross is None else self.table.blocks + self.cross.blocks

    def free(self) -> None:
        """Give all device blocks back; what was computed is lost."""
        self.table.free()
        if self.cross is not None:
            self.cross.free()

    @property
    def output_tokens(self) -> int:
        """How many tokens have come out."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def tokens_left(self) -> int:
        """How many tokens more make it as long as it may get."""
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
            lookup_proposed=self.lookup_proposed,
            lookup_accepted=self.lookup_accepted,
        )

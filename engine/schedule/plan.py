"""The plan of a step, from the scheduler to the engines that run it: values only, no rule and no tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from voxlane.engine.api import Policy
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.schedule.cost import CostModel, Work
from voxlane.engine.schedule.request import ModelName, Request, RequestState

MoveKind = Literal["copy", "swap_out", "swap_in"]

MIN_CHUNK = 16
"""Fewest prefill tokens worth a place in a step, unless fewer are left: below this the weights are read for nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    max_batch: int = 16
    max_step_tokens: int = 512
    step_budget_s: float = 0.06
    policy: Policy = "deadline"
    # Most tokens that are guessed for a row by prompt lookup; 0: no lookup.
    lookup_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the planners may do with the requests of a model."""

    # Whether a step may be planned while the one before runs. Its rows are tokens in block tables, nothing else.
    plans_ahead: bool = False
    # Seconds from one token of a request until the next is due. None: only what the request says is due.
    next_token_s: float | None = None
    # Tokens of the smallest step worth running; the step budget is never too short for it. 0: the model sets no bound.
    smallest_step: int = 0
    # Whether rows differ so much that a late request's steps hold only requests that are needed soon.
    hurries: bool = False


PLAIN = Abilities()

TEXT = Abilities(plans_ahead=True, next_token_s=0.15, smallest_step=MIN_CHUNK)
"""A chat model. 0.15 s a token is about twice as fast as speech uses words."""

SPEECH_FRAMES = Abilities(smallest_step=1)
"""A speech model that decodes frame by frame."""

CONVERSATION = Abilities(smallest_step=MIN_CHUNK, hurries=True)
"""A model that reads a conversation in chunks, and then writes and speaks. A step with a frame takes several times as
long as one with tokens alone, and an answer begins with tokens."""


@dataclass(slots=True)
class ModelResources:
    """One model as the scheduler sees it."""

    # Blocks of its KV cache on the device; none if it has no cache.
    pool: BlockPool
    # Blocks in host memory that requests are swapped out to.
    host: BlockPool
    # What its work costs, without the encoder's part.
    cost: CostModel
    # What the encoder's part of its work costs; None: it has no encoder.
    encoder: CostModel | None = None
    # Seconds to move one block to the host or back.
    swap_block_s: float = 1e-5
    abilities: Abilities = PLAIN


@dataclass(slots=True)
class Row:
    """One request's part of a step: tokens[start : start + count], then the drafts; or its whole unit of work."""

    request: Request
    start: int
    count: int
    # Guesses of the tokens after these; the step checks them.
    drafts: Sequence[int] = ()
    # Whether the request's clip goes through the encoder first.
    encode: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens it adds to the request's block table; a unit adds none."""
        return 0 if self.request.unit else self.count + len(self.drafts)

    @property
    def reaches_end(self) -> bool:
        """Whether the row computes the newest token, so that the next one can be sampled."""
        return self.start + self.count == len(self.request.tokens)


@dataclass(frozen=True, slots=True)
class Move:
    """A block transfer. Moves happen in order, before the step's forward pass."""

    kind: MoveKind
    source: int
    target: int


@dataclass(slots=True)
class ModelBatch:
    """One model's part of a step."""

    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    # The size of the decoder's work, for the cost model.
    work: Work = field(default_factory=Work)
    # The size of the encoder's work.
    encoding: Work = field(default_factory=Work)

    def seconds(self, resources: ModelResources) -> float:
        """Return how long the batch is expected to take."""
        seconds = resources.cost.predict(self.work) if self.work.rows else 0.0
        if self.encoding.rows and resources.encoder is not None:
            seconds += resources.encoder.predict(self.encoding)
        return seconds


@dataclass(slots=True)
class Plan:
    """What a step does."""

    # The rows of all models, the most urgent first.
    rows: list[Row] = field(default_factory=list)
    # The same rows by model, in the order in which the models run.
    loads: dict[ModelName, ModelBatch] = field(default_factory=dict)
    # The requests that are in a step for the first time.
    admitted: list[Request] = field(default_factory=list)
    predicted_s: float = 0.0
    # How many requests had to yield their blocks or their place in the batch.
    preempted: int = 0

    @property
    def prefill_tokens(self) -> int:
        """How many prompt tokens the step reads; a clause has none."""
        return sum(load.work.prefill_tokens for model, load in self.loads.items() if model != "tts")

    def load(self, model: ModelName) -> ModelBatch:
        """Return a model's part of the step, to be added to."""
        found = self.loads.get(model)
        if found is None:
            found = self.loads[model] = ModelBatch()
        return found

    def decode(self, request: Request) -> bool:
        """Add the next token of a decoding request if it only needs room in its last block; else return False."""
        plain = request.state is RequestState.RUNNING and not request.host_blocks and not request.drafts
        start = request.table.length
        if not plain or request.cross is not None or not request.table.grow():
            return False
        load, row = self.load(request.model), Row(request, start, 1)
        load.work.add(1, start + 1)
        load.rows.append(row)
        self.rows.append(row)
        return True

    def seconds(self, resources: Mapping[ModelName, ModelResources]) -> float:
        """Return how long the step is expected to take: models run one after the other."""
        return sum(load.seconds(resources[model]) for model, load in self.loads.items())


def recompute(request: Request) -> ModelBatch:
    """Return the work of computing again all that a request holds."""
    length = request.table.length
    return ModelBatch(
        work=Work().plus(max(length, 2), length), encoding=Work().plus(request.encoding, request.encoding)
    )

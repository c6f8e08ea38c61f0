"""What the scheduler hands to those who run a step: values only, no rule and no tensor."""

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


PLAIN = Abilities()

TEXT = Abilities(plans_ahead=True, next_token_s=0.15, smallest_step=MIN_CHUNK)
"""A chat model. 0.15 s a token is about twice as fast as speech uses words."""

SPEECH_FRAMES = Abilities(smallest_step=1)
"""A speech model that decodes frame by frame."""


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
    drafts: Sequence[int] = ()
    encode: bool = False  # the request's clip goes through the encoder first

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
    """What a step asks of one model."""

    rows: list[Row] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    encoding: Work = field(default_factory=Work)

    def seconds(self, station: ModelResources) -> float:
        """Return how long this is expected to take."""
        seconds = station.cost.predict(self.work) if self.work.rows else 0.0
        if self.encoding.rows and station.encoder is not None:
            seconds += station.encoder.predict(self.encoding)
        return seconds


@dataclass(slots=True)
class Plan:
    """What the next step does."""

    rows: list[Row] = field(default_factory=list)  # of all models, the most urgent first
    loads: dict[ModelName, ModelBatch] = field(default_factory=dict)  # the same, by model, in the order they are run
    admitted: list[Request] = field(default_factory=list)  # in a step for the first time
    predicted_s: float = 0.0
    preempted: int = 0

    @property
    def prefill_tokens(self) -> int:
        """How many prompt tokens the step reads; a clause has none."""
        return sum(load.work.prefill_tokens for model, load in self.loads.items() if model != "tts")

    def load(self, model: ModelName) -> ModelBatch:
        """Return what the step asks of a model so far, to be added to."""
        found = self.loads.get(model)
        if found is None:
            found = self.loads[model] = ModelBatch()
        return found

    def decode(self, request: Request) -> bool:
        """Add the token of one that decodes; False: not, since it needs a block, or something else of somebody."""
        plain = request.state is RequestState.RUNNING and not request.host_blocks and not request.drafts
        start = request.table.length
        if not plain or request.cross is not None or not request.table.grow():
            return False
        load, row = self.load(request.model), Row(request, start, 1)
        load.work.add(1, start + 1)
        load.rows.append(row)
        self.rows.append(row)
        return True

    def seconds(self, stations: Mapping[ModelName, ModelResources]) -> float:
        """Return how long the step is expected to take: models run one after the other."""
        return sum(load.seconds(stations[model]) for model, load in self.loads.items())


def recompute(request: Request) -> ModelBatch:
    """Return what it takes to compute again all that a request holds."""
    length = request.table.length
    return ModelBatch(work=Work().plus(max(length, 2), length), encoding=Work().plus(request.states, request.states))

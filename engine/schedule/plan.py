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


@dataclass(frozen=True, slots=True)
class Limits:
    """What one step may hold."""

    max_batch: int = 16
    max_step_tokens: int = 512
    step_budget_s: float = 0.06
    policy: Policy = "deadline"
    lookup_tokens: int = 0


@dataclass(slots=True)
class ModelResources:
    """One model as the scheduler sees it: its blocks, none if it has no cache, and what its work costs."""

    pool: BlockPool
    host: BlockPool
    cost: CostModel
    encoder: CostModel | None = None  # what the encoder's part of the work costs, for a model that has one
    swap_block_s: float = 1e-5  # seconds to move one block to the host or back


@dataclass(slots=True)
class Row:
    """One request's part of a step: tokens[start : start + count], then the drafts; or its whole unit of work."""

    request: Request
    start: int
    count: int
    drafts: Sequence[int] = ()
    encode: bool = False  # the request's clip goes through the encoder first

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

"""Runs a model's part of a plan: block moves, one forward pass over all rows, and a token chosen per row."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import LayerPages, Layout
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.sampler import SampledToken, choose
from voxlane.engine.schedule.plan import ModelBatch, Move, Row
from voxlane.engine.schedule.request import ChatPayload, Request
from voxlane.engine.schedule.speculation import accepted

SCORE_ROWS = 64
"""Rows of logits held at once when a text is scored: 64 × 49,152 floats are 12 MiB."""


class TokenModel(Protocol):
    """What the choice of tokens needs of an architecture."""

    vocab_size: int

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of some hidden states, [rows, vocabulary]."""


class DecoderModel(TokenModel, Protocol):
    """What the runner needs of an architecture."""

    def forward(self, tokens: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Return the final hidden state of every token, [tokens, hidden]."""


@dataclass(slots=True)
class Outcome:
    """What a step did for one row. Each kind of result has its own subclass; a failed row may have none."""

    failed: bool = field(default=False, kw_only=True)  # its numbers were not finite: this request alone ends


@dataclass(slots=True)
class TokenOutcome(Outcome):
    """The tokens chosen for a row: none while its prompt is not through, several if drafts were right."""

    choices: Sequence[SampledToken] = ()


@dataclass(slots=True)
class ScoreOutcome(Outcome):
    """How probable the tokens of a row are."""

    logprob_sum: float = 0.0
    scored_tokens: int = 0


class Immediate:
    """A runner on the host: a step is done when its launch returns."""

    concurrent_prefill: Any = None  # runs prompts of the same model beside a step under way
    overlaps = False  # whether a launch returns before its work is done

    def run(self, load: ModelBatch) -> Sequence[Outcome]:
        """Run a model's part of a plan; return outcomes in the order of its rows."""
        return self.collect(self.launch(load))

    def launch(self, load: ModelBatch) -> Any:
        """Begin a model's part of a plan; return a ticket for the other methods."""
        raise NotImplementedError

    def done(self, ticket: Any) -> bool:
        """Return whether `wait` would return at once; True if that is not known."""
        return True

    def wait(self, ticket: Any) -> None:
        """Wait until the step is done and the next launch cannot overwrite its results."""

    def collect(self, ticket: Any) -> Sequence[Outcome]:
        """Wait for the step; return its outcomes in the order of its rows."""
        outcomes: list[Outcome] = ticket
        return outcomes

    def samples_on_device(self, request: Request) -> bool:
        """Return whether a step can go on with a token of the request that the host has not seen yet."""
        return False

    def prepare(self, load: ModelBatch) -> None:
        """Prepare the launch of a load while a step is under way; the launch may never come."""


def token_outcome(row: Row, choices: list[SampledToken | None]) -> TokenOutcome:
    """Return a row's outcome from the choices at its positions: those up to the first wrong draft."""
    sound = [choice for choice in choices if choice is not None]
    if len(sound) < len(choices):
        return TokenOutcome(failed=True)
    if row.drafts:
        # Drafts are only made for plain greedy requests, where a choice needs nothing but its own logits.
        return TokenOutcome(sound[: len(accepted(row.drafts, [choice.token for choice in sound]))])
    return TokenOutcome(sound)


class PagedRunner(Immediate):
    """Runs a model whose requests have blocks of a KV cache."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.phases: dict[str, tuple[float, float]] = {}  # of the last step, for the trace

    def _move(self, moves: list[Move]) -> None:
        transfers = {
            "copy": self.cache.copy_blocks,
            "swap_out": self.cache.swap_out,
            "swap_in": self.cache.swap_in,
        }
        # Keep the order of kinds: a plan may swap a block out and refill it.
        for kind, group in itertools.groupby(moves, key=lambda move: move.kind):
            transfers[kind]([(move.source, move.target) for move in group])

    def _layout(self, rows: list[Row]) -> tuple[Tensor, Layout]:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        lengths: list[int] = []
        width = max(len(row.request.table.blocks) for row in rows)
        tables = torch.zeros(len(rows), width, dtype=torch.int32)
        for index, row in enumerate(rows):
            table, stop = row.request.table, row.start + row.count + len(row.drafts)
            tokens += row.request.tokens[row.start : row.start + row.count]
            tokens += row.drafts
            positions += range(row.start, stop)
            slots += table.slots(row.start, stop)
            starts.append(len(tokens))
            lengths.append(stop)
            tables[index, : len(table.blocks)] = torch.tensor(table.blocks, dtype=torch.int32)
        layout = Layout(
            positions=torch.tensor(positions, dtype=torch.int32),
            slots=torch.tensor(slots, dtype=torch.int32),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lengths=torch.tensor(lengths, dtype=torch.int32),
            block_tables=tables,
            max_query=max(row.count + len(row.drafts) for row in rows),
        )
        return torch.tensor(tokens, dtype=torch.int64), layout


class TokenRunner(PagedRunner):
    """Runs a model that chooses tokens."""

    model: TokenModel

    def _finish(self, rows: list[Row], hidden: Tensor) -> list[TokenOutcome]:
        """Compute logits only where a token is due, for all rows at once, and choose."""
        outcomes = [TokenOutcome() for _ in rows]
        wanted: list[int] = []  # rows of `hidden`
        owners: list[int] = []  # index into `rows`, once per wanted position
        start = 0
        for index, row in enumerate(rows):
            size = row.count + len(row.drafts)
            if row.reaches_end and row.request.task != "score":
                positions = range(start + row.count - 1, start + size)
                wanted += positions
                owners += [index] * len(positions)
            start += size
        if wanted:
            logits = self._logits(hidden[torch.tensor(wanted)], [rows[owner] for owner in owners])
            choices = self._choose(logits, [rows[owner].request for owner in owners])
            for owner, group in itertools.groupby(zip(owners, choices, strict=True), key=lambda pair: pair[0]):
                outcomes[owner] = token_outcome(rows[owner], [choice for _, choice in group])
        return outcomes

    def _logits(self, hidden: Tensor, rows: list[Row]) -> Tensor:
        """Return the logits that tokens are chosen from; `rows` names the row of every position in `hidden`."""
        return self.model.logits(hidden)

    def _choose(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken | None]:
        """Return a choice per row of logits; None where no token can be chosen."""
        return choose(logits, requests)


class Runner(TokenRunner):
    """Runs a language model on its cache."""

    model: DecoderModel

    def __init__(self, model: DecoderModel, cache: KVCache) -> None:
        super().__init__(cache)
        self.model = model

    def launch(self, load: ModelBatch) -> Any:
        """Run the model's part of a plan; return outcomes in the order of its rows."""
        marks = [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        with torch.inference_mode():
            tokens, layout = self._layout(load.rows)
            hidden = self.model.forward(tokens, layout, self.cache.layers)
            marks.append(time.monotonic())
            outcomes: list[Outcome] = [*self._finish(load.rows, hidden)]
            for index, (row, start) in enumerate(zip(load.rows, layout.query_starts.tolist(), strict=False)):
                if row.request.task == "score":
                    outcomes[index] = self._score(row, hidden[start : start + row.count])
        marks.append(time.monotonic())
        self.phases = dict(zip(("move", "forward", "sample"), itertools.pairwise(marks), strict=True))
        return outcomes

    def _score(self, row: Row, hidden: Tensor) -> ScoreOutcome:
        """Sum the log-probabilities of the text's own next tokens."""
        tokens, (start, stop) = row.request.tokens, scored_range(row)
        targets = torch.tensor(tokens[start + 1 : stop + 1], dtype=torch.int64, device=hidden.device)
        hidden = hidden[start - row.start :]
        outcome = ScoreOutcome(scored_tokens=len(targets))
        for begin in range(0, len(targets), SCORE_ROWS):
            part = targets[begin : begin + SCORE_ROWS]
            logprobs = torch.log_softmax(self.model.logits(hidden[begin : begin + len(part)]), dim=1)
            picked = logprobs.gather(1, part[:, None])
            outcome.failed |= not bool(torch.isfinite(picked).all())
            outcome.logprob_sum += float(picked.double().sum())
        return outcome


def scored_range(row: Row) -> tuple[int, int]:
    """Return the positions whose next token a row scores: each once, even if a position is computed again."""
    payload, tokens = row.request.payload, row.request.tokens
    assert isinstance(payload, ChatPayload)
    return max(row.start, payload.scored_tokens), min(row.start + row.count, len(tokens) - 1)

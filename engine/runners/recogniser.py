"""Speech recognition's part of a plan: clips through the encoder, then tokens as in any runner, with a second table.

It knows clips, tokens and places in pages. When to look at a clip, and what its tokens mean, is listening.py's and the
job's business.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.recognition import Cross, Encoded
from voxlane.engine.runners.decoder import TokenModel, TokenOutcome, TokenRunner
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Payload, Request


@dataclass(slots=True)
class TranscriptionPayload(Payload):
    """What the recogniser needs of a request."""

    clip: NDArray[np.float32]
    detects_language: bool = False  # the first token it writes names a language
    wants_attention: bool = False  # at the end, for the times of words


@dataclass(slots=True)
class TranscriptionOutcome(TokenOutcome):
    """The tokens of a transcript, and what is known of its clip."""

    no_speech: float = 0.0  # how probable it is that nobody speaks in the clip, if the step encoded it
    attention: Tensor | None = None  # at the end, if wanted: [heads, tokens, encoder states]


class ListeningModel(TokenModel, Protocol):
    """What the recogniser needs of an architecture; moonshine.py says how they are used."""

    eos_ids: frozenset[int]
    inline: bool  # an encoded clip lies among its request's tokens, after `clip_start` of them
    clip_start: int
    alignment_heads: tuple[tuple[int, int], ...]

    def encode(self, clips: Sequence[Tensor]) -> Encoded:
        """Return the encoder states of clips."""

    def write_cross(self, states: Tensor, slots: Tensor, pages: list[Pages]) -> None:
        """Write the keys and values of encoder states to their places."""

    def forward(self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages]) -> Tensor:
        """Return the final hidden state of every token."""

    def restrict(self, logits: Tensor, first: Sequence[bool], detecting: Sequence[bool]) -> Tensor:
        """Make impossible what must not be written."""

    def no_speech(self, hidden: Tensor) -> list[float]:
        """Return how probable silence is, for hidden states of the prompt's first token."""

    def cross_weights(
        self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages], heads: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return what the heads look at in each row."""


class Recogniser(TokenRunner):
    """Runs an encoder–decoder on its cache."""

    model: ListeningModel

    def __init__(self, model: ListeningModel, cache: KVCache) -> None:
        super().__init__(cache)
        self.model = model

    def launch(self, load: ModelBatch) -> Any:
        """Carry out the model's part of a plan; outcomes are in the order of its rows."""
        rows = load.rows
        marks = [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        with torch.inference_mode():
            self._encode([row.request for row in rows if row.encode])
            marks.append(time.monotonic())
            tokens, layout = self._layout(rows)
            self._point_to_clips(rows, tokens)
            cross = _cross([row.request for row in rows])
            hidden = self.model.forward(tokens, layout, cross, self.cache.pages)
            marks.append(time.monotonic())
            outcomes = [
                TranscriptionOutcome(found.choices, failed=found.failed) for found in self._finish(rows, hidden)
            ]
            self._judge(rows, hidden, outcomes)
            self._attend(rows, outcomes)
        marks.append(time.monotonic())
        self.phases = dict(zip(("move", "encode", "forward", "sample"), itertools.pairwise(marks), strict=True))
        return outcomes

    def _encode(self, requests: list[Request]) -> None:
        if not requests:
            return
        encoded = self.model.encode(
            [torch.from_numpy(np.ascontiguousarray(payload_of(request).clip)) for request in requests]
        )
        slots: list[int] = []
        for request, length in zip(requests, encoded.lengths, strict=True):
            # Inline, nothing is written to the cache yet: the rows are kept end to end until they are read.
            slots += range(len(slots), len(slots) + length) if request.cross is None else request.cross.slots(0, length)
        self.model.write_cross(encoded.states, torch.tensor(slots, dtype=torch.int32), self.cache.pages)

    def _point_to_clips(self, rows: list[Row], tokens: Tensor) -> None:
        """Have the tokens of clips that lie inline stand for the rows that were kept of them."""
        start = kept = 0
        for row in rows:
            if row.encode and self.model.inline:
                states, first = row.request.states, start + self.model.clip_start
                tokens[first : first + states] = -1 - torch.arange(kept, kept + states)
                kept += states
            start += row.count + len(row.drafts)

    def _logits(self, hidden: Tensor, rows: list[Row]) -> Tensor:
        first, detecting, before = [], [], None
        for row in rows:
            # A row's name comes once per position: the first of them follows the prompt, the rest follow drafts.
            opening = row is not before and len(row.request.tokens) == row.request.prompt_tokens
            first.append(opening)
            detecting.append(opening and payload_of(row.request).detects_language)
            before = row
        return self.model.restrict(self.model.logits(hidden), first, detecting)

    def _judge(self, rows: list[Row], hidden: Tensor, outcomes: list[TranscriptionOutcome]) -> None:
        """Note for every new clip how probable it is that nobody speaks in it."""
        starts = itertools.accumulate((row.count + len(row.drafts) for row in rows), initial=0)
        fresh = [(index, start) for index, (row, start) in enumerate(zip(rows, starts, strict=False)) if row.encode]
        if fresh:
            found = self.model.no_speech(hidden[torch.tensor([start for _, start in fresh])])
            for (index, _), probability in zip(fresh, found, strict=True):
                outcomes[index].no_speech = probability

    def _attend(self, rows: list[Row], outcomes: list[TranscriptionOutcome]) -> None:
        """Give each row that ends here, and whose request asked for it, what its decoder looked at."""
        ended: list[tuple[TranscriptionOutcome, Row]] = []
        for row, outcome in zip(rows, outcomes, strict=True):
            tokens = [choice.token for choice in outcome.choices]
            if payload_of(row.request).wants_attention and not self.model.eos_ids.isdisjoint(tokens):
                written = next(place for place, token in enumerate(tokens) if token in self.model.eos_ids)
                ended.append((outcome, self._again(row.request, tokens[:written])))
        if not ended:
            return
        again = [row for _, row in ended]
        sequences, layout = self._layout(again)
        cross = _cross([row.request for row in again])
        found = self.model.cross_weights(sequences, layout, cross, self.cache.pages, self.model.alignment_heads)
        for (outcome, row), weights in zip(ended, found, strict=True):
            # While a token is read, the next one is looked at: the prompt's last row is the first word's.
            outcome.attention = weights[:, row.request.prompt_tokens - 1 - row.start :]

    def _again(self, request: Request, written: list[int]) -> Row:
        """Return a request's sequence as a row to be run again, from behind its clip on if that lies inline."""
        start = self.model.clip_start + request.states if self.model.inline else 0
        return Row(request, start, len(request.tokens) - start, written)


def payload_of(request: Request) -> TranscriptionPayload:
    """Return what a request of this runner carries."""
    assert isinstance(request.payload, TranscriptionPayload)
    return request.payload


def _cross(requests: list[Request]) -> Cross:
    tables = [request.cross.blocks if request.cross is not None else [] for request in requests]
    padded = torch.zeros(len(tables), max(map(len, tables)), dtype=torch.int32)
    for row, blocks in enumerate(tables):
        padded[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    return Cross(torch.tensor([request.states for request in requests], dtype=torch.int32), padded)

"""Runs speech recognition's part of a plan: encodes clips, then runs tokens that also attend to encoder states.

audio/transcriber.py and the job decide when a clip is decoded and what its tokens mean.
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
    before: int = 0  # tokens before the prompt's own first one


@dataclass(slots=True)
class TranscriptionOutcome(TokenOutcome):
    """The tokens of a transcript, and what is known of its clip."""

    no_speech: float = 0.0  # the probability that the clip holds no speech, if the step encoded it
    attention: Tensor | None = None  # at the end, if wanted: [heads, tokens, encoder states]


class ListeningModel(TokenModel, Protocol):
    """What the recogniser needs of an architecture; moonshine.py says how they are used."""

    eos_ids: frozenset[int]
    inline: bool  # an encoded clip takes positions among its request's tokens
    clip_start: int  # tokens before an inline clip
    thinned: int  # how many equal states each state stands for that the encoder does not compute
    alignment_heads: tuple[tuple[int, int], ...]

    def encode(self, clips: Sequence[Tensor]) -> Encoded:
        """Return the encoder states of clips."""

    def write_cross(self, states: Tensor, slots: Tensor, pages: list[Pages]) -> None:
        """Write the keys and values of encoder states to their slots."""

    def forward(self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages]) -> Tensor:
        """Return the final hidden state of every token."""

    def restrict(self, logits: Tensor, first: Sequence[bool], detecting: Sequence[bool]) -> Tensor:
        """Set the logits of forbidden tokens to -inf."""

    def no_speech(self, hidden: Tensor) -> list[float]:
        """Return the probability that a clip holds no speech, from hidden states of the prompt's first token."""

    def cross_weights(
        self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages], heads: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return the attention weights of some heads, for each row."""


class Recogniser(TokenRunner):
    """Runs an encoder–decoder on its cache."""

    model: ListeningModel

    def __init__(self, model: ListeningModel, cache: KVCache) -> None:
        super().__init__(cache)
        self.model = model

    def launch(self, load: ModelBatch) -> Any:
        """Run the model's part of a plan; return outcomes in the order of its rows."""
        rows = load.rows
        marks = [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        with torch.inference_mode():
            self._encode([row.request for row in rows if row.encode])
            marks.append(time.monotonic())
            tokens, layout = self._layout(rows)
            self._point_to_clips(rows, tokens)
            cross = self._cross([row.request for row in rows])
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
            [torch.from_numpy(np.ascontiguousarray(transcription_of(request).clip)) for request in requests]
        )
        slots: list[int] = []
        for request, length in zip(requests, encoded.lengths, strict=True):
            # Inline clips are not in the cache yet: their rows are kept end to end until the prompt reads them.
            slots += range(len(slots), len(slots) + length) if request.cross is None else request.cross.slots(0, length)
        self.model.write_cross(encoded.states, torch.tensor(slots, dtype=torch.int32), self.cache.pages)

    def _point_to_clips(self, rows: list[Row], tokens: Tensor) -> None:
        """Replace the tokens of inline clips by references to the clips' kept rows."""
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
            # A row comes once per position: the first follows the prompt, the others follow drafts.
            opening = row is not before and len(row.request.tokens) == row.request.prompt_tokens
            first.append(opening)
            detecting.append(opening and transcription_of(row.request).detects_language)
            before = row
        return self.model.restrict(self.model.logits(hidden), first, detecting)

    def _judge(self, rows: list[Row], hidden: Tensor, outcomes: list[TranscriptionOutcome]) -> None:
        """Set `no_speech` of every row whose clip was encoded in this step."""
        starts = itertools.accumulate((row.count + len(row.drafts) for row in rows), initial=0)
        fresh = [
            (index, start + transcription_of(row.request).before)
            for index, (row, start) in enumerate(zip(rows, starts, strict=False))
            if row.encode
        ]
        if fresh:
            found = self.model.no_speech(hidden[torch.tensor([start for _, start in fresh])])
            for (index, _), probability in zip(fresh, found, strict=True):
                outcomes[index].no_speech = probability

    def _attend(self, rows: list[Row], outcomes: list[TranscriptionOutcome]) -> None:
        """Set `attention` of every row that ends in this step and wants it."""
        ended: list[tuple[TranscriptionOutcome, Row]] = []
        for row, outcome in zip(rows, outcomes, strict=True):
            tokens = [choice.token for choice in outcome.choices]
            if transcription_of(row.request).wants_attention and not self.model.eos_ids.isdisjoint(tokens):
                written = next(place for place, token in enumerate(tokens) if token in self.model.eos_ids)
                ended.append((outcome, self._again(row.request, tokens[:written])))
        if not ended:
            return
        again = [row for _, row in ended]
        sequences, layout = self._layout(again)
        cross = self._cross([row.request for row in again])
        found = self.model.cross_weights(sequences, layout, cross, self.cache.pages, self.model.alignment_heads)
        for (outcome, row), weights in zip(ended, found, strict=True):
            # A token's row attends to the sound of the next token: the prompt's last row belongs to the first word.
            outcome.attention = weights[:, row.request.prompt_tokens - 1 - row.start :]

    def _cross(self, requests: list[Request]) -> Cross:
        tables = [request.cross.blocks if request.cross is not None else [] for request in requests]
        padded = torch.zeros(len(tables), max(map(len, tables)), dtype=torch.int32)
        for row, blocks in enumerate(tables):
            padded[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        states = torch.tensor([request.states for request in requests], dtype=torch.int32)
        if self.model.thinned == 1:
            return Cross(states, padded)
        encoded = torch.tensor([request.encoding for request in requests], dtype=torch.int32)
        return Cross(states, padded, encoded, self.model.thinned)

    def _again(self, request: Request, written: list[int]) -> Row:
        """Return a row that runs a request's sequence again, without an inline clip."""
        start = self.model.clip_start + request.states if self.model.inline else 0
        return Row(request, start, len(request.tokens) - start, written)


def transcription_of(request: Request) -> TranscriptionPayload:
    """Return what a request of this runner carries."""
    assert isinstance(request.payload, TranscriptionPayload)
    return request.payload

"""Runs speech recognition's part of a plan on a CUDA device: one graph for its clips, one for all of its tokens.

Everything is queued without waiting, encoders first; then the host waits once. It has a CUDA stream of its own: its
steps are many short launches that leave most of a device idle, and the chat model's step runs beside them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.recognition import DETECTING, OPENING, WRITING, Cross
from voxlane.engine.runners.cuda.clips import ClipGraphs, EncoderModel
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.cuda.encoder_decoder_graphs import EncoderDecoderModel, Step, StepGraphs
from voxlane.engine.runners.decoder import token_outcome
from voxlane.engine.runners.recogniser import ListeningModel, Recogniser, TranscriptionOutcome, transcription_of
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request, RequestState


class DeviceModel(ListeningModel, EncoderDecoderModel, EncoderModel, Protocol):
    """What the recogniser on a device needs of an architecture; moonshine.py says how they are used."""

    tells_silence: bool

    def reserve(self, slots: int) -> None:
        """Reserve room for the rows of a step's clips, for a model with inline clips."""

    def silence(self, hidden: Tensor) -> Tensor:
        """Return the probabilities that clips hold no speech, without waiting for them."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """Both block tables of a row at its launch: the request may be gone when the step is done."""

    blocks: list[int]
    cross: list[int]
    states: int


@dataclass(slots=True)
class RecogniserStep:
    """A step under way."""

    rows: list[Row]
    step: Step
    starts: list[int]  # where the tokens of each row begin
    tables: dict[int, _Tables]  # by row index: of rows that want attention weights
    fresh: list[int]  # indices of rows whose clip was encoded
    silence: Tensor | None  # for each of those clips the probability that it holds no speech, in pinned memory
    phases: dict[str, tuple[float, float]]
    choices: tuple[list[int], list[float]] | None = None  # tokens and logprobs at every place, once it is done


class CudaRecogniser(Recogniser):
    """Runs an encoder–decoder on its cache, on one device."""

    overlaps = True
    model: DeviceModel

    def __init__(self, model: DeviceModel, cache: KVCache, device: torch.device, *, max_rows: int) -> None:
        super().__init__(model, cache)
        self._device = device
        if model.inline:
            blocks = -(-model.states(model.max_samples) // cache.block_tokens)
            model.reserve(max_rows * blocks * cache.block_tokens)
        self._steps = StepGraphs(model, cache, device, max_rows=max_rows)
        self._clips = ClipGraphs(model, cache, device)
        self._whole, self._encoder = Stopwatch(device), Stopwatch(device)
        self._sound = True  # the last launch had no fault
        # The cache is read and written on this stream alone, so blocks change owners in its order.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def capture(self, progress: Callable[[float], None] = lambda done: None) -> None:
        """Capture all steps; before the first run, and never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        with self._aside():
            self._clips.capture(lambda done: progress(done / 2))
            self._steps.capture(lambda done: progress((1 + done) / 2))
        torch.cuda.synchronize(self._device)

    def launch(self, load: ModelBatch) -> RecogniserStep:
        """Queue a step on the device; collect it before the next launch."""
        with watched(self._device), torch.inference_mode(), self._aside():
            if not self._sound and self._device.type == "cuda":  # a fault may have left a step under way
                torch.cuda.synchronize(self._device)
            self._sound = False
            marks = [time.monotonic()]
            self._whole.start()
            self._move(load.moves)
            marks.append(time.monotonic())
            fresh = [index for index, row in enumerate(load.rows) if row.encode]
            self._encoder.start()
            self._encode([load.rows[index].request for index in fresh])
            self._encoder.stop()
            step, starts = self._launch_step(load.rows)
            places = [starts[index] + transcription_of(load.rows[index].request).before for index in fresh]
            silence = self._launch_silence(step, places)
            self._whole.stop()
            marks.append(time.monotonic())
            self._sound = True
        tables = {
            index: _Tables(list(row.request.table.blocks), _cross_blocks(row.request), row.request.states)
            for index, row in enumerate(load.rows)
            if transcription_of(row.request).wants_attention
        }
        phases = dict(zip(("move", "launch"), itertools.pairwise(marks), strict=True))
        return RecogniserStep(load.rows, step, starts, tables, fresh, silence, phases)

    def done(self, ticket: RecogniserStep) -> bool:
        """Return whether `wait` would return at once."""
        with watched(self._device):
            return ticket.choices is not None or self._whole.done()

    def wait(self, ticket: RecogniserStep) -> None:
        """Wait for a step, and copy what the next one will overwrite."""
        if ticket.choices is not None:
            return
        begin = time.monotonic()
        with watched(self._device):
            start, stop = ticket.phases["device"] = self._whole.wait()
            if ticket.fresh:
                first, last = self._encoder.wait()
                ticket.phases["encode"] = (start, start + last - first)
        ticket.choices = ticket.step.choices()
        ticket.phases["wait"] = (begin, stop)

    def collect(self, ticket: RecogniserStep) -> list[TranscriptionOutcome]:
        """Wait for a step if it is not done; return its outcomes in the order of its rows."""
        self.wait(ticket)
        begin = time.monotonic()
        with watched(self._device), torch.inference_mode(), self._aside():
            outcomes = self._outcomes(ticket)
            self._look_again(ticket, outcomes)
        self.phases = {**ticket.phases, "sample": (begin, time.monotonic())}
        return outcomes

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    # ---- queued on the device

    def _encode(self, requests: list[Request]) -> None:
        if not requests:
            return
        tables = [_cross_blocks(request) for request in requests]
        if self.model.inline:
            tables = self._kept_blocks([request.states for request in requests])
        self._clips.launch([transcription_of(request).clip for request in requests], tables)

    def _kept_blocks(self, states: list[int]) -> list[list[int]]:
        """Return the blocks where the rows of a step's inline clips are kept until the prompt reads them."""
        counts = [-(-count // self.cache.block_tokens) for count in states]
        ends = itertools.accumulate(counts, initial=0)
        return [list(range(first, last)) for first, last in itertools.pairwise(ends)]

    def _launch_step(self, rows: list[Row]) -> tuple[Step, list[int]]:
        """Write the rows into a packet and launch the step; return it, and where each row's tokens begin."""
        counts = [row.count + len(row.drafts) for row in rows]
        starts = [0, *itertools.accumulate(counts)]
        wanted = [
            place
            for row, stop in zip(rows, starts[1:], strict=True)
            for place in range(stop - len(row.drafts) - 1, stop)
        ]
        size, wide = self._steps.size(starts[-1], max(counts), len(wanted))
        step = self._steps.step(size)
        host = step.packet.host
        assert len(rows) <= len(host["lengths"]), "more rows than a step has"
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        kinds: list[int] = []
        kept = iter(self._kept_blocks([row.request.states for row in rows if row.encode]))
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            request, stop = row.request, row.start + count
            tokens += request.tokens[row.start : row.start + row.count]
            if row.encode and self.model.inline:  # the clip's tokens refer to its kept rows
                begin, first = len(tokens) - row.count + self.model.clip_start, next(kept)[0] * self.cache.block_tokens
                tokens[begin : begin + request.states] = range(-1 - first, -1 - first - request.states, -1)
            tokens += row.drafts
            positions += range(row.start, stop)
            slots += request.table.slots(row.start, stop)
            kinds += [WRITING] * (row.count - 1) + [_kind(request)] + [WRITING] * len(row.drafts)
            host["tables"][index, : len(request.table.blocks)] = request.table.blocks
            cross = _cross_blocks(request)
            host["cross_tables"][index, : len(cross)] = cross
            host["lengths"][index], host["states"][index] = stop, request.states
        for name, numbers in (("tokens", tokens), ("positions", positions), ("slots", slots), ("kinds", kinds)):
            host[name][: len(numbers)] = numbers
            host[name][len(numbers) :] = -1 if name == "slots" else 0
        if self.model.inline:
            host["wanted"].fill(0)
            host["wanted"][: len(wanted)] = wanted[: len(host["wanted"])]  # narrow steps choose at every position
        host["starts"][: len(starts)], host["starts"][len(starts) :] = starts, starts[-1]
        host["lengths"][len(rows) :] = host["states"][len(rows) :] = 0
        self._steps.launch(size, wide=wide)
        return step, starts

    def _launch_silence(self, step: Step, places: list[int]) -> Tensor | None:
        """Queue the probability that a clip holds no speech, at the first tokens of prompts."""
        if not places or not self.model.tells_silence:
            return None
        found = self.model.silence(step.hidden[torch.tensor(places).to(self._device, non_blocking=True)])
        if self._device.type != "cuda":
            return found
        return torch.empty(found.shape, pin_memory=True).copy_(found, non_blocking=True)

    # ---- when it is done

    def _outcomes(self, ticket: RecogniserStep) -> list[TranscriptionOutcome]:
        outcomes = [TranscriptionOutcome() for _ in ticket.rows]
        assert ticket.choices is not None
        tokens, logprobs = ticket.choices
        for index, (row, start) in enumerate(zip(ticket.rows, ticket.starts, strict=False)):
            if not row.reaches_end:
                continue
            first = start + row.count - 1
            places = range(first, first + 1 + len(row.drafts))
            choices = [SampledToken(tokens[at], logprobs[at]) if tokens[at] >= 0 else None for at in places]
            found = token_outcome(row, choices)
            outcomes[index] = TranscriptionOutcome(found.choices, failed=found.failed)
        if ticket.silence is not None:
            for index, probability in zip(ticket.fresh, ticket.silence.tolist(), strict=True):
                outcomes[index].no_speech = probability
        return outcomes

    def _look_again(self, ticket: RecogniserStep, outcomes: list[TranscriptionOutcome]) -> None:
        """Set `attention` of every row that ends in this step and wants it."""
        ended: list[tuple[TranscriptionOutcome, Row, _Tables]] = []
        for index, tables in ticket.tables.items():
            row, chosen = ticket.rows[index], [choice.token for choice in outcomes[index].choices]
            if row.request.state is not RequestState.FINISHED and not self.model.eos_ids.isdisjoint(chosen):
                written = next(place for place, token in enumerate(chosen) if token in self.model.eos_ids)
                ended.append((outcomes[index], self._again(row.request, chosen[:written]), tables))
        if not ended:
            return
        tokens, layout, cross = self._sequences([(row, tables) for _, row, tables in ended])
        found = self.model.cross_weights(tokens, layout, cross, self.cache.pages, self.model.alignment_heads)
        for (outcome, row, _), weights in zip(ended, found, strict=True):
            # A token's row attends to the sound of the next token: the prompt's last row belongs to the first word.
            outcome.attention = weights[:, row.request.prompt_tokens - 1 - row.start :].cpu()

    def _sequences(self, rows: list[tuple[Row, _Tables]]) -> tuple[Tensor, Layout, Cross]:
        """Return whole sequences and their layout, on the device."""
        size = self.cache.block_tokens
        tokens = [[*row.request.tokens[row.start :], *row.drafts] for row, _ in rows]
        places = [range(row.start, row.start + len(own)) for (row, _), own in zip(rows, tokens, strict=True)]
        slots = [
            tables.blocks[place // size] * size + place % size
            for (_, tables), own in zip(rows, places, strict=True)
            for place in own
        ]
        layout = Layout(
            positions=self._numbers([place for own in places for place in own]),
            slots=self._numbers(slots),
            query_starts=self._numbers([0, *itertools.accumulate(map(len, places))]),
            context_lengths=self._numbers([own.stop for own in places]),
            block_tables=self._numbers(_padded([tables.blocks for _, tables in rows])),
            max_query=max(map(len, places)),
        )
        cross = Cross(
            self._numbers([tables.states for _, tables in rows]),
            self._numbers(_padded([tables.cross for _, tables in rows])),
        )
        ids = torch.tensor([token for sequence in tokens for token in sequence], dtype=torch.int64)
        return ids.to(self._device), layout, cross

    def _numbers(self, values: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self._device)


def _kind(request: Request) -> int:
    """Return which tokens may follow a request's newest one."""
    if len(request.tokens) > request.prompt_tokens:
        return WRITING
    return DETECTING if transcription_of(request).detects_language else OPENING


def _cross_blocks(request: Request) -> list[int]:
    return [] if request.cross is None else list(request.cross.blocks)


def _padded(tables: list[list[int]]) -> list[list[int]]:
    width = max(map(len, tables))
    return [[*table, *[0] * (width - len(table))] for table in tables]

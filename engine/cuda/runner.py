"""A language model's part of a plan on a CUDA device: decodes as one graph, everything else launch by launch.

Both are queued without waiting, decodes first; then the host waits once. No policy, no text.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from voxlane.engine.cache import KVCache
from voxlane.engine.cuda.graphs import DecodeGraphs
from voxlane.engine.cuda.rows import PACKET, DecodeRows, needs_host, write_rules
from voxlane.engine.kernels.pages import Layout
from voxlane.engine.kernels.sampling import POSITION, sample
from voxlane.engine.plan import Load, Row
from voxlane.engine.request import Request
from voxlane.engine.runner import Model, Outcome, Runner
from voxlane.engine.sampler import Choice, choose

PROMPT_ROWS = (1, 17, 65, 257, 1025)
PROMPT_QUERIES = (17, 257)
"""Rows and tokens of each in the steps run at start: attention is compiled for 16, 64, 256, … rows, and anew for rows
whose parts are kept by token or by row. A kernel that was not compiled then would be in the midst of somebody's
answer."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A step under way: which rows are in its graph and where, and those that were run beside it."""

    load: Load
    decodes: list[tuple[int, int]]  # (index into the load's rows, row on the device)
    others: dict[int, Outcome]
    marks: list[float]


class CudaRunner(Runner):
    """Runs a language model on its cache, on one device."""

    def __init__(
        self, model: Model, cache: KVCache, device: torch.device, *, max_batch: int, context_tokens: int
    ) -> None:
        super().__init__(model, cache)
        self._device = device
        self._rows = DecodeRows(max_batch, cache.block_tokens, pinned=device.type == "cuda")
        self._graphs = DecodeGraphs(model, cache, self._rows, context_tokens, device)
        self._done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._sound = True  # the last launch came through

    def capture(self, progress: Callable[[float], None] = lambda done: None) -> None:
        """Capture the decode steps; before the first run, and never on a device without graphs."""
        self._graphs.capture(progress)

    def rehearse(self, max_step_tokens: int, progress: Callable[[float], None] = lambda done: None) -> None:
        """Run prompts of every kind there is a kernel for, on nobody's behalf: nothing is kept."""
        sizes = [
            (rows, count)
            for rows, count in itertools.product(PROMPT_ROWS, PROMPT_QUERIES)
            if rows <= self._rows.capacity and rows * count <= max_step_tokens
        ]
        for number, (rows, count) in enumerate(sizes):
            layout = Layout(
                positions=torch.arange(count, dtype=torch.int32).repeat(rows),
                slots=torch.full((rows * count,), -1, dtype=torch.int32),
                query_starts=torch.arange(rows + 1, dtype=torch.int32) * count,
                context_lengths=torch.full((rows,), count, dtype=torch.int32),
                block_tables=torch.zeros((rows, -(-count // self.cache.block_tokens)), dtype=torch.int32),
                max_query=count,
            )
            with torch.inference_mode():
                self._forward(torch.zeros(rows * count, dtype=torch.int64), layout)
            progress((number + 1) / len(sizes))

    def run(self, load: Load) -> list[Outcome]:
        """Carry out the model's part of a plan; outcomes are in the order of its rows."""
        return self.collect(self.launch(load))

    def launch(self, load: Load) -> Ticket:
        """Queue a step on the device; its rows' outcomes are collected later, and before the next launch."""
        if not self._sound:  # a fault left the device's tables as nobody knows, and perhaps a step under way
            if self._done is not None:
                torch.cuda.synchronize(self._device)
            self._rows.clear()
        self._sound = False
        marks = [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        decoding: list[int] = []
        rest: list[int] = []
        for index, row in enumerate(load.rows):
            (decoding if is_decode(row) else rest).append(index)
        places = self._launch_decodes([load.rows[index] for index in decoding])
        others = dict(zip(rest, self._run_rows([load.rows[index] for index in rest]), strict=True))
        marks.append(time.monotonic())
        self._sound = True
        return Ticket(load, list(zip(decoding, places, strict=True)), others, marks)

    def collect(self, ticket: Ticket) -> list[Outcome]:
        """Wait for a step; return its rows' outcomes in their order."""
        if self._done is not None:
            self._done.synchronize()
        ticket.marks.append(time.monotonic())
        rows = ticket.load.rows
        outcomes = [ticket.others.get(index) or Outcome() for index in range(len(rows))]
        chosen = self._graphs.chosen.numpy()
        tokens, logprobs = chosen[0].tolist(), chosen[1].view(np.float32)
        on_host = self._rows.on_host
        special: list[tuple[int, int]] = []
        for index, place in ticket.decodes:
            row, token = rows[index], tokens[place]
            if not row.reaches_end:
                continue
            if token < 0:
                outcomes[index].failed = True
            elif on_host[place]:
                special.append((index, place))
            else:
                wanted = row.request.sampling.logprobs == 0
                outcomes[index].choices = [Choice(token, float(logprobs[place]) if wanted else None)]
        self._choose_on_host([rows[index] for index, _ in special], [place for _, place in special], outcomes, special)
        ticket.marks.append(time.monotonic())
        self.phases = dict(zip(("move", "launch", "wait", "sample"), itertools.pairwise(ticket.marks), strict=True))
        return outcomes

    def _launch_decodes(self, rows: list[Row]) -> list[int]:
        if not rows:
            return []
        places, joined = self._rows.place(rows)
        self._graphs.send_tables([(place, request.table.blocks) for place, request in joined])
        self._graphs.launch(self._rows.bucket(len(rows)))
        if self._done is not None:
            self._done.record()
        return places

    def _run_rows(self, rows: list[Row]) -> list[Outcome]:
        """Run prompts, drafts and texts to be scored, launch by launch."""
        if not rows:
            return []
        with torch.inference_mode():
            return self._finish(rows, self._forward(*self._layout(rows)))

    def _forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Run the model on tokens and places that lie on the host."""
        moved = {name: getattr(layout, name).to(self._device, non_blocking=True) for name in _PLACES}
        return self.model.forward(
            tokens.to(self._device, non_blocking=True), replace(layout, **moved), self.cache.pages
        )

    def _choose(self, logits: Tensor, requests: Sequence[Request]) -> list[Choice | None]:
        """Choose on the device what it can choose, the rest on the host."""
        choices: list[Choice | None] = [None] * len(requests)
        plain = [index for index, request in enumerate(requests) if not needs_host(request)]
        if plain:
            tokens, logprobs = self._sample(logits, [requests[index] for index in plain], plain)
            for index, token, logprob in zip(plain, tokens, logprobs, strict=True):
                wanted = requests[index].sampling.logprobs == 0
                choices[index] = Choice(token, logprob if wanted else None) if token >= 0 else None
        if special := [index for index, request in enumerate(requests) if needs_host(request)]:
            found = choose(logits[special].float().cpu(), [requests[index] for index in special])
            for index, choice in zip(special, found, strict=True):
                choices[index] = choice
        return choices

    def _sample(self, logits: Tensor, requests: list[Request], rows: list[int]) -> tuple[list[int], list[float]]:
        packet = np.zeros((len(requests), PACKET), dtype=np.int32)
        for numbers, request in zip(packet, requests, strict=True):
            numbers[POSITION] = len(request.tokens) - 1
            write_rules(numbers, request)
        if len(rows) < logits.shape[0]:
            logits = logits[torch.tensor(rows, device=logits.device)]
        chosen = torch.empty((2, len(rows)), dtype=torch.int32, device=self._device)
        sample(logits, torch.from_numpy(packet).to(self._device), chosen[0], chosen[1].view(torch.float32))
        tokens, bits = chosen.cpu().numpy()
        return tokens.tolist(), bits.view(np.float32).tolist()

    def _choose_on_host(
        self, rows: list[Row], places: list[int], outcomes: list[Outcome], owners: list[tuple[int, int]]
    ) -> None:
        """Choose again for rows of the graph that want more than its sampler does, from the same hidden states."""
        if not rows:
            return
        assert self._graphs.hidden is not None
        with torch.inference_mode():
            hidden = self._graphs.hidden[torch.tensor(places, device=self._device)]
            found = choose(self.model.logits(hidden).float().cpu(), [row.request for row in rows])
        for row, choice, (index, _) in zip(rows, found, owners, strict=True):
            self._settle(row, [choice], outcomes[index])


_PLACES = ("positions", "slots", "query_starts", "context_lengths", "block_tables")


def is_decode(row: Row) -> bool:
    """Return whether a row is one token that a decode step can take."""
    return row.count == 1 and not row.drafts and row.request.task != "score"

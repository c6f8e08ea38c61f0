"""Runs a language model's part of a plan on a CUDA device: decodes and all other rows as one graph, if they fit.

Else each is a graph of its own, decodes first; what fits no graph is launched kernel by kernel. All is queued without
waiting. The next step may be launched before the host has read the outcomes of this one: its decodes go on with the
tokens that the device chose.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.concurrent_prefill import MOST_LAUNCHES, CudaConcurrentPrefill
from voxlane.engine.runners.cuda.decode_graphs import DecodeGraphs
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.cuda.joint_graphs import JointGraphs
from voxlane.engine.runners.cuda.prompt_graphs import SIZES, PromptGraphs
from voxlane.engine.runners.cuda.prompts import PromptRunner, PromptTicket
from voxlane.engine.runners.cuda.rows import DecodeRows, is_penalised, needs_host, set_penalties
from voxlane.engine.runners.decoder import DecoderModel, Outcome, Runner, TokenOutcome, token_outcome
from voxlane.engine.runners.sampler import SampledToken, choose
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

PROMPT_ROWS = (1, 16, 17, 63, 64, 65, 127, 255, 256, 257, 1023, 1024, 1025)
PROMPT_QUERIES = (17, 257)
PROMPT_CONTEXTS = (1, 2048)
FULL_ROWS = (1, 128, 512)
"""Rows, tokens of each row and room in their block tables, in the steps that run at start, so that every kernel is
compiled before the first request. Attention has kernels for 16, 64, 256, … rows, for many rows, for overlapping
launches, for parts kept by token or by row, for tables so short that no row is cut, and for full steps (FULL_ROWS)."""


@dataclass(slots=True)
class DecoderStep:
    """A step: the rows in its decode graph, the rows run beside it, and their results."""

    load: ModelBatch
    decodes: list[int]  # indices into the load's rows
    places: list[int]  # the decodes' rows on the device
    joined: list[tuple[int, Request]]  # device rows whose block tables must be sent
    rest: list[int]  # indices of all other rows
    prompts: PromptTicket | None = None
    on_host: list[bool] = field(default_factory=list)  # by row on the device
    chosen: NDArray[np.int32] | None = None  # [2, rows on the device], once the step was waited for
    watch: Stopwatch | None = None
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)


class Chosen(Sequence[Outcome]):
    """The outcomes of a step's rows. Each is made when it is read: a critical command may wait for this thread."""

    def __init__(self, ticket: DecoderStep) -> None:
        assert ticket.chosen is not None
        self.known: dict[int, Outcome] = {}  # by index: outcomes of rows that the graph did not choose for
        self._rows = rows = ticket.load.rows
        self._places = {  # of rows that the graph chose for: those not in the middle of a prompt
            index: place
            for index, place in zip(ticket.decodes, ticket.places, strict=True)
            if rows[index].start + 1 >= len(rows[index].request.tokens)
        }
        self._tokens, self._logprobs = ticket.chosen[0].tolist(), ticket.chosen[1].view(np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:  # one row; no slices, no negative index
        outcome = self.known.get(index)
        if outcome is not None:
            return outcome
        if index >= len(self._rows):
            raise IndexError(index)
        place = self._places.get(index)
        if place is None:
            return TokenOutcome()
        token, wanted = self._tokens[place], self._rows[index].request.sampling.logprobs == 0
        if token < 0:
            return TokenOutcome(failed=True)
        return TokenOutcome((SampledToken(token, float(self._logprobs[place]) if wanted else None),))


class CudaRunner(Runner):
    """Runs a language model on its cache, on one device."""

    overlaps = True

    def __init__(
        self, model: DecoderModel, cache: KVCache, device: torch.device, *, max_batch: int, context_tokens: int
    ) -> None:
        super().__init__(model, cache)
        self._device = device
        self._rows = DecodeRows(max_batch, cache.block_tokens, pinned=device.type == "cuda")
        yield_flag = YieldFlag.make(MOST_LAUNCHES, device)
        self._graphs = DecodeGraphs(model, cache, self._rows, context_tokens, device, yield_flag)
        self._prompt_graphs = PromptGraphs(
            model,
            cache,
            device,
            self._graphs.beside,
            max_rows=max_batch,
            context_tokens=context_tokens,
            yield_flag=yield_flag,
        )
        self._joint_graphs = JointGraphs(
            model, cache, self._graphs, self._prompt_graphs, max_rows=max_batch, yield_flag=yield_flag
        )
        self._prompts = PromptRunner(model, cache, device, self._graphs.beside, self._prompt_graphs)
        self.concurrent_prefill = CudaConcurrentPrefill(model, cache, device, yield_flag, context_tokens=context_tokens)
        self._watches = itertools.cycle([Stopwatch(device), Stopwatch(device)])  # two steps may be read at once
        self._prepared: DecoderStep | None = None
        self._sound = True  # the last launch has had no fault so far

    def capture(self, progress: Callable[[float], None] = lambda done: None, max_step_tokens: int = SIZES[-1]) -> None:
        """Capture the steps; before the first run, and never on a device without graphs."""
        pool = torch.cuda.graph_pool_handle()  # shared: one graph runs at a time, and results lie elsewhere
        self._prompt_graphs.capture(pool, max_step_tokens, lambda done: progress(done / 3))
        self._graphs.capture(pool, lambda done: progress((1 + done) / 3))
        self._joint_graphs.capture(pool, max_step_tokens, lambda done: progress((2 + done) / 3))
        self.concurrent_prefill.capture()

    def rehearse(self, max_step_tokens: int, progress: Callable[[float], None] = lambda done: None) -> None:
        """Run a prompt through every kernel there is, to compile them; nothing is written to the cache."""
        sizes = [
            (rows, count)
            for rows, count in itertools.product(PROMPT_ROWS, PROMPT_QUERIES)
            if rows <= self._rows.capacity and rows * count <= max_step_tokens
        ]
        fit = min(self._rows.capacity, max_step_tokens)
        full = [(rows, max_step_tokens // rows) for rows in FULL_ROWS if rows <= fit]
        kinds = list(itertools.product([*sizes, *full], PROMPT_CONTEXTS))
        for number, ((rows, count), context) in enumerate(kinds):
            pages = -(-max(count, context) // self.cache.block_tokens)
            layout = Layout(
                positions=torch.arange(count, dtype=torch.int32).repeat(rows),
                slots=torch.full((rows * count,), -1, dtype=torch.int32),
                query_starts=torch.arange(rows + 1, dtype=torch.int32) * count,
                context_lengths=torch.full((rows,), count, dtype=torch.int32),
                block_tables=torch.zeros((rows, pages), dtype=torch.int32),
                # 0 mostly, so that the kernels for rows of few queries run as well.
                max_query=count if (rows, count) in full and context == 1 else 0,
            )
            with torch.inference_mode():
                self._prompts.rehearse(self._forward(torch.zeros(rows * count, dtype=torch.int64), layout))
            progress((number + 1) / len(kinds))

    def samples_on_device(self, request: Request) -> bool:
        """Return whether the device chooses the request's tokens by itself."""
        return request.task in ("chat", "complete") and not needs_host(request)

    def prepare(self, load: ModelBatch) -> None:
        """Place the decodes of a step while another step is under way."""
        self._withdraw()
        self._prepared = self._place(load)

    def launch(self, load: ModelBatch) -> DecoderStep:
        """Queue a step on the device; the step before must have been waited for."""
        with watched(self._device):
            if not self._sound:  # after a fault the device's tables are unknown, and a step may be under way
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
                self._prepared = None
                self._rows.clear()
            self._sound = False
            ticket = self._launch(load)
            self._sound = True
        return ticket

    def _launch(self, load: ModelBatch) -> DecoderStep:
        marks = [time.monotonic()]
        if self._prepared is not None and self._prepared.load is load:
            ticket, self._prepared = self._prepared, None
            ticket.rest += range(len(ticket.decodes) + len(ticket.rest), len(load.rows))  # prompts, added since
        else:
            self._withdraw()
            ticket = self._place(load)
        ticket.watch = next(self._watches)
        ticket.watch.start()
        self._move(load.moves)
        marks.append(time.monotonic())
        if ticket.decodes:
            self._rows.send()
            self._welcome(ticket)
        joint = None
        if ticket.rest:
            ticket.prompts = self._prompts.describe([load.rows[index] for index in ticket.rest])
            if ticket.decodes and not ticket.prompts.scored:
                joint = self._joint_graphs.shape(self._rows.bucket(len(ticket.decodes)), *ticket.prompts.size)
        if ticket.decodes and joint is None:
            self._graphs.launch(self._rows.bucket(len(ticket.decodes)))
        self._rows.elsewhere = {}
        if ticket.prompts is not None:
            if joint is None:
                self._prompts.launch(ticket.prompts)
            else:
                self._prompts.launch_jointly(ticket.prompts, self._joint_graphs, joint)
            self._rows.elsewhere = self._beside(ticket.prompts)
        ticket.watch.stop()
        marks.append(time.monotonic())
        ticket.phases = dict(zip(("move", "launch"), itertools.pairwise(marks), strict=True))
        return ticket

    def done(self, ticket: DecoderStep) -> bool:
        """Return whether the device has finished a step."""
        with watched(self._device):
            return ticket.watch is None or ticket.watch.done()

    def wait(self, ticket: DecoderStep) -> None:
        """Wait for a step, and copy what the next one will overwrite."""
        if ticket.chosen is not None:
            return
        assert ticket.watch is not None, "only a launched step can be waited for"
        begin = time.monotonic()
        self._sound = False
        with watched(self._device):
            ticket.phases["device"] = ticket.watch.wait()
        self._sound = True
        ticket.chosen = self._graphs.chosen.numpy().copy()
        if ticket.prompts is not None:
            self._prompts.keep(ticket.prompts)
        ticket.phases["wait"] = (begin, time.monotonic())

    def collect(self, ticket: DecoderStep) -> Sequence[Outcome]:
        """Return the outcomes of a step's rows in their order."""
        self.wait(ticket)
        assert ticket.chosen is not None
        begin = time.monotonic()
        rows, found = ticket.load.rows, Chosen(ticket)
        if ticket.prompts is not None:
            found.known |= zip(ticket.rest, self._prompts.collect(ticket.prompts), strict=True)
        if any(ticket.on_host):
            pairs = zip(ticket.decodes, ticket.places, strict=True)
            self._choose_on_host(rows, [(i, place) for i, place in pairs if ticket.on_host[place]], found)
        self.phases = {**ticket.phases, "sample": (begin, time.monotonic())}
        return found

    def _place(self, load: ModelBatch) -> DecoderStep:
        """Give a step's decodes their rows on the device; send nothing."""
        decodes: list[int] = []
        rest: list[int] = []
        for index, row in enumerate(load.rows):
            (decodes if is_decode(row) else rest).append(index)
        places, joined = self._rows.place([load.rows[index] for index in decodes])
        return DecoderStep(load, decodes, places, joined, rest, on_host=self._rows.on_host.copy())

    def _welcome(self, ticket: DecoderStep) -> None:
        """Send the device the tables and penalties of requests that are new or have changed."""
        self._graphs.send_tables([(place, request.table.blocks) for place, request in ticket.joined])
        for place, request in ticket.joined:
            if is_penalised(request):
                set_penalties(self._graphs.penalties, place, request, request.table.length - 1)

    def _withdraw(self) -> None:
        """Undo a step that was prepared and not launched."""
        ticket, self._prepared = self._prepared, None
        if ticket is not None:
            self._rows.take_back([ticket.load.rows[index] for index in ticket.decodes], ticket.places, ticket.joined)

    def _beside(self, ticket: PromptTicket) -> dict[Request, int]:
        """Return where the device keeps its choices for rows outside the decode graph."""
        first, most = self._graphs.choices.numel() // 2, self._rows.capacity
        if len(ticket.plain) > most:
            return {}
        requests = ticket.requests
        return {requests[position]: first + place for position, place in zip(ticket.plain, ticket.places, strict=True)}

    def _forward(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Run the model on tokens and a layout that are on the host."""
        moved = {name: getattr(layout, name).to(self._device, non_blocking=True) for name in _PLACES}
        return self.model.forward(
            tokens.to(self._device, non_blocking=True), replace(layout, **moved), self.cache.layers
        )

    def _choose_on_host(self, rows: list[Row], wanting: list[tuple[int, int]], found: Chosen) -> None:
        """Choose again on the host for rows (index, place) that need more than the device's sampler.

        It uses the same hidden states. Rows without a choice, and failed rows, stay as they are.
        """
        wanting = [pair for pair in wanting if found[pair[0]].choices]
        if not wanting:
            return
        assert self._graphs.hidden is not None
        with torch.inference_mode():
            hidden = self._graphs.hidden[torch.tensor([place for _, place in wanting], device=self._device)]
            choices = choose(self.model.logits(hidden).float().cpu(), [rows[index].request for index, _ in wanting])
        for choice, (index, _) in zip(choices, wanting, strict=True):
            found.known[index] = token_outcome(rows[index], [choice])


_PLACES = ("positions", "slots", "query_starts", "context_lengths", "block_tables")


def is_decode(row: Row) -> bool:
    """Return whether a row is one token that a decode step can take."""
    return row.count == 1 and not row.drafts and row.request.task != "score"

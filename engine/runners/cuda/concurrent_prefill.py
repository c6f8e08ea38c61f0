"""Runs critical prompts on a device beside the step under way: with graphs, buffers and streams of their own.

They use the same KV pages. Their streams have priority: wherever a thread block of the step ends, theirs begin.
schedule/concurrent_prefill.py decides which prompts run here, and with which blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.cuda.prompt_graphs import PromptGraphs
from voxlane.engine.runners.cuda.prompts import PromptRunner, PromptTicket
from voxlane.engine.runners.cuda.rows import is_penalised, needs_host
from voxlane.engine.runners.decoder import DecoderModel, Immediate, Outcome
from voxlane.engine.schedule.concurrent_prefill import CONCURRENT_ROWS, CONCURRENT_TOKENS
from voxlane.engine.schedule.plan import ModelBatch
from voxlane.engine.schedule.request import Request

MOST_LAUNCHES = 2
"""Launches under way at a time. With one, a prompt would wait for the prompt before it, as long as its own takes."""


class _Side:
    """What one launch needs of its own: buffers, graphs over them, and a stream."""

    def __init__(
        self, model: DecoderModel, cache: KVCache, device: torch.device, asks: Tensor, context_tokens: int
    ) -> None:
        beside = torch.zeros((2, CONCURRENT_ROWS), dtype=torch.int32, device=device)
        self.graphs = PromptGraphs(
            model, cache, device, beside, max_rows=CONCURRENT_ROWS, context_tokens=context_tokens, asks=asks
        )
        self.prompts = PromptRunner(model, cache, device, beside, self.graphs)
        self.watch = Stopwatch(device)
        self.ticket: PrefillStep | None = None  # of the last launch
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @property
    def free(self) -> bool:
        """Whether no launch is under way here."""
        return self.ticket is None or self.ticket.over

    def entered(self) -> AbstractContextManager[object]:
        """Return a context that queues work on the stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


@dataclass(slots=True)
class PrefillStep:
    """Prompts under way."""

    side: _Side
    prompts: PromptTicket
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    over: bool = False


@contextmanager
def _over_if_it_fails(ticket: PrefillStep) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        ticket.over = True
        raise


class CudaConcurrentPrefill(Immediate):
    """Runs a language model on prompts beside its steps, a few launches at a time."""

    overlaps = True
    most_launches = MOST_LAUNCHES

    def __init__(
        self, model: DecoderModel, cache: KVCache, device: torch.device, yield_flag: YieldFlag, *, context_tokens: int
    ) -> None:
        """Raise a flag of `way`, which has MOST_LAUNCHES of them, while prompts are on the device."""
        self._device = device
        self._sides = [
            _Side(model, cache, device, yield_flag.asked[n : n + 1], context_tokens) for n in range(MOST_LAUNCHES)
        ]
        self.phases: dict[str, tuple[float, float]] = {}

    def capture(self, progress: Callable[[float], None] = lambda done: None) -> None:
        """Capture the steps; nothing may be running, and never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        for number, side in enumerate(self._sides):
            with side.entered():
                # Memory of its own: another graph may run at the same time.
                pool = torch.cuda.graph_pool_handle()
                side.graphs.capture(pool, CONCURRENT_TOKENS, stream=side.stream)
                progress((number + 1) / MOST_LAUNCHES)
        torch.cuda.synchronize(self._device)

    def takes(self, request: Request) -> bool:
        """Return whether a graph can choose the request's token without the host."""
        fits = self._sides[0].graphs.shape(CONCURRENT_TOKENS, CONCURRENT_ROWS, len(request.tokens)) is not None
        return fits and not needs_host(request) and not is_penalised(request)

    def launch(self, load: ModelBatch) -> PrefillStep:
        """Queue prompts; at most MOST_LAUNCHES launches may be under way."""
        assert not load.moves, "a concurrent prefill may not move blocks"
        begin = time.monotonic()
        side = next(side for side in self._sides if side.free)
        with watched(self._device), side.entered():
            side.watch.start()
            ticket = PrefillStep(side, side.prompts.describe(load.rows))
            side.prompts.launch(ticket.prompts)
            side.watch.stop()
        side.ticket = ticket  # only if the launch did not fail
        ticket.phases["launch"] = (begin, time.monotonic())
        return ticket

    def done(self, ticket: PrefillStep) -> bool:
        """Return whether the device has finished the prompts."""
        with watched(self._device), _over_if_it_fails(ticket):
            return ticket.over or ticket.side.watch.done()

    def wait(self, ticket: PrefillStep) -> None:
        """Wait for prompts, and copy what the next ones will overwrite."""
        if ticket.over:
            return
        with watched(self._device), _over_if_it_fails(ticket):
            ticket.phases["device"] = ticket.side.watch.wait()
            ticket.side.prompts.keep(ticket.prompts)
        ticket.over = True

    def collect(self, ticket: PrefillStep) -> list[Outcome]:
        """Return the outcomes of the rows in their order."""
        self.wait(ticket)
        self.phases = ticket.phases
        return ticket.side.prompts.collect(ticket.prompts)
